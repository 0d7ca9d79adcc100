"""One step of arithmetic: a `StepPlan` in, one token for each of its chunks out.

The only module that turns plans into tensors. It knows nothing of queues, text or requests' lives.
"""

from __future__ import annotations

import torch

from reference_engine.attention import SlotAttention
from reference_engine.config import EngineConfig
from reference_engine.kv_cache import ContiguousCache
from reference_engine.model import Decoder
from reference_engine.sampling import sample
from reference_engine.types import ScheduledChunk, StepPlan


class Runner:
    """The network and its KV cache. Slots need no clearing: what is stale is masked, then overwritten."""

    def __init__(self, model: Decoder, config: EngineConfig, control_ids: tuple[int, ...]) -> None:
        self.model = model
        self.device = config.device
        self.cache = ContiguousCache(model.config, config, model.embedding.weight.dtype)
        self.control_ids = torch.tensor(control_ids, dtype=torch.long, device=config.device)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> list[tuple[ScheduledChunk, int]]:
        """Compute every chunk and sample one token from the end of each."""
        # One-token rows first, and by slot, so that a full batch is a plain slice of the cache.
        chunks = sorted(plan.chunks, key=lambda chunk: (len(chunk.token_ids) > 1, chunk.slot))
        token_ids = torch.tensor([t for chunk in chunks for t in chunk.token_ids], device=self.device)
        attention = SlotAttention(self.cache, chunks, self.device)
        hidden = self.model(token_ids, attention.positions, attention)  # [T, d]
        ends = torch.tensor([len(chunk.token_ids) for chunk in chunks], device=self.device).cumsum(0) - 1
        logits = self.model.logits(hidden[ends])  # [S, V]: the last row of each chunk only
        params = [chunk.sampling for chunk in chunks]
        tokens = sample(logits, params, [chunk.end for chunk in chunks], self.control_ids)
        return list(zip(chunks, tokens, strict=True))
