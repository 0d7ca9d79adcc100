"""Who computes what in the next step: continuous batching over KV blocks, in plain Python.

In: requests. Out: `StepPlan`s; then the sampled tokens come back through `commit`. It never sees a
tensor, a clock or text, so that its promises can be tested with random schedules:

* served in order of priority, then arrival: nobody waiting is overtaken by someone behind;
* a step never computes more than `max_num_batched_tokens` tokens or `max_num_seqs` sequences;
* a running sequence that decodes advances in every step, however long the prompts beside it are (but
  with whole prompts, one that needs a step for itself gets it; and without a cache all take turns);
* when blocks run out the last in order is preempted: it gives its blocks back and is computed anew
  later. The first in order is never preempted by anyone, so someone always advances, and everyone ends.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from reference_engine.blocks import BlockPool, extend_digests
from reference_engine.config import Batching
from reference_engine.sequence import Sequence
from reference_engine.types import FinishReason, GenerationRequest, SampleRow, ScheduledChunk, StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the scheduler may do."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    eos_token_ids: tuple[int, ...] = ()
    batching: Batching = "continuous"  # static: nobody joins before the whole batch has ended
    is_chunked: bool = True  # may a prompt be computed in several steps?
    has_prefix_cache: bool = False


class Scheduler:
    """A queue, the running sequences, and the blocks of the KV cache (None: there is no cache)."""

    def __init__(self, policy: Policy, pool: BlockPool | None) -> None:
        self.policy = policy
        self.pool = pool
        self.running: dict[str, Sequence] = {}
        self.num_preemptions = 0
        self.prefix_cache_queries = 0  # tokens
        self.prefix_cache_hits = 0
        self._waiting: dict[str, Sequence] = {}
        self._queue: list[tuple[tuple[int, int], str]] = []  # of those waiting, in order
        self._num_arrivals = 0
        self._num_steps = 0
        self._copies: list[tuple[int, int]] = []  # of the step being planned
        self._is_open = True  # may anyone join in this step?

    @property
    def num_waiting(self) -> int:
        """Sequences that hold no block: new ones and preempted ones."""
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Is there anything to step for?"""
        return bool(self._waiting or self.running)

    @property
    def usage(self) -> float:
        """Share of the KV blocks that are held; without a cache 0."""
        return 1 - self.pool.num_free / self.pool.num_blocks if self.pool else 0.0

    def add(self, request: GenerationRequest) -> None:
        """Queue a request that can be served alone (see `engine.check_request`)."""
        assert request.request_id not in self._waiting
        assert request.request_id not in self.running
        self._enqueue(Sequence(request, self._num_arrivals))
        self._num_arrivals += 1

    def abort(self, request_id: str) -> bool:
        """Forget a request and free its blocks at once. False when it is not alive (any more)."""
        if request_id in self.running:
            self.finish(request_id)
            return True
        if request_id in self._waiting:
            self._dequeue(self._waiting[request_id])
            return True
        return False

    def schedule(self) -> StepPlan:
        """Plan a step. Empty only when there is no work."""
        self._copies = []
        self._is_open = self.policy.batching == "continuous" or not self.running
        if self.pool is None:
            chunks = self._recompute_in_turns()
        else:
            self._make_room()
            chunks = self._compute_and_admit()
        self._num_steps += 1
        return StepPlan(chunks=tuple(chunks), copies=tuple(self._copies))

    def commit(self, chunk: ScheduledChunk, token_id: int | None) -> FinishReason | None:
        """Record that a chunk was computed and what was sampled, if anything. A finished one is gone."""
        sequence = self.running[chunk.request_id]
        if self.pool is not None:
            sequence.num_computed = chunk.end
            if self.policy.has_prefix_cache:
                self._remember(sequence, self.pool, chunk.start)
        if token_id is None:
            return None
        sequence.token_ids.append(token_id)
        reason = self._finish_reason(sequence, token_id)
        if reason is not None:
            self.finish(chunk.request_id)
        return reason

    def finish(self, request_id: str) -> None:
        """Let a running sequence go: it ended, or for a reason only the caller can see (a stop string)."""
        self._release(self.running.pop(request_id))

    def check_integrity(self) -> None:
        """Assert what must hold between steps; tests call it after every operation."""
        assert not self._waiting.keys() & self.running.keys()
        assert self._queue == sorted((s.order, name) for name, s in self._waiting.items())
        assert len(self.running) <= self.policy.max_num_seqs
        for sequence in self._waiting.values():
            assert sequence.num_computed == 0
            assert not sequence.block_table
        for sequence in self.running.values():
            assert 0 <= sequence.num_computed < len(sequence.token_ids) <= self.policy.max_model_len
            if self.pool is not None:
                assert len(sequence.block_table) >= self.pool.num_needed(sequence.num_computed)
        if self.pool is not None:
            self.pool.check_integrity(s.block_table for s in self.running.values())

    # ------------------------------------------------------------------------------------ running

    def _make_room(self) -> None:
        """Blocks for what the running sequences compute next; preempts from the end when there are none."""
        for sequence in sorted(self.running.values(), key=lambda s: s.order):
            name = sequence.request.request_id
            while name in self.running and not self._extend(sequence, len(sequence.token_ids)):
                self._preempt(max(self.running.values(), key=lambda s: s.order))

    def _extend(self, sequence: Sequence, length: int) -> bool:
        """Give a sequence blocks for `length` positions, writable where it writes next. False: too few."""
        assert self.pool is not None
        at = sequence.num_computed // self.pool.block_size
        table = sequence.block_table
        must_copy = at < len(table) and not self.pool.is_writable(table[at])
        num_new = self.pool.num_needed(length) - len(table)
        if num_new + must_copy > self.pool.num_free:
            return False
        if must_copy:
            shared, table[at] = table[at], self.pool.take()
            self._copies.append((shared, table[at]))
            self.pool.release([shared])
        table.extend(self.pool.take() for _ in range(num_new))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        del self.running[sequence.request.request_id]
        self._release(sequence)
        sequence.num_computed = 0
        self._enqueue(sequence)
        self.num_preemptions += 1

    def _compute_and_admit(self) -> list[ScheduledChunk]:
        """First one token for all who decode, then prompts that are begun, then those who wait."""
        running = sorted(self.running.values(), key=lambda s: s.order)
        budget = self.policy.max_num_batched_tokens
        if self._head_goes_alone(budget - sum(s.num_to_compute for s in running)):
            running = []
        chunks: list[ScheduledChunk] = []
        for sequence in sorted(running, key=lambda s: s.num_to_compute > 1):
            budget -= self._compute(sequence, budget, chunks)
        while self._may_admit() and (admitted := self._admit(budget)) is not None:
            budget -= self._compute(admitted, budget, chunks)
        return chunks

    def _recompute_in_turns(self) -> list[ScheduledChunk]:
        """Without a cache: whole sequences, as many as fit; who was computed longest ago goes first."""
        while self._may_admit():
            self._start(self._waiting[self._queue[0][1]])
        budget, chunks = self.policy.max_num_batched_tokens, list[ScheduledChunk]()
        for sequence in sorted(self.running.values(), key=lambda s: (s.last_step, s.order)):
            budget -= self._compute(sequence, budget, chunks)
        return chunks

    def _compute(self, sequence: Sequence, budget: int, chunks: list[ScheduledChunk]) -> int:
        """Plan what the budget allows of a sequence; the number of tokens planned."""
        num_tokens = min(sequence.num_to_compute, budget)
        if num_tokens == 0 or (num_tokens < sequence.num_to_compute and not self.policy.is_chunked):
            return 0
        chunks.append(self._chunk(sequence, num_tokens))
        return num_tokens

    def _chunk(self, sequence: Sequence, num_tokens: int) -> ScheduledChunk:
        start, end = sequence.num_computed, sequence.num_computed + num_tokens
        sequence.last_step = self._num_steps
        return ScheduledChunk(
            request_id=sequence.request.request_id,
            start=start,
            token_ids=tuple(sequence.token_ids[start:end]),
            block_table=tuple(sequence.block_table),
            sample=SampleRow(
                sampling=sequence.request.sampling,
                token_ids=sequence.token_ids,
                num_prompt_tokens=sequence.num_prompt_tokens,
            )
            if end == len(sequence.token_ids)
            else None,
        )

    # ---------------------------------------------------------------------------------- admission

    def _may_admit(self) -> bool:
        return self._is_open and bool(self._queue) and len(self.running) < self.policy.max_num_seqs

    def _head_goes_alone(self, budget: int) -> bool:
        """With whole prompts: does the first in the queue fit into a step alone, but not beside others?"""
        if self.policy.is_chunked or not self._may_admit():
            return False
        head = self._waiting[self._queue[0][1]]
        blocks, num_computed = self._shared_beginning(head)
        is_too_long = len(head.token_ids) - num_computed > budget
        return is_too_long and self._fits(head, blocks) and not self._waits_for_prompt(head)

    def _admit(self, budget: int) -> Sequence | None:
        """Let the first in the queue run, if there is room for all that is known of it."""
        head = self._waiting[self._queue[0][1]]
        if self._waits_for_prompt(head):
            return None
        blocks, num_computed = self._shared_beginning(head)
        is_static = self.policy.batching == "static"
        smallest = 1 if self.policy.is_chunked else len(head.token_ids) - num_computed
        if (smallest > budget and not is_static) or not self._fits(head, blocks):
            return None
        assert self.pool is not None
        self.pool.hold(blocks)
        head.block_table, head.num_computed = blocks, num_computed
        is_extended = self._extend(head, self._length_to_reserve(head))
        assert is_extended
        self.prefix_cache_queries += len(head.token_ids) if self.policy.has_prefix_cache else 0
        self.prefix_cache_hits += num_computed
        self._start(head)
        return head

    def _start(self, sequence: Sequence) -> None:
        self._dequeue(sequence)
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.num_computed
        sequence.last_step = -1
        self.running[sequence.request.request_id] = sequence

    def _shared_beginning(self, sequence: Sequence) -> tuple[list[int], int]:
        """Blocks that hold the start of this sequence already, and for how many tokens.

        One token at least is left to compute: its logits are needed. If its block is shared as well it
        will be copied, and if there is no room for a copy it is left out.
        """
        assert self.pool is not None
        longest = len(sequence.token_ids) - 1
        parent = self._prompt_owner(sequence)
        if parent is not None:
            blocks = parent.block_table[: self.pool.num_needed(sequence.num_prompt_tokens)]
            return blocks, longest
        if not self.policy.has_prefix_cache:
            return [], 0
        extend_digests(sequence.digests, sequence.token_ids, self.pool.block_size)
        blocks = self.pool.find(sequence.digests)
        if len(blocks) * self.pool.block_size > longest and not self._fits(sequence, blocks):
            blocks.pop()
        return blocks, min(len(blocks) * self.pool.block_size, longest)

    def _prompt_owner(self, sequence: Sequence) -> Sequence | None:
        """The running sequence that has computed this very prompt, if it is to be shared."""
        parent = self.running.get(sequence.request.shares_prompt_with or "")
        is_new = sequence.num_output_tokens == 0
        can_share = self.policy.has_prefix_cache and is_new
        return parent if parent is not None and can_share and not self._waits_for_prompt(sequence) else None

    def _waits_for_prompt(self, sequence: Sequence) -> bool:
        parent = self.running.get(sequence.request.shares_prompt_with or "")
        is_begun = parent is not None and parent.num_computed < parent.num_prompt_tokens
        return is_begun and self.policy.has_prefix_cache and sequence.num_output_tokens == 0

    def _fits(self, sequence: Sequence, shared: list[int]) -> bool:
        """Room for it, a copy of what it writes into, and one more block for everyone who will want one?

        Without the last it would soon be preempted by those before it, and computed in vain.
        """
        assert self.pool is not None
        needed = self.pool.num_needed
        num_new = needed(self._length_to_reserve(sequence)) - len(shared)
        must_copy = bool(shared) and len(shared) * self.pool.block_size >= len(sequence.token_ids)
        num_growing = sum(len(s.block_table) < needed(s.max_length) for s in self.running.values())
        return num_new + must_copy + num_growing <= self.pool.num_free_after(shared)

    def _length_to_reserve(self, sequence: Sequence) -> int:
        """A static batch never gives a place away, so it must never need one that is not there."""
        is_static = self.policy.batching == "static"
        return sequence.max_length if is_static else len(sequence.token_ids)

    # -------------------------------------------------------------------------------------- books

    def _enqueue(self, sequence: Sequence) -> None:
        name = sequence.request.request_id
        self._waiting[name] = sequence
        bisect.insort(self._queue, (sequence.order, name))

    def _dequeue(self, sequence: Sequence) -> None:
        name = sequence.request.request_id
        del self._waiting[name]
        del self._queue[bisect.bisect_left(self._queue, (sequence.order, name))]

    def _release(self, sequence: Sequence) -> None:
        if self.pool is not None:
            self.pool.release(sequence.block_table)
        sequence.block_table = []

    def _remember(self, sequence: Sequence, pool: BlockPool, start: int) -> None:
        """Let the prefix cache know the blocks that were filled by the chunk that began at `start`."""
        first, end = start // pool.block_size, sequence.num_computed // pool.block_size
        if first < end:
            extend_digests(sequence.digests, sequence.token_ids, pool.block_size)
            for at in range(first, end):
                pool.know(sequence.block_table[at], sequence.digests[at])

    def _finish_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        sampling = sequence.request.sampling
        if token_id in self.policy.eos_token_ids and not sampling.ignore_eos:
            return "stop"
        if token_id in sampling.stop_token_ids:
            return "stop"
        is_full = len(sequence.token_ids) >= self.policy.max_model_len
        return "length" if is_full or sequence.num_output_tokens >= sampling.max_tokens else None
