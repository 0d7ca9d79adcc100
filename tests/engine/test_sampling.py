"""Tokens are chosen as often as they are likely, and each row for itself."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_engine.sampling import sample, uniform
from reference_engine.types import SamplingParams

NO_CONTROL = torch.empty(0, dtype=torch.long)
LOGITS = torch.tensor([math.log(p) for p in (0.1, 0.4, 0.05, 0.3, 0.15)])


def frequencies(num: int = 4000, **params: float) -> list[float]:
    kinds = [SamplingParams(**{"temperature": 1.0, "seed": seed, **params}) for seed in range(num)]
    found = Counter(sample(LOGITS.expand(num, -1).clone(), kinds, [7] * num, NO_CONTROL))
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
        ({"temperature": 0.5}, [0.01 / 0.285, 0.16 / 0.285, 0.0025 / 0.285, 0.09 / 0.285, 0.0225 / 0.285]),
        ({"temperature": 1e-6}, [0, 1, 0, 0, 0]),
        ({"temperature": 0.0}, [0, 1, 0, 0, 0]),
    ],
)
def test_tokens_come_as_often_as_they_are_likely(params, wanted):
    for got, want in zip(frequencies(**params), wanted, strict=True):
        assert got == pytest.approx(want, abs=4.5 * math.sqrt(want * (1 - want) / 4000))  # 4.5 sigma


def test_control_tokens_are_never_chosen_when_the_end_is_ignored():
    control = torch.tensor([1, 3])
    rows = [
        SamplingParams(temperature=heat, seed=seed, ignore_eos=True) for heat in (0, 1) for seed in range(200)
    ]
    assert set(sample(LOGITS.expand(400, -1).clone(), rows, [0] * 400, control)) == {0, 2, 4}


@given(st.integers(-(2**70), 2**70), st.integers(0, 2**40))
def test_uniform_numbers_are_below_one(seed, position):
    assert 0 <= uniform(seed, position) < 1
    assert uniform(seed, position) == uniform(seed, position)


def test_uniform_numbers_are_spread_along_positions_and_seeds():
    for numbers in ([uniform(3, i) for i in range(4000)], [uniform(i, 3) for i in range(4000)]):
        assert sum(numbers) / 4000 == pytest.approx(0.5, abs=0.02)
        assert len({int(number * 100) for number in numbers}) == 100
