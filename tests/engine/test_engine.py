"""What a request says depends on the request alone."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
import torch

from reference_engine.config import EngineConfig, Switches
from reference_engine.engine import Engine
from reference_engine.errors import ConfigError, RequestError
from reference_engine.model_config import ModelConfig

TINY_BYTES_PER_TOKEN = 2 * 4 * 2 * 32 * 4  # keys and values, layers, heads, head size, bytes


def prompts(num, seed=5):
    dice = random.Random(seed)
    return {f"r{i}": [dice.randrange(300, 3000) for _ in range(dice.randint(1, 40))] for i in range(num)}


def tokens(events):
    return {name: [event.token_id for event in those] for name, those in events.items()}


@pytest.fixture(scope="module")
def alone(make_tiny_engine, request_of, finish):
    """Each of twelve requests by itself, by the textbook, nothing remembered: the specification."""
    engine = make_tiny_engine(max_num_seqs=1, kv_cache="none", attention="plain")
    out = {}
    for name, prompt in prompts(12).items():
        engine.add(request_of(name, prompt))
        out |= tokens(finish(engine))
    return out


SWITCHES = {
    "paged": {},
    "small blocks": {"block_size": 2},
    "one at a time": {"max_num_seqs": 1},
    "contiguous": {"kv_cache": "contiguous"},
    "no cache": {"kv_cache": "none"},
    "plain attention": {"attention": "plain"},
    "plain attention, contiguous": {"attention": "plain", "kv_cache": "contiguous"},
    "small chunks": {"max_num_batched_tokens": 7, "max_num_seqs": 7},
    "whole prompts": {"enable_chunked_prefill": False},
    "static": {"batching": "static", "max_num_seqs": 4},
    "no prefix cache": {"enable_prefix_caching": False},
    "contiguous, small chunks": {
        "kv_cache": "contiguous",
        "max_num_batched_tokens": 9,
        "max_num_seqs": 5,
    },
}


@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES.keys())
@pytest.mark.parametrize("seed", [0, 1])
def test_whatever_the_switches_and_the_order_the_tokens_are_the_same(
    make_tiny_engine, request_of, alone, switches, seed
):
    engine = make_tiny_engine(**switches)
    dice = random.Random(seed)
    waiting = dice.sample(list(prompts(12).items()), 12)
    got: dict[str, list[int]] = {}
    while waiting or engine.has_work:
        for _ in range(min(len(waiting), dice.randint(0, 3))):  # they arrive while others run
            engine.add(request_of(*waiting.pop()))
        for event in engine.step():
            got.setdefault(event.request_id, []).append(event.token_id)
        engine.scheduler.check_integrity()
    assert got == alone


def test_who_was_preempted_says_the_same(make_tiny_engine, request_of, finish, alone):
    engine = make_tiny_engine(max_model_len=64, block_size=4, kv_cache_memory=24 * 4 * TINY_BYTES_PER_TOKEN)
    for name, prompt in prompts(12).items():
        engine.add(request_of(name, prompt))
    assert tokens(finish(engine)) == alone
    assert engine.stats.num_preemptions > 0


def test_a_prefix_that_was_found_says_the_same_as_one_computed(make_tiny_engine, request_of, finish):
    shared, dice = list(range(400, 470)), random.Random(0)
    cases = {f"r{i}": shared + [dice.randrange(300, 3000) for _ in range(i)] for i in range(8)}
    outputs = []
    for is_caching in (False, True):
        engine = make_tiny_engine(enable_prefix_caching=is_caching)
        got, cached = {}, 0
        for name, prompt in cases.items():
            engine.add(request_of(name, prompt))
            events = finish(engine)
            got |= tokens(events)
            cached += events[name][0].num_cached_tokens
        outputs.append(got)
        assert cached == engine.stats.prefix_cache_hits
        assert (cached > 7 * 60) == is_caching
    assert outputs[0] == outputs[1]


def test_several_answers_to_one_prompt_are_those_of_several_requests(make_tiny_engine, request_of, finish):
    prompt, hot = list(range(500, 545)), {"temperature": 1.0, "max_tokens": 30}
    outputs = []
    for like in (None, "a0"):
        engine = make_tiny_engine()
        for seed in range(4):
            request = request_of(f"a{seed}", prompt, seed=seed, **hot)
            engine.add(replace(request, shares_prompt_with=like if seed else None))
        outputs.append(tokens(finish(engine)))
    assert outputs[0] == outputs[1]
    assert len({tuple(those) for those in outputs[0].values()}) == 4
    assert engine.stats.prefix_cache_hits == 3 * 44


def test_a_finished_request_says_where_its_time_went(make_tiny_engine, request_of, finish):
    engine = make_tiny_engine(max_num_seqs=1)
    before = time.perf_counter()
    for name in "ab":
        engine.add(request_of(name, [400, 401], max_tokens=20))
    events = finish(engine)
    whole = time.perf_counter() - before
    first, second = (events[name][-1].timings for name in "ab")
    assert all(event.timings is None for event in events["a"][:-1])
    assert second.queue_s >= first.prefill_s + first.decode_s, "it waited for the only place"
    assert 0 < second.prefill_s < second.decode_s
    assert second.queue_s + second.prefill_s + second.decode_s <= whole


def test_a_seed_gives_the_same_text_whatever_else_runs(make_small_engine, request_of, finish):
    hot = {"temperature": 0.9, "seed": 11, "max_tokens": 20}
    kinds = {"plain": hot, "k": {**hot, "top_k": 40}, "p": {**hot, "top_p": 0.8}}
    single = {}
    for name, sampling in kinds.items():
        engine = make_small_engine()
        engine.add(request_of(name, [9, 8, 7], **sampling))
        single |= tokens(finish(engine))
    engine = make_small_engine()
    engine.add(request_of("greedy", [5, 5, 5]))
    for name, sampling in kinds.items():
        engine.add(request_of(name, [9, 8, 7], **sampling))
    together = tokens(finish(engine))
    assert {name: together[name] for name in kinds} == single
    engine.add(request_of("other", [9, 8, 7], **{**hot, "seed": 12}))
    assert tokens(finish(engine))["other"] != single["plain"]


def test_aborting_frees_the_slot_at_once_and_disturbs_nobody(make_tiny_engine, request_of, finish, alone):
    engine = make_tiny_engine(max_num_seqs=2)
    cases = prompts(12)
    engine.add(request_of("r0", cases["r0"]))
    engine.add(request_of("gone", cases["r1"], max_tokens=500))
    first = engine.step()
    engine.add(request_of("r2", cases["r2"]))
    assert {event.request_id for event in engine.step()} == {"r0", "gone"}
    engine.abort("gone")
    assert len(engine.scheduler.running) == 1
    assert {event.request_id for event in engine.step()} == {"r0", "r2"}
    rest = finish(engine)
    assert "gone" not in rest
    assert [event.token_id for event in rest["r2"]] == alone["r2"][1:]
    assert first[0].token_id == alone["r0"][0]
    engine.abort("never was")


def test_text_of_all_events_is_the_text_of_all_tokens(make_tiny_engine, request_of, finish):
    engine = make_tiny_engine()
    for name, prompt in prompts(6).items():
        engine.add(request_of(name, prompt, temperature=1.5, seed=len(name), max_tokens=60))
    for events in finish(engine).values():
        assert "".join(event.text for event in events) == engine.tokenizer.decode(
            [e.token_id for e in events]
        )
        assert [event.num_output_tokens for event in events] == list(range(1, 61))
        assert [event.finish_reason for event in events] == [None] * 59 + ["length"]


def test_a_stop_string_ends_the_text_before_it(make_tiny_engine, request_of, finish):
    engine = make_tiny_engine()
    prompt = engine.tokenizer.encode("And God said,")
    engine.add(request_of("whole", prompt, max_tokens=40))
    whole = "".join(event.text for event in finish(engine)["whole"])
    stop = whole[21:26]  # spans tokens, wherever it may lie
    engine.add(request_of("cut", prompt, max_tokens=40, stop=("never in there", stop)))
    events = finish(engine)["cut"]
    assert "".join(event.text for event in events) == whole[: whole.index(stop)]
    assert events[-1].finish_reason == "stop"
    assert len(events) < 40


def test_the_end_token_ends_a_chat_unless_ignored_and_shows_no_text(make_tiny_engine, request_of, finish):
    engine = make_tiny_engine()
    prompt = engine.tokenizer.encode_chat([{"role": "user", "content": "Who's there?"}])
    asked = {"temperature": 1.0, "seed": 2, "max_tokens": 400}
    engine.add(request_of("ends", prompt, ignore_eos=False, **asked))
    engine.add(request_of("goes on", prompt, ignore_eos=True, **asked))
    events = finish(engine)
    assert events["ends"][-1].finish_reason == "stop"
    assert events["ends"][-1].token_id in engine.model_config.eos_token_ids
    assert "<|" not in "".join(event.text for event in events["ends"])
    assert len(events["goes on"]) == 400
    assert not {event.token_id for event in events["goes on"]} & set(engine.tokenizer.control_ids)


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ([], 1, "no tokens"),
        ([3072], 1, "outside the vocabulary of 3072"),
        ([-1], 1, "outside the vocabulary"),
        ([1] * 90, 7, r"96 tokens, but 90 prompt tokens and max_tokens 7 .*\(97 in all\)"),
    ],
)
def test_what_can_never_be_served_is_refused_with_the_numbers(
    make_small_engine, request_of, prompt, max_tokens, message
):
    engine = make_small_engine()
    with pytest.raises(RequestError, match=message):
        engine.add(request_of("a", prompt, max_tokens=max_tokens))
    assert not engine.has_work


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there_is_named(tiny_folder):
    config = EngineConfig.resolve(ModelConfig.from_folder(tiny_folder), Switches(device="cuda"))
    with pytest.raises(ConfigError, match="--device cuda"):
        Engine.load(tiny_folder, config)


def test_the_longest_request_that_fits_is_served(make_small_engine, request_of, finish):
    engine = make_small_engine()
    engine.add(request_of("a", [1] * 89, max_tokens=7))
    assert len(finish(engine)["a"]) == 7
