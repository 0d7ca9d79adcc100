"""Fast attention equals the textbook's, wherever the blocks lie and whoever shares them."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine import attention as module
from reference_engine.attention import (
    DecodeGathered,
    DecodeInPlace,
    FastAttention,
    Pairs,
    PlainAttention,
    make_ranges,
    order,
    split_by_length,
)
from reference_engine.config import CacheSize
from reference_engine.kv_cache import KVCache
from reference_engine.model import attend_causally
from reference_engine.model_config import ModelConfig
from reference_engine.types import SampleRow, SamplingParams, ScheduledChunk

HEADS, KV_HEADS, HEAD_DIM = 6, 2, 8
SHAPE = ModelConfig(
    vocab_size=10,
    hidden_size=48,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    max_position_embeddings=512,
)
SAMPLE = SampleRow(sampling=SamplingParams(), token_ids=[1], num_prompt_tokens=1)


def random_rows(generator: torch.Generator, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tuple(
        torch.randn(count, heads, HEAD_DIM, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS)
    )


def filled_cache(num_blocks: int, block_size: int, generator: torch.Generator) -> KVCache:
    cache = KVCache(SHAPE, CacheSize(num_blocks=num_blocks, block_size=block_size), "cpu", torch.float32)
    for slab in (*cache.k, *cache.v):
        slab.normal_(generator=generator)
    return cache


@st.composite
def steps(draw) -> tuple[int, int, list[ScheduledChunk]]:
    """Block size, blocks in the pool, and chunks with tables that are dense, scattered or share blocks."""
    block_size = draw(st.sampled_from([1, 2, 4, 16, 40]))
    dice = random.Random(draw(st.integers(0, 2**32)))
    lengths = draw(
        st.lists(st.tuples(st.integers(0, 60), st.sampled_from([1, 1, 1, 2, 5, 17])), min_size=1, max_size=9)
    )
    needed = sum(-(-(start + fresh) // block_size) for start, fresh in lengths)
    num_blocks = needed * draw(st.integers(1, 4))
    free = list(range(num_blocks))
    if draw(st.booleans()):
        dice.shuffle(free)
    chunks: list[ScheduledChunk] = []
    for name, (start, fresh) in enumerate(lengths):
        table = [free.pop(0) for _ in range(-(-(start + fresh) // block_size))]
        if chunks and draw(st.booleans()):  # it begins like the one before: full blocks of both are shared
            shared = min(start // block_size, chunks[-1].start // block_size)
            table[:shared] = chunks[-1].block_table[:shared]
        chunks.append(
            ScheduledChunk(
                request_id=str(name),
                start=start,
                token_ids=(1,) * fresh,
                block_table=tuple(table),
                sample=SAMPLE,
            )
        )
    return block_size, num_blocks, sorted(chunks, key=order)


def both(step, seed, make=FastAttention) -> tuple[torch.Tensor, torch.Tensor]:
    block_size, num_blocks, chunks = step
    outs = []
    for kind in (PlainAttention, make):
        generator = torch.Generator().manual_seed(seed)
        cache = filled_cache(num_blocks, block_size, generator)
        rows = random_rows(generator, sum(len(chunk.token_ids) for chunk in chunks))
        outs.append(kind(cache, chunks, "cpu")(0, *rows))
    return outs[0], outs[1]


@settings(max_examples=120, deadline=None)
@given(steps(), st.integers(0, 1000))
def test_fast_is_plain(step, seed):
    plain, fast = both(step, seed)
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(steps(), st.integers(0, 1000))
def test_gathered_is_plain(step, seed):
    """What a GPU does, here on the CPU."""

    def gathered(cache, chunks, device):
        fast = FastAttention(cache, chunks, device)
        if isinstance(fast.parts[0], DecodeInPlace):
            fast.parts[0] = DecodeGathered(cache, fast.rows.singles[: fast.parts[0].num_rows], device)
        return fast

    plain, fast = both(step, seed, gathered)
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(0, 1000))
def test_without_a_cache_a_sequence_attends_to_itself(lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = random_rows(generator, sum(lengths))
    chunks = [
        ScheduledChunk(request_id=str(i), start=0, token_ids=(1,) * n, block_table=(), sample=SAMPLE)
        for i, n in enumerate(lengths)
    ]
    parts = zip(*(tensor.split(lengths) for tensor in rows), strict=True)
    wanted = torch.cat([attend_causally(0, *(t[None] for t in part))[0] for part in parts])
    for kind in (PlainAttention, FastAttention):
        torch.testing.assert_close(kind(None, chunks, "cpu")(0, *rows), wanted, rtol=1e-4, atol=1e-5)


def single(end: int, *table: int) -> ScheduledChunk:
    return ScheduledChunk(request_id="x", start=end - 1, token_ids=(1,), block_table=table, sample=SAMPLE)


@pytest.mark.parametrize(
    ("tables", "num_ranges"),
    [
        ([(0, 1, 2)], 1),  # side by side
        ([(0, 2), (1, 3)], 1),  # of several sequences, in any order
        ([(0, 1, 1 + module.MAX_GAP)], 1),  # a small hole is computed and thrown away
        ([(0, 1, 200)], 2),  # a large one is left out
        ([(0, 1), (0, 2)], 2),  # a shared block is copied for the second
        ([tuple(range(0, 2000, 100))], 1),  # scattered: all are copied
    ],
)
def test_the_pool_is_read_in_few_ranges(tables, num_ranges):
    singles = [single(4 * len(table), *table) for table in tables]
    ranges = make_ranges(Pairs.of(singles, 4))
    assert len(ranges) == num_ranges
    assert sum(len(part.at) for part in ranges) == sum(len(table) for table in tables)


def test_one_long_row_does_not_make_all_others_as_long():
    tables = [tuple(range(at, at + 2)) for at in range(0, 10, 2)]
    chunks = [*(single(7, *table) for table in tables), single(200, *range(10, 60))]
    together, apart = split_by_length(chunks, 4)
    assert (len(together), len(apart)) == (5, 1)
    assert split_by_length(chunks[:1], 4) == ([], chunks[:1])


def test_a_block_of_a_living_sequence_is_read_where_it_lies():
    """No copy of keys or values in the decode path of a dense pool."""
    cache = filled_cache(8, 4, torch.Generator().manual_seed(0))
    (part,) = make_ranges(Pairs.of([single(8, 3, 4), single(6, 5, 6)], 4))
    view = part._view(cache.k[0])
    assert view.untyped_storage().data_ptr() == cache.k[0].untyped_storage().data_ptr()
