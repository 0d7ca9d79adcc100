"""Tokens are chosen as often as a plain specification says they are likely, and each row for itself."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine import sampling as sampling_module
from reference_engine.sampling import probabilities, sample, uniform
from reference_engine.types import SampledToken, SampleRow, SamplingParams

NO_CONTROL = torch.empty(0, dtype=torch.long)
LOGITS = torch.tensor([math.log(p) for p in (0.1, 0.4, 0.05, 0.3, 0.15)])


def row_of(token_ids=(0,) * 7, num_prompt_tokens=None, **params):
    num_prompt_tokens = len(token_ids) if num_prompt_tokens is None else num_prompt_tokens
    return SampleRow(
        sampling=SamplingParams(**params), token_ids=list(token_ids), num_prompt_tokens=num_prompt_tokens
    )


def specification(logits, row, control_ids=()):
    """The same in float64, one row, in the order of the documentation; the filters' margins beside it."""
    params, x = row.sampling, np.array(logits, dtype=np.float64)
    if params.ignore_eos:
        x[list(control_ids)] = -np.inf
    output = list(row.token_ids)[row.num_prompt_tokens :]
    for token in set(row.token_ids):
        x[token] = (
            x[token] / params.repetition_penalty if x[token] > 0 else x[token] * params.repetition_penalty
        )
    for token, count in Counter(output).items():
        x[token] -= params.frequency_penalty * count + params.presence_penalty
    gaps = np.diff(np.unique(x[np.isfinite(x)]))
    margin = gaps.min(initial=math.inf)  # float32 makes ties of numbers that are all but equal
    order = sorted(range(len(x)), key=lambda token: (-x[token], token))
    probs = np.zeros(len(x))
    if params.temperature == 0:
        probs[order[0]] = 1
        return probs, margin
    probs = np.exp((x - x.max()) / params.temperature)
    probs /= probs.sum()
    if params.top_k > 0:
        probs[order[params.top_k :]] = 0
        probs /= probs.sum()
    if params.top_p < 1:
        before, kept = 0.0, []
        for token in order:
            margin = min(margin, abs(before - params.top_p) if kept else math.inf)
            if kept and before >= params.top_p:
                break
            kept.append(token)
            before += probs[token]
        probs[[token for token in range(len(x)) if token not in kept]] = 0
    if params.min_p > 0:
        margin = min(margin, np.abs(probs / probs.max() - params.min_p).min())
        probs[probs < params.min_p * probs.max()] = 0
    return probs / probs.sum(), margin


@st.composite
def rows_with_logits(draw):
    num_tokens = draw(st.integers(2, 40))
    # Thirds collide often, so that ties are met.
    values = st.one_of(st.integers(-12, 12).map(lambda third: third / 3), st.floats(-20, 20, width=32))
    logits = draw(st.lists(values, min_size=num_tokens, max_size=num_tokens))
    token_ids = draw(st.lists(st.integers(0, num_tokens - 1), min_size=1, max_size=12))
    params = {
        "temperature": draw(st.sampled_from([0.0, 1e-6, 0.3, 1.0, 2.5])),
        "top_k": draw(st.sampled_from([0, 1, 2, 5, 39, 10**6])),
        "top_p": draw(st.sampled_from([1.0, 0.999, 0.9, 0.55, 1e-9])),
        "min_p": draw(st.sampled_from([0.0, 0.04, 0.5, 1.0])),
        "presence_penalty": draw(st.sampled_from([0.0, 0.7, -1.1])),
        "frequency_penalty": draw(st.sampled_from([0.0, 0.4, -0.3])),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.3, 0.8])),
        "ignore_eos": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**64 - 1)),
        "num_logprobs": draw(st.sampled_from([None, 0, 3])),
    }
    num_prompt = draw(st.integers(0, len(token_ids)))
    return logits, row_of(token_ids, num_prompt, **params)


@settings(max_examples=300, deadline=None)
@given(rows_with_logits(), st.sampled_from([3, 256]))
def test_probabilities_are_those_of_the_specification(drawn, candidates):
    logits, row = drawn
    control = torch.tensor([1]) if len(logits) > 2 else NO_CONTROL
    before, sampling_module.CANDIDATES = sampling_module.CANDIDATES, candidates  # few: the slow way as well
    try:
        (got,) = probabilities(torch.tensor([logits]), [row], control)
    finally:
        sampling_module.CANDIDATES = before
    wanted, margin = specification(np.float32(logits), row, control.tolist())
    if margin > 1e-5:  # float32 may fall on the other side of a limit that is met almost exactly
        hot = row.sampling.temperature > 0.01 or row.sampling.temperature == 0
        assert got.numpy() == pytest.approx(wanted, abs=2e-5 if hot else 1.0)
    assert got.sum() == pytest.approx(1, abs=1e-5)
    assert got[sample(torch.tensor([logits]), [row], control)[0].token_id] > 0


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_row_says_the_same_alone_and_in_any_company(data):
    num_tokens = data.draw(st.integers(3, 30))
    drawn = []
    for _ in range(data.draw(st.integers(2, 6))):
        logits, row = data.draw(rows_with_logits())
        fitted = [token % num_tokens for token in row.token_ids]
        values = (logits * num_tokens)[:num_tokens]
        drawn.append((values, row_of(fitted, row.num_prompt_tokens, **fields(row.sampling))))
    order = data.draw(st.permutations(drawn))
    control = torch.tensor([0])
    alone = [sample(torch.tensor([logits]), [row], control)[0] for logits, row in order]
    together = sample(torch.tensor([logits for logits, _ in order]), [row for _, row in order], control)
    assert together == alone


def fields(params):
    return {name: getattr(params, name) for name in SamplingParams.__dataclass_fields__}


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 12},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"top_k": 20, "top_p": 0.9, "min_p": 0.05, "temperature": 1.4},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2, "top_p": 0.95},
    ],
)
def test_tokens_come_as_often_as_the_specification_says(params):
    """Chi-square over 6000 positions with one seed, at the 1 in 10 000 level."""
    num, rng = 6000, np.random.default_rng(5)
    logits = rng.normal(size=60).astype(np.float32) * 1.5
    history = [3, 7, 7, 11, 11, 11]
    params = {"temperature": 1.0, "seed": 11, **params}
    wanted, _ = specification(logits, row_of(history, 2, **params))
    found = np.zeros(60)
    probs = probabilities(torch.tensor(logits[None]), [row_of(history, 2, **params)], NO_CONTROL)
    numbers = torch.tensor([uniform(11, position) for position in range(num)], dtype=torch.float64)
    np.add.at(found, sampling_module._pick(probs.expand(num, -1), numbers).numpy(), 1)
    assert not found[wanted == 0].any()
    likely = wanted * num >= 5
    rest = [max(num - found[likely].sum(), 0), max(num * (1 - wanted[likely].sum()), 1e-9)]
    statistic = ((found - wanted * num)[likely] ** 2 / (wanted * num)[likely]).sum()
    statistic += (rest[0] - rest[1]) ** 2 / rest[1] if rest[1] > 1 else 0
    freedom = likely.sum()
    # Wilson and Hilferty 1931: the cube root of chi-square over its freedom is nearly normal.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit


def frequencies(num=4000, **params):
    rows = [row_of(**{"temperature": 1.0, "seed": seed, **params}) for seed in range(num)]
    found = Counter(token.token_id for token in sample(LOGITS.repeat(num, 1), rows, NO_CONTROL))
    return [found[token] / num for token in range(5)]


@pytest.mark.parametrize(
    ("params", "wanted"),
    [
        ({}, [0.1, 0.4, 0.05, 0.3, 0.15]),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"top_k": 1}, [0, 1, 0, 0, 0]),
        ({"top_k": 99}, [0.1, 0.4, 0.05, 0.3, 0.15]),
        ({"top_p": 0.69}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"top_p": 0.71}, [0, 8 / 17, 0, 6 / 17, 3 / 17]),
        ({"top_p": 1e-9}, [0, 1, 0, 0, 0]),
        ({"top_k": 3, "top_p": 0.5}, [0, 4 / 7, 0, 3 / 7, 0]),  # top_p of what top_k left, as vLLM has it
        ({"min_p": 0.7}, [0, 4 / 7, 0, 3 / 7, 0]),
        ({"min_p": 1.0}, [0, 1, 0, 0, 0]),
        ({"temperature": 0.5}, [0.01 / 0.285, 0.16 / 0.285, 0.0025 / 0.285, 0.09 / 0.285, 0.0225 / 0.285]),
        ({"temperature": 1e-6}, [0, 1, 0, 0, 0]),
        ({"temperature": 1e-300}, [0, 1, 0, 0, 0]),
        ({"temperature": 0.0}, [0, 1, 0, 0, 0]),
        ({"temperature": 0.0, "top_k": 3, "top_p": 0.2, "min_p": 0.9, "seed": 5}, [0, 1, 0, 0, 0]),
    ],
)
def test_seeds_spread_tokens_as_they_are_likely(params, wanted):
    for got, want in zip(frequencies(**params), wanted, strict=True):
        assert got == pytest.approx(want, abs=4.5 * math.sqrt(want * (1 - want) / 4000))  # 4.5 sigma


def test_penalties_move_greedy_choices_by_prompt_and_output():
    logits = torch.tensor([[2.0, 1.9, 1.0, -1.0]])

    def token(token_ids, num_prompt_tokens, **params):
        return sample(logits.clone(), [row_of(token_ids, num_prompt_tokens, **params)], NO_CONTROL)[
            0
        ].token_id

    assert token([0, 3], 1, presence_penalty=0.2) == 0, "the prompt is not punished"
    assert token([3, 0], 1, presence_penalty=0.2) == 1
    assert token([3, 0], 1, frequency_penalty=0.06) == 0
    assert token([3, 0, 0], 1, frequency_penalty=0.06) == 1, "each occurrence counts"
    assert token([0, 3], 2, repetition_penalty=1.1) == 1, "the prompt is punished"
    assert token([3], 0, presence_penalty=-3.5) == 3, "a negative one encourages"


def test_a_repetition_penalty_makes_negative_logits_less_likely_too():
    probs = probabilities(
        torch.tensor([[-1.0, -1.0]]), [row_of([1], temperature=1.0, repetition_penalty=2.0)], NO_CONTROL
    )
    assert probs[0].tolist() == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.e)], abs=1e-6)


def test_logprobs_are_the_models_own_and_in_order():
    plain = LOGITS.double().log_softmax(-1)
    params = {"temperature": 0.1, "top_k": 1, "presence_penalty": 2.0, "ignore_eos": True, "num_logprobs": 3}
    (token,) = sample(LOGITS.repeat(1, 1), [row_of([1], 0, **params)], torch.tensor([3]))
    assert token.token_id == 4, "1 is penalized, 3 is the end"
    assert token.logprob == pytest.approx(plain[4].item(), abs=1e-6)
    assert [token_id for token_id, _ in token.top_logprobs] == [1, 3, 4]
    assert [value for _, value in token.top_logprobs] == pytest.approx(plain[[1, 3, 4]].tolist(), abs=1e-6)


def test_logprobs_of_the_whole_vocabulary_add_up_to_one_and_none_may_be_asked():
    (full, none) = sample(LOGITS.repeat(2, 1), [row_of(num_logprobs=99), row_of(num_logprobs=0)], NO_CONTROL)
    assert sum(math.exp(value) for _, value in full.top_logprobs) == pytest.approx(1, abs=1e-6)
    assert none == SampledToken(token_id=1, logprob=full.logprob)


def test_equal_tokens_go_by_id_whatever_the_others_ask():
    flat = torch.zeros(3, 50)
    rows = [row_of(num_logprobs=2), row_of(num_logprobs=9), row_of(temperature=1.0, top_k=3, top_p=0.99)]
    tokens = sample(flat.clone(), rows, NO_CONTROL)
    assert [token_id for token_id, _ in tokens[0].top_logprobs] == [0, 1]
    assert [token_id for token_id, _ in tokens[1].top_logprobs] == list(range(9))
    assert probabilities(flat.clone(), rows, NO_CONTROL)[2].tolist() == pytest.approx([1 / 3] * 3 + [0] * 47)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened_before_anything_is_computed(dtype):
    rows = [
        row_of(temperature=0.7, top_p=0.9, presence_penalty=0.01, seed=s, num_logprobs=2) for s in range(40)
    ]
    logits = torch.randn(40, 300, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert sample(logits.clone(), rows, NO_CONTROL) == sample(logits.float(), rows, NO_CONTROL)


def test_control_tokens_are_never_chosen_when_the_end_is_ignored():
    control = torch.tensor([1, 3])
    rows = [row_of(temperature=heat, seed=seed, ignore_eos=True) for heat in (0, 1) for seed in range(200)]
    chosen = {token.token_id for token in sample(LOGITS.repeat(400, 1), rows, control)}
    assert chosen == {0, 2, 4}
    rows = [row_of(ignore_eos=True), row_of(ignore_eos=False)]
    assert [token.token_id for token in sample(LOGITS.repeat(2, 1), rows, control)] == [4, 1]


def test_greedy_batches_never_touch_more_than_an_argmax(monkeypatch):
    for costly in ("_distribution", "_penalize", "_with_logprobs"):
        monkeypatch.setattr(sampling_module, costly, None)
    rows = [row_of(top_k=5, top_p=0.5, min_p=0.5, ignore_eos=bool(at % 2)) for at in range(4)]
    assert [token.token_id for token in sample(LOGITS.repeat(4, 1), rows, NO_CONTROL)] == [1] * 4


def test_the_vocabulary_is_sorted_only_for_a_top_p_that_spreads_wide(monkeypatch):
    widths, topk = [], torch.Tensor.topk
    monkeypatch.setattr(
        torch.Tensor, "topk", lambda x, k, dim: widths.append((len(x), k)) or topk(x, k, dim=dim)
    )
    peaked, flat = torch.arange(2000.0), torch.zeros(2000)
    rows = [row_of(temperature=1.0, top_p=0.9), row_of(temperature=1.0, top_k=50)]
    sample(torch.stack([peaked, flat]), rows, NO_CONTROL)
    assert widths == [(2, 256)]
    sample(torch.stack([flat, flat]), rows, NO_CONTROL)
    assert widths[1:] == [(2, 256), (1, 2000)]


@given(st.integers(-(2**70), 2**70), st.integers(0, 2**40))
def test_uniform_numbers_are_below_one(seed, position):
    assert 0 <= uniform(seed, position) < 1
    assert uniform(seed, position) == uniform(seed, position)


def test_uniform_numbers_are_spread_along_positions_and_seeds():
    for numbers in ([uniform(3, i) for i in range(4000)], [uniform(i, 3) for i in range(4000)]):
        assert sum(numbers) / 4000 == pytest.approx(0.5, abs=0.02)
        assert len({int(number * 100) for number in numbers}) == 100


@pytest.mark.gpu
def test_a_gpu_chooses_as_the_cpu_does():
    rows = [row_of(temperature=0.8, top_k=40, top_p=0.9, seed=seed, num_logprobs=5) for seed in range(64)]
    logits = torch.randn(64, 4000, generator=torch.Generator().manual_seed(1))
    here, there = (sample(logits.to(d), rows, NO_CONTROL.to(d)) for d in ("cpu", "cuda"))
    assert [token.token_id for token in here] == [token.token_id for token in there]
    for one, other in zip(here, there, strict=True):
        assert [t for t, _ in one.top_logprobs] == [t for t, _ in other.top_logprobs]
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
