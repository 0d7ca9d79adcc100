"""The contiguous KV cache: one slab a layer, one row of `max_model_len` positions a slot.

The simplest cache there is, and the reference for others. Its price: a slot is as long as the longest
sequence allowed, and a batch attends over as many positions as its longest member has.
"""

from __future__ import annotations

import contextlib
import math
import mmap

import torch
from torch import Tensor

from reference_engine.config import EngineConfig
from reference_engine.errors import ConfigError
from reference_engine.model_config import ModelConfig


class ContiguousCache:
    """Keys and values `[layers][slots, K, max_model_len, D]`, written by (slot, position)."""

    def __init__(self, model: ModelConfig, config: EngineConfig, dtype: torch.dtype) -> None:
        self.shape = (config.max_num_seqs, model.num_key_value_heads, config.max_model_len, model.head_dim)
        self.num_layers = model.num_hidden_layers
        self.k = [self._slab(config.device, dtype) for _ in range(model.num_hidden_layers)]
        self.v = [self._slab(config.device, dtype) for _ in range(model.num_hidden_layers)]

    def _slab(self, device: str, dtype: torch.dtype) -> Tensor:
        """Zeros, because masked positions are multiplied by 0 and 0 * NaN is NaN."""
        if device != "cpu":
            return torch.zeros(self.shape, device=device, dtype=dtype)
        # Untouched pages read as zeros and take no memory before they are written. Small pages: with huge
        # ones the first token of each head of each slot would cost 2 MB, to be cleared in the first step.
        num_bytes = math.prod(self.shape) * dtype.itemsize
        try:
            pages = mmap.mmap(-1, num_bytes)
        except (OSError, OverflowError):
            raise ConfigError(
                f"no room for KV slots of {num_bytes / 1e9:.1f} GB for each of {2 * self.num_layers} slabs; "
                "lower --max-num-seqs or --max-model-len"
            ) from None
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages
                pages.madvise(mmap.MADV_NOHUGEPAGE)
        return torch.frombuffer(pages, dtype=dtype).view(self.shape)

    def write(self, layer: int, slots: Tensor, positions: Tensor, *, k: Tensor, v: Tensor) -> None:
        """Store `k, v [T, K, D]` at `slots [T], positions [T]`."""
        self.k[layer][slots, :, positions] = k
        self.v[layer][slots, :, positions] = v
