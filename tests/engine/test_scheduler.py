"""Whatever comes and goes, the scheduler keeps its promises.

Instead of keys and values, the cache here holds which tokens a position was computed from. Thus every
step can be checked: does each chunk find, through its block table, exactly what it needs?
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine.blocks import BlockPool
from reference_engine.scheduler import Policy, Scheduler
from reference_engine.types import GenerationRequest, SamplingParams

EOS = 0
MAX_MODEL_LEN = 24


class Rig:
    """A scheduler with a cache of tuples, stepped with all checks."""

    def __init__(self, *, num_blocks: int | None = 40, block_size: int = 4, **policy: object) -> None:
        chosen = {"max_num_seqs": 3, "max_num_batched_tokens": 24, "is_chunked": num_blocks is not None}
        chosen |= {"max_model_len": MAX_MODEL_LEN, "eos_token_ids": (EOS,)} | policy
        self.policy = Policy(**chosen)
        self.pool = None if num_blocks is None else BlockPool(num_blocks, block_size)
        self.scheduler = Scheduler(self.policy, self.pool)
        self.slots: dict[int, tuple[int, ...]] = {}  # slot -> the tokens up to and including its own
        self.admitted: list[str] = []
        self.outputs: dict[str, list[int]] = {}
        self.seeds: dict[str, int] = {}
        self.copies: list[tuple[int, int]] = []

    def add(self, name: str, prompt, *, max_tokens: int = 4, priority: int = 0, like: str | None = None):
        self.seeds[name] = len(self.seeds)
        self.scheduler.add(
            GenerationRequest(
                request_id=name,
                prompt_token_ids=tuple(prompt),
                sampling=SamplingParams(max_tokens=max_tokens, seed=self.seeds[name]),
                priority=priority,
                shares_prompt_with=like,
            )
        )

    def step(self, token_id: int | None = None) -> list[tuple[str, int, int]]:
        """One step with all that is promised of it; (name, start, end) of its chunks."""
        before, had_work = dict(self.scheduler.running), self.scheduler.has_work
        decoding = {name for name, s in before.items() if s.num_to_compute == 1}
        preempted = self.scheduler.num_preemptions
        plan = self.scheduler.schedule()
        names = [chunk.request_id for chunk in plan.chunks]
        assert len(set(names)) == len(names) <= self.policy.max_num_seqs
        assert plan.num_tokens <= self.policy.max_num_batched_tokens
        assert bool(plan.chunks) == had_work, "work, but an empty step"
        if self.policy.is_chunked and self.scheduler.num_preemptions == preempted:
            assert decoding <= set(names), "a decoding sequence was left out"
        self.admitted += [name for name in names if name not in before and name not in self.admitted]
        for source, target in plan.copies:
            self._copy(source, target)
        self.copies += plan.copies
        for chunk in plan.chunks:  # all are written before any is read, as in a layer
            self._write(chunk)
        for chunk in plan.chunks:
            self._read(chunk)
        for chunk in plan.chunks:
            token = None
            if chunk.sample is not None:
                # As a model: the next token depends on all those before and the seed, and on nothing else.
                seen = (self.seeds[chunk.request_id], *self.scheduler.running[chunk.request_id].token_ids)
                token = (hash(seen) % 3 + 1) if token_id is None else token_id
                self.outputs.setdefault(chunk.request_id, []).append(token)
            self.scheduler.commit(chunk, token)
            self.scheduler.check_integrity()
        return [(chunk.request_id, chunk.start, chunk.end) for chunk in plan.chunks]

    def finish(self, limit: int = 3000) -> dict[str, list[int]]:
        for _ in range(limit):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work, "starved or deadlocked"
        if self.pool is not None:
            assert self.pool.num_free == self.pool.num_blocks, "a block leaked"
        return self.outputs

    def _slot(self, chunk, position: int) -> int:
        size = self.pool.block_size
        return chunk.block_table[position // size] * size + position % size

    def _copy(self, source: int, target: int) -> None:
        size = self.pool.block_size
        for at in range(size):
            self.slots[target * size + at] = self.slots.get(source * size + at, ())

    def _write(self, chunk) -> None:
        seen = self.scheduler.running[chunk.request_id].token_ids
        assert list(chunk.token_ids) == seen[chunk.start : chunk.end]
        assert (chunk.sample is not None) == (chunk.end == len(seen))
        if self.pool is None:
            assert chunk.start == 0
            return
        for position in range(chunk.start, chunk.end):
            self.slots[self._slot(chunk, position)] = tuple(seen[: position + 1])

    def _read(self, chunk) -> None:
        seen = self.scheduler.running[chunk.request_id].token_ids
        for position in range(chunk.end if self.pool else 0):
            assert self.slots[self._slot(chunk, position)] == tuple(seen[: position + 1]), (
                f"{chunk.request_id} finds something else at position {position}"
            )


# Few different tokens, so that prompts often begin alike.
PROMPTS = st.lists(st.integers(1, 2), min_size=1, max_size=MAX_MODEL_LEN - 1)
OPERATIONS = st.one_of(
    st.tuples(st.just("add"), PROMPTS, st.integers(1, 30), st.integers(-1, 1), st.integers(1, 3)),
    st.tuples(st.just("abort"), st.integers(0, 30)),
    st.tuples(st.just("step")),
    st.tuples(st.just("step")),
)
POLICIES = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 5),
        "max_num_batched_tokens": st.integers(5, 12),
        "batching": st.sampled_from(["continuous", "continuous", "static"]),
        "has_prefix_cache": st.booleans(),
        # From what the longest request needs alone to more than enough.
        "block_size": st.sampled_from([1, 2, 3, 4, 8]),
        "spare": st.integers(0, 12),
        "kind": st.sampled_from(["paged", "paged", "paged", "contiguous", "none"]),
        "is_chunked": st.booleans(),
    }
)


def rig_for(policy: dict) -> Rig:
    policy = dict(policy)
    kind, spare = policy.pop("kind"), policy.pop("spare")
    if kind != "paged":
        policy["has_prefix_cache"] = False
    if kind == "contiguous":
        policy |= {"block_size": MAX_MODEL_LEN, "num_blocks": policy["max_num_seqs"]}
    elif kind == "paged":
        policy["num_blocks"] = -(-MAX_MODEL_LEN // policy["block_size"]) + spare
    else:
        policy |= {"num_blocks": None, "is_chunked": False}
    if not policy["is_chunked"]:
        policy["max_num_batched_tokens"] += MAX_MODEL_LEN
    return Rig(**policy)


def play(rig: Rig, operations) -> list[tuple[str, int]]:
    """Carry out what hypothesis thought of; (name, priority) in order of arrival, without the aborted."""
    names: list[str] = []
    alive: dict[str, int] = {}
    for kind, *rest in operations:
        if kind == "add":
            prompt, max_tokens, priority, copies = rest
            for number in range(copies):  # the first, and others that want its prompt
                name = f"r{len(names)}"
                like = names[-number] if number else None
                names.append(name)
                alive[name] = priority
                room = MAX_MODEL_LEN - len(prompt)
                rig.add(name, prompt, max_tokens=min(max_tokens, room), priority=priority, like=like)
        elif kind == "abort" and names:
            name = names[rest[0] % len(names)]
            if rig.scheduler.abort(name):
                del alive[name]
                rig.outputs.pop(name, None)
        elif kind == "step":
            rig.step()
        rig.scheduler.check_integrity()
    return list(alive.items())


@settings(max_examples=400, deadline=None)
@given(st.lists(OPERATIONS, max_size=40), POLICIES)
def test_random_lives_break_no_promise_and_all_end_without_a_leak(operations, policy):
    rig = rig_for(policy)
    alive = play(rig, operations)
    outputs = rig.finish()
    assert {name for name, _ in alive} <= set(outputs)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(st.lists(OPERATIONS, max_size=80), POLICIES)
def test_thousands_of_random_lives(operations, policy):
    test_random_lives_break_no_promise_and_all_end_without_a_leak.hypothesis.inner_test(operations, policy)


@settings(max_examples=200, deadline=None)
@given(st.lists(OPERATIONS, max_size=30), POLICIES, POLICIES)
def test_what_comes_out_does_not_depend_on_the_switches(operations, one, other):
    """Output is a function of prompt and seed: whoever was preempted, chunked, cached or beside whom."""
    outputs = []
    for policy in (one, other):
        rig = rig_for(policy)
        play(rig, [operation for operation in operations if operation[0] != "abort"])
        outputs.append(rig.finish())
    assert outputs[0] == outputs[1]


@settings(max_examples=100, deadline=None)
@given(st.lists(OPERATIONS, max_size=40), POLICIES)
def test_nobody_is_overtaken(operations, policy):
    operations = [
        ("add", *rest[:2], 0, rest[3]) if kind == "add" else (kind, *rest) for kind, *rest in operations
    ]
    rig = rig_for(policy)
    play(rig, operations)
    rig.finish()
    assert rig.admitted == sorted(rig.admitted, key=lambda name: int(name[1:]))


def test_a_prompt_is_computed_in_chunks_and_then_one_token_a_step():
    rig = Rig(max_num_batched_tokens=4)
    rig.add("a", [1] * 9, max_tokens=3)
    assert [rig.step()[0][1:] for _ in range(5)] == [(0, 4), (4, 8), (8, 9), (9, 10), (10, 11)]
    assert not rig.scheduler.has_work


def test_without_chunks_a_prompt_is_computed_whole():
    rig = Rig(is_chunked=False)
    rig.add("a", [1] * 9, max_tokens=2)
    assert [rig.step()[0][1:] for _ in range(2)] == [(0, 9), (9, 10)]


def test_running_streams_go_on_beside_a_long_prompt():
    rig = Rig(max_num_batched_tokens=5, max_num_seqs=3)
    for name in ("a", "b"):
        rig.add(name, [1, 2], max_tokens=9)
    rig.step()
    rig.add("long", [2] * 20, max_tokens=1)
    for at in range(0, 20, 3):
        assert rig.step() == [("a", 2 + at // 3, 3 + at // 3), ("b", 2 + at // 3, 3 + at // 3),
                              ("long", at, min(at + 3, 20))]  # fmt: skip


def test_without_chunks_a_prompt_too_long_to_share_a_step_gets_one_of_its_own():
    rig = Rig(is_chunked=False)
    for name in ("a", "b"):
        rig.add(name, [1] * 4, max_tokens=9)
    rig.step()
    rig.add("long", [2] * 23, max_tokens=1)
    assert [[name for name, *_ in rig.step()] for _ in range(2)] == [["long"], ["a", "b"]]


def test_new_requests_join_while_others_run_but_not_a_static_batch():
    for batching, second in (("continuous", ["a", "b"]), ("static", ["a"])):
        rig = Rig(batching=batching)
        rig.add("a", [1] * 4, max_tokens=3)
        rig.step()
        rig.add("b", [2] * 4)
        assert [name for name, *_ in rig.step()] == second
        rig.finish()


def test_a_static_batch_takes_all_who_wait_even_if_a_step_cannot_compute_them_at_once():
    rig = Rig(batching="static", max_num_batched_tokens=6, max_num_seqs=4)
    for name in "abcd":
        rig.add(name, [1] * 4, max_tokens=9)
    rig.step()
    assert set(rig.scheduler.running) == set("abcd")


def test_a_lower_priority_number_goes_first():
    rig = Rig(max_num_seqs=1)
    rig.add("first", [1], max_tokens=2)
    rig.step()
    for name, priority in (("later", 1), ("sooner", -1), ("middle", 0)):
        rig.add(name, [1], priority=priority)
    rig.finish()
    assert rig.admitted == ["first", "sooner", "middle", "later"]


def test_the_last_in_order_is_preempted_when_blocks_run_out_and_says_the_same():
    def outputs(num_blocks):
        rig = Rig(num_blocks=num_blocks, block_size=2, max_num_seqs=3)
        for name, prompt in (("a", [1, 2, 1]), ("b", [2, 1]), ("c", [2, 2, 2])):
            rig.add(name, prompt, max_tokens=12)
        return rig.finish(), rig.scheduler.num_preemptions

    undisturbed, none = outputs(60)
    disturbed, some = outputs(12)
    assert none == 0
    assert some > 0
    assert disturbed == undisturbed


def test_a_prompt_that_begins_like_an_earlier_one_is_not_computed_again():
    rig = Rig(has_prefix_cache=True, block_size=4)
    rig.add("a", [1] * 9, max_tokens=1)
    rig.finish()
    rig.add("b", [1] * 8 + [2, 2], max_tokens=1)
    assert rig.step() == [("b", 8, 10)]
    assert rig.scheduler.prefix_cache_hits == 8


def test_a_prompt_found_whole_computes_its_last_token_in_a_copy_of_the_block():
    rig = Rig(has_prefix_cache=True, block_size=4)
    rig.add("a", [1] * 8, max_tokens=9)
    rig.step()
    rig.add("b", [1] * 8, max_tokens=1)
    assert ("b", 7, 8) in rig.step()
    assert len(rig.copies) == 1
    rig.finish()


def test_a_prompt_found_whole_is_served_even_when_there_is_no_room_for_a_copy():
    rig = Rig(has_prefix_cache=True, block_size=4, num_blocks=3, batching="static")
    for name in "ab":
        rig.add(name, [1] * 4, max_tokens=8)  # needs the whole pool
        rig.finish()
    assert rig.copies == []


def test_several_answers_to_one_prompt_compute_it_once():
    rig = Rig(has_prefix_cache=True, block_size=4, max_num_seqs=4, max_num_batched_tokens=4)
    rig.add("a", [1, 2, 1, 2, 1, 2], max_tokens=5)
    for name in ("b", "c"):
        rig.add(name, [1, 2, 1, 2, 1, 2], max_tokens=5, like="a")
    assert rig.step() == [("a", 0, 4)]
    assert rig.step() == [("a", 4, 6)], "the others wait until it is computed"
    assert rig.step() == [("a", 6, 7), ("b", 5, 6), ("c", 5, 6)]
    assert len(rig.copies) == 2, "three write into one block: two of them into a copy"
    rig.finish()


def test_the_cache_forgets_the_least_recently_used_first():
    rig = Rig(has_prefix_cache=True, block_size=4, num_blocks=6)
    for name, token in (("a", 1), ("b", 2)):
        rig.add(name, [token] * 9, max_tokens=1)
        rig.finish()
    rig.add("a again", [1] * 9, max_tokens=1)
    rig.finish()
    rig.add("new", [3] * 9, max_tokens=1)  # needs three blocks: two are free, one is b's
    rig.finish()
    hits = []
    for name, token in (("a", 1), ("b", 2)):
        before = rig.scheduler.prefix_cache_hits
        rig.add(f"{name} at last", [token] * 9, max_tokens=1)
        rig.finish()
        hits.append(rig.scheduler.prefix_cache_hits - before)
    assert hits == [8, 4]


def test_without_a_cache_all_take_turns():
    rig = Rig(num_blocks=None, max_num_batched_tokens=24, max_num_seqs=4)
    for name in "abc":
        rig.add(name, [1] * 12, max_tokens=6)
    seen = [[name for name, *_ in rig.step()] for _ in range(3)]
    assert sorted(seen[0] + seen[1] + seen[2])[:3] != ["a", "a", "a"]
    assert {name for names in seen for name in names} == set("abc")


def test_an_aborted_sequence_leaves_its_place_to_the_next_step():
    rig = Rig(max_num_seqs=1)
    rig.add("a", [1] * 4, max_tokens=9)
    rig.step()
    rig.add("b", [2] * 4)
    assert rig.scheduler.abort("a")
    assert [name for name, *_ in rig.step()] == ["b"]
    assert not rig.scheduler.abort("a"), "gone is gone"


@pytest.mark.parametrize(
    ("prompt", "sampling", "token", "reason", "num_steps"),
    [
        (4, {"max_tokens": 3}, 5, "length", 3),  # as many as asked
        (4, {"max_tokens": 3}, EOS, "stop", 1),  # the end token
        (4, {"max_tokens": 3, "ignore_eos": True}, EOS, "length", 3),  # which may be ignored
        (4, {"max_tokens": 3, "stop_token_ids": (5,)}, 5, "stop", 1),  # a token the client named
        (20, {"max_tokens": 99}, 5, "length", 4),  # the model's own length
    ],
)
def test_sequences_end_for_the_reason_they_say(prompt, sampling, token, reason, num_steps):
    scheduler = Rig().scheduler
    params = SamplingParams(**sampling)
    scheduler.add(GenerationRequest(request_id="a", prompt_token_ids=(7,) * prompt, sampling=params))
    reasons = []
    while scheduler.has_work:
        (chunk,) = scheduler.schedule().chunks
        reasons.append(scheduler.commit(chunk, token))
    assert reasons == [None] * (num_steps - 1) + [reason]
