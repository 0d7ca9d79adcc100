"""Whatever comes and goes, the scheduler keeps its promises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_engine.scheduler import Scheduler
from reference_engine.types import GenerationRequest, SamplingParams

EOS = 0
MAX_MODEL_LEN = 24


def make_scheduler(max_num_seqs: int = 3, max_num_batched_tokens: int = 24) -> Scheduler:
    return Scheduler(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=MAX_MODEL_LEN,
        eos_token_ids=(EOS,),
    )


def request(name: str, length: int, max_tokens: int = 4) -> GenerationRequest:
    return GenerationRequest(
        request_id=name, prompt_token_ids=(7,) * length, sampling=SamplingParams(max_tokens=max_tokens)
    )


def step(scheduler: Scheduler, token_id: int = 5) -> list[str]:
    """Schedule and commit; the names in the step."""
    plan = scheduler.schedule()
    for chunk in plan.chunks:
        scheduler.commit(chunk, token_id)
    return [chunk.request_id for chunk in plan.chunks]


OPERATIONS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, MAX_MODEL_LEN - 1), st.integers(1, 30)),
    st.tuples(st.just("abort"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("step"), st.sampled_from([5, 5, 5, EOS]), st.just(0)),
)


@given(st.lists(OPERATIONS, max_size=60), st.integers(1, 4), st.integers(MAX_MODEL_LEN, 40))
def test_random_lives_break_no_promise_and_all_end(operations, num_slots, budget):
    scheduler = make_scheduler(num_slots, budget)
    names: list[str] = []
    admitted: list[str] = []
    for kind, first, second in operations:
        if kind == "add":
            names.append(f"r{len(names)}")
            scheduler.add(request(names[-1], first, second))
        elif kind == "abort" and names:
            scheduler.abort(names[first % len(names)])
        elif kind == "step":
            admitted += check_step(scheduler, first)
        scheduler.check_integrity()
    for _ in range(len(names) * MAX_MODEL_LEN + 1):
        admitted += check_step(scheduler, 5)
    assert not scheduler.has_work
    assert admitted == sorted(admitted, key=lambda name: int(name[1:])), "someone was overtaken"


def check_step(scheduler: Scheduler, token_id: int) -> list[str]:
    """One step with all that is promised of it; the names that were admitted by it."""
    running = dict(scheduler.running)
    had_work = scheduler.has_work
    plan = scheduler.schedule()
    names = [chunk.request_id for chunk in plan.chunks]
    assert len(set(names)) == len(names) <= scheduler.max_num_seqs
    assert plan.num_tokens <= scheduler.max_num_batched_tokens
    assert bool(plan.chunks) == had_work, "work, but an empty step"
    new = [name for name in names if name not in running]
    assert set(running) <= set(names) or len(plan.chunks) == len(new) == 1, "a running sequence was left out"
    assert len({chunk.slot for chunk in plan.chunks}) == len(plan.chunks)
    for chunk in plan.chunks:
        assert chunk.end <= scheduler.max_model_len
        scheduler.commit(chunk, token_id)
    scheduler.check_integrity()
    return new


def test_a_prompt_is_computed_whole_and_then_one_token_a_step():
    scheduler = make_scheduler()
    scheduler.add(request("a", 5, max_tokens=3))
    chunks = []
    while scheduler.has_work:
        (chunk,) = scheduler.schedule().chunks
        chunks.append((chunk.start, len(chunk.token_ids)))
        scheduler.commit(chunk, 9)
    assert chunks == [(0, 5), (5, 1), (6, 1)]


def test_new_requests_join_while_others_run():
    scheduler = make_scheduler()
    scheduler.add(request("a", 4, max_tokens=9))
    assert step(scheduler) == ["a"]
    scheduler.add(request("b", 4))
    assert step(scheduler) == ["a", "b"]


def test_the_queue_waits_for_a_slot():
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add(request("a", 2, max_tokens=2))
    scheduler.add(request("b", 2))
    assert [step(scheduler) for _ in range(3)] == [["a"], ["a"], ["b"]]


def test_a_prompt_too_long_to_share_a_step_gets_one_of_its_own():
    scheduler = make_scheduler(max_num_batched_tokens=24)
    for name in ("a", "b"):
        scheduler.add(request(name, 4, max_tokens=9))
    step(scheduler)
    scheduler.add(request("long", 23, max_tokens=1))
    assert [step(scheduler) for _ in range(2)] == [["long"], ["a", "b"]]


def test_an_aborted_sequence_leaves_its_slot_to_the_next_step():
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add(request("a", 4, max_tokens=9))
    step(scheduler)
    scheduler.add(request("b", 4))
    assert scheduler.abort("a")
    assert step(scheduler) == ["b"]
    assert not scheduler.abort("a"), "gone is gone"


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "ignore_eos", "token", "reason", "num_steps"),
    [
        (4, 3, False, 5, "length", 3),  # as many as asked
        (4, 3, False, EOS, "stop", 1),  # the end token
        (4, 3, True, EOS, "length", 3),  # which may be ignored
        (20, 99, False, 5, "length", 4),  # the model's own length
    ],
)
def test_sequences_end_for_the_reason_they_say(prompt, max_tokens, ignore_eos, token, reason, num_steps):
    scheduler = make_scheduler()
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
    scheduler.add(GenerationRequest(request_id="a", prompt_token_ids=(7,) * prompt, sampling=sampling))
    reasons = []
    while scheduler.has_work:
        (chunk,) = scheduler.schedule().chunks
        reasons.append(scheduler.commit(chunk, token))
    assert reasons == [None] * (num_steps - 1) + [reason]
