"""Who computes what in the next step: continuous batching over KV slots, in plain Python.

In: sequences. Out: `StepPlan`s; then the sampled tokens come back through `commit`. It never sees a
tensor, a clock or text, so that its promises can be tested with random schedules:

* first come, first served: a waiting request is never overtaken;
* a step never computes more than `max_num_batched_tokens` tokens or `max_num_seqs` sequences;
* every running sequence advances in every step, but for the step in which a prompt that is too long
  to share goes alone; there are at most as many such steps as slots before someone must finish.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

from reference_engine.sequence import Sequence
from reference_engine.types import FinishReason, GenerationRequest, ScheduledChunk, StepPlan


class Scheduler:
    """A queue, the running sequences, and the slots of the KV cache."""

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        eos_token_ids: tuple[int, ...] = (),
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.eos_token_ids = frozenset(eos_token_ids)
        self.waiting: OrderedDict[str, Sequence] = OrderedDict()
        self.running: dict[str, Sequence] = {}
        self._free_slots = list(range(max_num_seqs))  # a heap: low slots first keep the batch dense

    @property
    def has_work(self) -> bool:
        """Is there anything to step for?"""
        return bool(self.waiting or self.running)

    def add(self, request: GenerationRequest) -> None:
        """Queue a request. Its prompt must fit `max_model_len` with room for one token."""
        assert 0 < len(request.prompt_token_ids) < self.max_model_len
        assert request.request_id not in self.waiting
        assert request.request_id not in self.running
        self.waiting[request.request_id] = Sequence(request)

    def abort(self, request_id: str) -> bool:
        """Forget a request and free its slot at once. False when it is not alive (any more)."""
        if self.waiting.pop(request_id, None) is not None:
            return True
        if request_id in self.running:
            self.finish(request_id)
            return True
        return False

    def schedule(self) -> StepPlan:
        """Plan a step: one token of every running sequence, then as many prompts as fit."""
        chunks = [self._chunk(sequence) for sequence in self.running.values()]
        budget = self.max_num_batched_tokens - len(chunks)
        if self._head_goes_alone(budget):
            return StepPlan(chunks=(self._admit(),))
        while self.waiting and self._free_slots and self._head_length() <= budget:
            budget -= self._head_length()
            chunks.append(self._admit())
        return StepPlan(chunks=tuple(chunks))

    def commit(self, chunk: ScheduledChunk, token_id: int) -> FinishReason | None:
        """Record that a chunk was computed and what was sampled. A finished sequence is gone."""
        sequence = self.running[chunk.request_id]
        sequence.num_computed = chunk.end
        sequence.token_ids.append(token_id)
        reason = self._finish_reason(sequence, token_id)
        if reason is not None:
            self.finish(chunk.request_id)
        return reason

    def finish(self, request_id: str) -> None:
        """Let a running sequence go, for a reason only the caller can see (a stop string)."""
        slot = self.running.pop(request_id).slot
        assert slot is not None
        heapq.heappush(self._free_slots, slot)

    def check_integrity(self) -> None:
        """Assert what must hold between steps; tests call it after every operation."""
        used = [sequence.slot for sequence in self.running.values()]
        assert sorted([*used, *self._free_slots]) == list(range(self.max_num_seqs)), "a slot leaked"  # type: ignore[type-var]
        assert not self.waiting.keys() & self.running.keys()
        assert all(sequence.slot is None for sequence in self.waiting.values())
        for sequence in (*self.waiting.values(), *self.running.values()):
            sequence.check_integrity()

    def _finish_reason(self, sequence: Sequence, token_id: int) -> FinishReason | None:
        sampling = sequence.request.sampling
        if token_id in self.eos_token_ids and not sampling.ignore_eos:
            return "stop"
        is_full = len(sequence.token_ids) >= self.max_model_len
        return "length" if is_full or sequence.num_output_tokens >= sampling.max_tokens else None

    def _head_length(self) -> int:
        return len(next(iter(self.waiting.values())).token_ids)

    def _head_goes_alone(self, budget: int) -> bool:
        """Does the first in the queue fit into a step of its own, but not beside those running?"""
        return bool(self.waiting and self._free_slots) and self._head_length() > budget

    def _admit(self) -> ScheduledChunk:
        request_id, sequence = self.waiting.popitem(last=False)
        sequence.slot = heapq.heappop(self._free_slots)
        self.running[request_id] = sequence
        return self._chunk(sequence)

    @staticmethod
    def _chunk(sequence: Sequence) -> ScheduledChunk:
        assert sequence.slot is not None
        return ScheduledChunk(
            request_id=sequence.request.request_id,
            slot=sequence.slot,
            start=sequence.num_computed,
            token_ids=tuple(sequence.token_ids[sequence.num_computed :]),
            sampling=sequence.request.sampling,
        )
