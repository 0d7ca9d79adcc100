"""How the tokens of one step attend: each to its own sequence, through the contiguous cache.

Built once a step from the plan, then called once a layer. Rows of the step are ordered: first all
chunks of one token (decode), which are computed together whatever their number, then prompts.

Letters: T rows of the step, S one-token rows, R slots touched by them, C longest context among them,
H query heads, K key/value heads, G = H/K, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from reference_engine.kv_cache import ContiguousCache
from reference_engine.types import ScheduledChunk


class SlotAttention:
    """An `Attend` (see `model`) for one step."""

    def __init__(self, cache: ContiguousCache, chunks: list[ScheduledChunk], device: str) -> None:
        self.cache = cache
        singles = [chunk for chunk in chunks if len(chunk.token_ids) == 1]
        self.prompts = chunks[len(singles) :]
        assert all(len(chunk.token_ids) > 1 for chunk in self.prompts), "one-token chunks come first"
        rows = [(c.slot, c.start + i) for c in chunks for i in range(len(c.token_ids))]
        self.slots, self.positions = torch.tensor(rows, device=device).unbind(1)  # each [T]
        self.num_singles = len(singles)
        if singles:
            self._prepare_singles(singles, device)

    def _prepare_singles(self, singles: list[ScheduledChunk], device: str) -> None:
        """A mask `[R, 1, 1, C]`. Slots without a row attend to their position 0 and are thrown away:
        computing a few idle rows is cheaper than gathering the keys of the busy ones.
        """
        self.num_slots = max(chunk.slot for chunk in singles) + 1
        self.context = max(chunk.end for chunk in singles)
        last = torch.zeros(self.num_slots, dtype=torch.long, device=device)
        last[self.slots[: self.num_singles]] = self.positions[: self.num_singles]
        hidden = torch.arange(self.context, device=device) > last[:, None]  # [R, C]
        mask = torch.zeros(hidden.shape, device=device, dtype=self.cache.k[0].dtype)
        self.mask = mask.masked_fill_(hidden, float("-inf"))[:, None, None, :]
        self.is_dense = [chunk.slot for chunk in singles] == list(range(self.num_slots))

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`q [T, H, D]`, `k, v [T, K, D]` -> `[T, H, D]`."""
        self.cache.write(layer, self.slots, self.positions, k=k, v=v)
        out = torch.empty_like(q)
        begin = self.num_singles
        if begin:
            out[:begin] = self._singles(layer, q[:begin])
        for chunk in self.prompts:
            end = begin + len(chunk.token_ids)
            out[begin:end] = _causal(q[begin:end], k[begin:end], v[begin:end])
            begin = end
        return out

    def _singles(self, layer: int, q: Tensor) -> Tensor:
        """All one-token rows at once: `q [S, H, D]` -> `[S, H, D]`.

        The G query heads that share a key head are laid out as if they were G query positions, so
        that keys are read once for all of them and never copied.
        """
        keys = self.cache.k[layer][: self.num_slots, :, : self.context]
        values = self.cache.v[layer][: self.num_slots, :, : self.context]
        num_heads, num_kv_heads = q.shape[1], keys.shape[1]
        busy = self.slots[: self.num_singles]
        rows = q if self.is_dense else q.new_zeros(self.num_slots, *q.shape[1:]).index_copy_(0, busy, q)
        grouped = rows.reshape(-1, num_kv_heads, num_heads // num_kv_heads, q.shape[2])  # [R, K, G, D]
        mask = self.mask.expand(-1, num_kv_heads, grouped.shape[2], -1)
        mixed = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask).flatten(1, 2)
        return mixed if self.is_dense else mixed[busy]


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A whole prompt attends to itself: `q [T, H, D]`, `k, v [T, K, D]` -> `[T, H, D]`."""
    q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return mixed[0].transpose(0, 1)
