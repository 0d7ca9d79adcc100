"""The KV cache's tensors: keys and values of all layers, in blocks.

    paged        many small blocks; a sequence takes one when the last is full
    contiguous   one block of `max_model_len` positions a sequence: the classic slab. As many sequences
                 fit as slabs do, however short they are

Both are the same tensors with another block size, so that everything else is the same code. Which block
belongs to whom is the scheduler's business (`blocks`).
"""

from __future__ import annotations

import contextlib
import math
import mmap

import torch
from torch import Tensor

from reference_engine.config import CacheSize
from reference_engine.errors import ConfigError
from reference_engine.model_config import ModelConfig


class KVCache:
    """Keys and values, each `[layers][K, num_blocks, block_size, D]`.

    A head's positions lie together: blocks with consecutive numbers are then one piece of memory, and any
    range of blocks is a view without copying.
    """

    def __init__(self, model: ModelConfig, size: CacheSize, device: str, dtype: torch.dtype) -> None:
        self.shape = (model.num_key_value_heads, size.num_blocks, size.block_size, model.head_dim)
        self.block_size = size.block_size
        self.k = [self._slab(device, dtype) for _ in range(model.num_hidden_layers)]
        self.v = [self._slab(device, dtype) for _ in range(model.num_hidden_layers)]

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store `k, v [T, K, D]` at `slots [T]`, where slot = block number * block_size + offset."""
        for cache, new in ((self.k[layer], k), (self.v[layer], v)):
            cache.flatten(1, 2).index_copy_(1, slots, new.transpose(0, 1))

    def copy(self, source: int, target: int) -> None:
        """Copy one block, in all layers."""
        for cache in (*self.k, *self.v):
            cache[:, target] = cache[:, source]

    def _slab(self, device: str, dtype: torch.dtype) -> Tensor:
        """Zeros, because masked positions are multiplied by 0 and 0 * NaN is NaN."""
        if device != "cpu":
            return torch.zeros(self.shape, device=device, dtype=dtype)
        # Untouched pages read as zeros and take no memory before they are written. Small pages: with huge
        # ones the first token of each head would cost 2 MB, to be cleared in the first step.
        num_bytes = math.prod(self.shape) * dtype.itemsize
        try:
            pages = mmap.mmap(-1, num_bytes)
        except (OSError, OverflowError):
            raise ConfigError(
                f"no room for a KV cache with {num_bytes / 1e9:.1f} GB in each of its slabs; "
                "lower --kv-cache-memory, or --max-num-seqs and --max-model-len"
            ) from None
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages
                pages.madvise(mmap.MADV_NOHUGEPAGE)
        return torch.frombuffer(pages, dtype=dtype).view(self.shape)
