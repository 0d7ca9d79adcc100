"""One step of arithmetic: a `StepPlan` in, what was sampled for each of its chunks out.

The only module that turns plans into tensors. It knows nothing of queues, text or requests' lives.
"""

from __future__ import annotations

import torch

from reference_engine.attention import FastAttention, PlainAttention, order
from reference_engine.config import CacheSize, EngineConfig
from reference_engine.kv_cache import KVCache
from reference_engine.model import Decoder
from reference_engine.sampling import sample
from reference_engine.types import SampledToken, ScheduledChunk, StepPlan

Outcome = tuple[ScheduledChunk, SampledToken | None]  # None: more of the prompt follows


class Runner:
    """The network and its KV cache. Blocks need no clearing: what is stale is masked, then overwritten."""

    def __init__(
        self, model: Decoder, config: EngineConfig, size: CacheSize | None, control_ids: tuple[int, ...]
    ) -> None:
        self.model = model
        self.device = config.device
        dtype = model.embedding.weight.dtype
        self.cache = KVCache(model.config, size, config.device, dtype) if size is not None else None
        self.control_ids = torch.tensor(control_ids, dtype=torch.long, device=config.device)
        self._attention = PlainAttention if config.attention == "plain" else FastAttention

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> list[Outcome]:
        """Compute every chunk; sample one token from the end of those that are complete."""
        for source, target in plan.copies:
            assert self.cache is not None
            self.cache.copy(source, target)
        chunks = sorted(plan.chunks, key=order)
        token_ids = torch.tensor([t for chunk in chunks for t in chunk.token_ids], device=self.device)
        attention = self._attention(self.cache, chunks, self.device)
        hidden = self.model(token_ids, attention.rows.positions, attention)  # [T, d]
        rows = [chunk.sample for chunk in chunks if chunk.sample is not None]
        sampled = iter(sample(self._logits(hidden, chunks), rows, self.control_ids) if rows else ())
        return [(chunk, None if chunk.sample is None else next(sampled)) for chunk in chunks]

    def _logits(self, hidden: torch.Tensor, chunks: list[ScheduledChunk]) -> torch.Tensor:
        """`[T, d]` -> `[S, V]`: the last row of each chunk that is sampled from, no other."""
        ends, at = [], 0
        for chunk in chunks:
            at += len(chunk.token_ids)
            if chunk.sample is not None:
                ends.append(at - 1)
        return self.model.logits(hidden[torch.tensor(ends, device=self.device)])
