"""How the tokens of one step attend: each to its own sequence, through the blocks of the KV cache.

Built once a step from the plan, then called once a layer (it is the `Attend` of `model`). Two classes
with the same signature: `PlainAttention` is the specification, sequence by sequence and by the textbook;
`FastAttention` computes the same without a loop over decoding sequences.

Rows of a step are ordered: first the S chunks of one token (decode), by length, then prompts. The
decoding rows of a CPU are computed block by block *in place*: one fused call over a range of the pool
gives every block's own softmax and the logarithm of its denominator, and the blocks of a sequence are
put together with those, exactly (split KV as in Flash-Decoding, Dao et al. 2023; the algebra is that of
the online softmax, Milakov and Gimelshein 2018). Keys and values are read once and never gathered into a
batch.

Letters: T rows of the step, S one-token rows, P (block, row) pairs, B block size, H query heads,
K key/value heads, G = H/K, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from reference_engine.kv_cache import KVCache
from reference_engine.types import ScheduledChunk

Ints = NDArray[np.int64]

# Blocks nobody asked for are cheaper to compute than a further call, up to about so many in a row.
MAX_GAP = 8
# More ranges than this are a scattered pool: copying its blocks together is cheaper than so many calls.
MAX_RANGES = 8
# A row so many times as long as the one in the middle is computed alone.
LONG = 4


class Rows:
    """The rows of a step, in order, and where their keys and values go."""

    def __init__(self, cache: KVCache | None, chunks: Sequence[ScheduledChunk], device: str) -> None:
        self.singles = [chunk for chunk in chunks if is_single(chunk)]
        self.prompts = chunks[len(self.singles) :]
        assert not any(is_single(chunk) for chunk in self.prompts), "one-token chunks come first"
        positions = np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks])
        self.positions = torch.from_numpy(positions).to(device)  # [T]
        self.slots: Tensor | None = None  # [T]; without a cache nothing is kept
        if cache is not None:
            size = cache.block_size
            slots = [slots_of(chunk, size) for chunk in chunks]
            self.slots = torch.from_numpy(np.concatenate(slots)).to(device)


def is_single(chunk: ScheduledChunk) -> bool:
    """One token that attends to a cache: decode, or the rest of a prompt that was found in it."""
    return len(chunk.token_ids) == 1 and bool(chunk.block_table)


def order(chunk: ScheduledChunk) -> tuple[bool, int]:
    """The order in which chunks make up a step's rows."""
    return not is_single(chunk), chunk.end


def slots_of(chunk: ScheduledChunk, block_size: int) -> Ints:
    """Slot of each token of a chunk."""
    first = chunk.start // block_size
    table = np.array(chunk.block_table[first : -(-chunk.end // block_size)])
    at = np.arange(chunk.start, chunk.end)
    slots: Ints = table[at // block_size - first] * block_size + at % block_size
    return slots


class PlainAttention:
    """The specification: every chunk alone, softmax(q k^T / sqrt(D)) v in float32."""

    def __init__(self, cache: KVCache | None, chunks: Sequence[ScheduledChunk], device: str) -> None:
        self.cache = cache
        self.chunks = chunks
        self.rows = Rows(cache, chunks, device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`q [T, H, D]`, `k, v [T, K, D]` -> `[T, H, D]`."""
        if self.cache is not None:
            assert self.rows.slots is not None
            self.cache.write(layer, self.rows.slots, k, v)
        out, begin = [], 0
        for chunk in self.chunks:
            end = begin + len(chunk.token_ids)
            keys, values = k[begin:end], v[begin:end]  # [C, K, D]
            if self.cache is not None:
                keys, values = (piece.transpose(0, 1) for piece in Context(self.cache, chunk)(layer))
            out.append(self._attend(q[begin:end], keys, values, chunk.start))
            begin = end
        return torch.cat(out)

    @staticmethod
    def _attend(q: Tensor, k: Tensor, v: Tensor, start: int) -> Tensor:
        group = q.shape[1] // k.shape[1]
        k, v = (t.float().repeat_interleave(group, dim=1) for t in (k, v))  # [C, H, D]
        scores = torch.einsum("thd,chd->htc", q.float(), k) * q.shape[-1] ** -0.5
        at = torch.arange(start, start + q.shape[0], device=q.device)
        is_later = torch.arange(k.shape[0], device=q.device) > at[:, None]  # [t, C]
        weights = scores.masked_fill(is_later, float("-inf")).softmax(-1)
        return torch.einsum("htc,chd->thd", weights, v).to(q.dtype)


class FastAttention:
    """The same, fast: decoding rows together, prompts by the fused kernel of `torch.nn.functional`."""

    def __init__(self, cache: KVCache | None, chunks: Sequence[ScheduledChunk], device: str) -> None:
        self.cache = cache
        self.rows = Rows(cache, chunks, device)
        self.parts: list[Part] = []  # in order of their rows
        if self.rows.singles:
            assert cache is not None
            together, apart = split_by_length(self.rows.singles, cache.block_size)
            kind = DecodeInPlace if device == "cpu" else DecodeGathered
            if together:
                self.parts.append(kind(cache, together, device))
            self.parts += [DecodeOne(cache, chunk) for chunk in apart]
        self.parts += [Prompt(cache, chunk, device) for chunk in self.rows.prompts]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`q [T, H, D]`, `k, v [T, K, D]` -> `[T, H, D]`."""
        if self.cache is not None:
            assert self.rows.slots is not None
            self.cache.write(layer, self.rows.slots, k, v)
        if len(self.parts) == 1:
            return self.parts[0](layer, q, k, v)
        sizes = [part.num_rows for part in self.parts]
        rows = zip(self.parts, *(torch.split(t, sizes) for t in (q, k, v)), strict=True)
        return torch.cat([part(layer, *qkv) for part, *qkv in rows])


class Part(Protocol):
    """Some rows of a step."""

    num_rows: int

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`q [rows, H, D]`, `k, v [rows, K, D]` (of these rows, in the cache already) -> `[rows, H, D]`."""


def split_by_length(
    singles: Sequence[ScheduledChunk], block_size: int
) -> tuple[Sequence[ScheduledChunk], Sequence[ScheduledChunk]]:
    """Those to be computed together, and those so long (or so few) that they are better alone.

    Together everyone costs a little for every block of the longest, so that it should not stand out.
    `singles` are ordered by length.
    """
    if len(singles) == 1:
        return [], singles
    typical = singles[len(singles) // 2].end
    limit = LONG * max(typical, block_size)
    cut = next((at for at, chunk in enumerate(singles) if chunk.end > limit), len(singles))
    return singles[:cut], singles[cut:]


class Prompt:
    """Several tokens of one sequence: to each other, and to what of it is in the cache."""

    def __init__(self, cache: KVCache | None, chunk: ScheduledChunk, device: str) -> None:
        self.num_rows = len(chunk.token_ids)
        self.context: Context | None = None  # None: there is nothing before these rows
        self.mask: Tensor | None = None  # [rows, C]
        if chunk.start > 0:
            assert cache is not None
            self.context = Context(cache, chunk)
            at = torch.arange(chunk.start, chunk.end, device=device)
            self.mask = torch.arange(chunk.end, device=device) <= at[:, None]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Part`."""
        keys, values = k.transpose(0, 1), v.transpose(0, 1)
        if self.context is not None:
            keys, values = self.context(layer)
        mixed = functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=self.mask,
            is_causal=self.mask is None,
            enable_gqa=True,
        )
        return mixed[0].transpose(0, 1)


class Context:
    """Positions 0 ... end - 1 of a chunk's sequence as one piece: where its blocks lie side by side a view,
    else a copy. Which it is is found out once a step, not once a layer.
    """

    def __init__(self, cache: KVCache, chunk: ScheduledChunk) -> None:
        self.cache, self.end = cache, chunk.end
        table = chunk.block_table[: -(-chunk.end // cache.block_size)]
        is_range = table == tuple(range(table[0], table[0] + len(table)))
        self._range = slice(table[0], table[0] + len(table)) if is_range else None
        self._numbers = None if is_range else torch.tensor(table, device=cache.k[0].device)

    def __call__(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values, each `[K, end, D]`."""
        return self._piece(self.cache.k[layer]), self._piece(self.cache.v[layer])

    def _piece(self, cache: Tensor) -> Tensor:
        some = cache[:, self._range] if self._numbers is None else cache.index_select(1, self._numbers)
        return some.flatten(1, 2)[:, : self.end]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Which block is attended to by which row: the block tables of S one-token chunks, flattened.

    `block, row, column, length` are each `[P]`: `column` is the place in the row's block table, `length`
    how many positions of the block the row may see.
    """

    block: Ints
    row: Ints
    column: Ints
    length: Ints

    @classmethod
    def of(cls, singles: Sequence[ScheduledChunk], block_size: int) -> Pairs:
        ends = np.array([chunk.end for chunk in singles])
        counts = -(-ends // block_size)
        block = np.concatenate(
            [np.array(c.block_table[:n]) for c, n in zip(singles, counts.tolist(), strict=True)]
        )
        row = np.repeat(np.arange(len(singles)), counts)
        column = np.arange(len(block)) - np.repeat(counts.cumsum() - counts, counts)
        length = np.minimum(ends[row] - column * block_size, block_size)
        return cls(block, row, column, length)

    def take(self, at: Ints) -> Pairs:
        """Some of them, in this order."""
        return Pairs(self.block[at], self.row[at], self.column[at], self.length[at])


class Range:
    """Blocks of the pool for one call of the kernel: a slice of it, read in place, or a list, copied.

    `pairs` are in the order of the blocks, at most one a block; `at [p]` is where they are among the n
    blocks. A block without a pair is computed for row 0 and thrown away.
    """

    def __init__(self, pairs: Pairs, blocks: slice | Tensor, at: Ints, num_blocks: int) -> None:
        self.pairs, self.at, self.num_blocks = pairs, at, num_blocks
        self._blocks = blocks
        row, length = np.zeros(num_blocks, np.int64), np.ones(num_blocks, np.int64)
        row[at], length[at] = pairs.row, pairs.length
        self._row = torch.from_numpy(row)
        self._width = int(length.max())  # of a slab only as much is read as its longest sequence has
        self._mask: Tensor | None = None
        if (length != self._width).any():
            hidden = np.arange(self._width) >= length[:, None]
            mask = np.where(hidden, np.float32(-np.inf), np.float32(0))
            self._mask = torch.from_numpy(mask)[:, None, None, :]  # [n, 1, 1, width]

    def __call__(self, k: Tensor, v: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """`k, v [K, N, B, D]`, `q [S, K, G, D]` -> mixed values `[n, K, G, D]`, log-sum-exp `[n, K, G]`.

        The G query heads that share a key head are passed as if they were G query positions, so that
        keys are read once for all of them.
        """
        rows = q.index_select(0, self._row)
        mask = None if self._mask is None else self._mask.to(q.dtype).expand(-1, q.shape[1], q.shape[2], -1)
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001
            rows, self._view(k), self._view(v), attn_mask=mask
        )
        return out, lse

    def _view(self, cache: Tensor) -> Tensor:
        blocks = self._blocks
        some = cache[:, blocks] if isinstance(blocks, slice) else cache.index_select(1, blocks)
        return some[:, :, : self._width].transpose(0, 1)


def make_ranges(pairs: Pairs) -> list[Range]:
    """Cut the blocks in use into few ranges; what is shared by several rows or scattered is copied."""
    order = np.argsort(pairs.block, kind="stable")
    pairs = pairs.take(order)
    is_repeated = np.concatenate(([False], pairs.block[1:] == pairs.block[:-1]))
    once, again = pairs.take(np.flatnonzero(~is_repeated)), pairs.take(np.flatnonzero(is_repeated))
    cuts = np.flatnonzero(np.diff(once.block) > MAX_GAP) + 1
    if len(cuts) >= MAX_RANGES:
        return [_copied(pairs)]
    ranges = [_in_place(once.take(part)) for part in np.split(np.arange(len(once.block)), cuts)]
    return [*ranges, _copied(again)] if len(again.block) else ranges


def _in_place(pairs: Pairs) -> Range:
    first, end = int(pairs.block[0]), int(pairs.block[-1]) + 1
    return Range(pairs, slice(first, end), pairs.block - first, end - first)


def _copied(pairs: Pairs) -> Range:
    num_blocks = len(pairs.block)
    return Range(pairs, torch.from_numpy(pairs.block), np.arange(num_blocks), num_blocks)


class DecodeInPlace:
    """One-token rows at once, on the blocks where they lie. For the CPU: its kernel tells the log-sum-exp
    and takes any strides.
    """

    def __init__(self, cache: KVCache, singles: Sequence[ScheduledChunk], _device: str) -> None:
        self.cache = cache
        self.num_rows = len(singles)
        pairs = Pairs.of(singles, cache.block_size)
        self.ranges = make_ranges(pairs)
        num_columns = int(pairs.column.max()) + 1
        self.is_split = num_columns > 1
        # Which of the computed blocks is in which cell of the table [S, columns]; empty cells weigh nothing.
        source = np.full((self.num_rows, num_columns), -1)
        begin = 0
        for part in self.ranges:
            source[part.pairs.row, part.pairs.column] = begin + part.at
            begin += part.num_blocks
        self.source = torch.from_numpy(np.maximum(source, 0).reshape(-1))
        self.bias: Tensor | None = None  # [S, columns, 1, 1]
        if (source < 0).any():
            bias = np.where(source < 0, np.float32(-np.inf), np.float32(0))
            self.bias = torch.from_numpy(bias)[:, :, None, None]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Part`."""
        keys, values = self.cache.k[layer], self.cache.v[layer]
        grouped = q.view(len(q), k.shape[1], -1, q.shape[2])  # [S, K, G, D]
        parts = [part(keys, values, grouped) for part in self.ranges]
        out, lse = parts[0] if len(parts) == 1 else (torch.cat(part) for part in zip(*parts, strict=True))
        out = out.index_select(0, self.source)  # [S * columns, K, G, D]
        return (self._merge(out, lse.index_select(0, self.source)) if self.is_split else out).flatten(1, 2)

    def _merge(self, out: Tensor, lse: Tensor) -> Tensor:
        """Weigh each block by its share of the row's denominator: `[S * columns, K, G, D]` -> `[S, K, G, D]`.

        Spelled out: torch's softmax and scatter start all threads however little there is to do.
        """
        lse = lse.view(self.num_rows, -1, *lse.shape[1:])
        if self.bias is not None:
            lse = lse + self.bias
        weight = (lse - lse.amax(1, keepdim=True)).exp_()[..., None].to(out.dtype)  # [S, columns, K, G, 1]
        weighed = out.view(*weight.shape[:-1], -1).mul_(weight)
        return weighed.sum(1).div_(weight.sum(1))


class DecodeOne:
    """A single one-token row: its blocks as one piece, in place where they lie side by side."""

    num_rows = 1

    def __init__(self, cache: KVCache, chunk: ScheduledChunk) -> None:
        self.context = Context(cache, chunk)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Part`."""
        keys, values = (piece[None] for piece in self.context(layer))
        grouped = q.view(1, keys.shape[1], -1, q.shape[2])  # [1, K, G, D]
        return functional.scaled_dot_product_attention(grouped, keys, values).flatten(1, 2)


class DecodeGathered:
    """The same for any device: each row's blocks are copied into a batch as long as the longest."""

    def __init__(self, cache: KVCache, singles: Sequence[ScheduledChunk], device: str) -> None:
        self.cache = cache
        self.num_rows = len(singles)
        pairs = Pairs.of(singles, cache.block_size)
        shape = (len(singles), int(pairs.column.max()) + 1)
        table, length = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        table[pairs.row, pairs.column], length[pairs.row, pairs.column] = pairs.block, pairs.length
        is_seen = np.arange(cache.block_size) < length[:, :, None]  # [S, columns, B]
        self.mask = torch.from_numpy(is_seen.reshape(shape[0], 1, 1, -1)).to(device)
        self.table = torch.from_numpy(table.reshape(-1)).to(device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `Part`."""
        keys, values = (self._gather(t[layer], q.shape[0]) for t in (self.cache.k, self.cache.v))
        grouped = q.view(len(q), keys.shape[1], -1, q.shape[2])  # [S, K, G, D]
        return functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=self.mask).flatten(
            1, 2
        )

    def _gather(self, cache: Tensor, num_rows: int) -> Tensor:
        """`[K, N, B, D]` -> `[S, K, columns * B, D]`."""
        some = cache.index_select(1, self.table)  # [K, S * columns, B, D]
        return some.view(cache.shape[0], num_rows, -1, cache.shape[3]).transpose(0, 1)
