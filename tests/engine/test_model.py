"""The network with a cache, in any batch, computes what it computes without one."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from reference_engine.attention import SlotAttention
from reference_engine.config import EngineConfig
from reference_engine.kv_cache import ContiguousCache
from reference_engine.model import attend_causally, rope_tables, rotate
from reference_engine.packing import PackedLinear, can_pack
from reference_engine.types import SamplingParams, ScheduledChunk


def recompute(model, token_ids):
    """Logits of the last position, from nothing."""
    ids = torch.tensor([token_ids])
    hidden = model(ids, torch.arange(len(token_ids))[None], attend_causally)
    return model.logits(hidden[0, -1])


def greedy_without_cache(model, prompt, num_tokens):
    ids = list(prompt)
    for _ in range(num_tokens):
        ids.append(int(recompute(model, ids).argmax()))
    return ids[len(prompt) :]


def chunk(slot, start, ids):
    return ScheduledChunk(
        request_id=str(slot), slot=slot, start=start, token_ids=tuple(ids), sampling=SamplingParams()
    )


def test_tokens_in_the_cache_attend_as_tokens_without_one(small_decoder):
    model, dice = small_decoder, random.Random(3)
    config = EngineConfig.resolve(model.config, max_num_seqs=5)
    cache = ContiguousCache(model.config, config, torch.float32)
    ids = {slot: [dice.randrange(3072) for _ in range(length)] for slot, length in ((4, 9), (1, 1), (0, 17))}
    fresh = [dice.randrange(3072) for _ in range(6)]

    def forward(chunks):
        attention = SlotAttention(cache, chunks, "cpu")
        flat = torch.tensor([token for one in chunks for token in one.token_ids])
        ends = torch.tensor([len(one.token_ids) for one in chunks]).cumsum(0) - 1
        return model.logits(model(flat, attention.positions, attention)[ends])

    forward([chunk(1, 0, ids[1]), chunk(4, 0, ids[4]), chunk(0, 0, ids[0])])
    # Next step: two of them go on by a token, one pauses, slot 2 begins.
    logits = forward([chunk(4, 9, [5]), chunk(0, 17, [6]), chunk(2, 0, fresh)])
    wanted = [recompute(model, seen) for seen in ([*ids[4], 5], [*ids[0], 6], fresh)]
    torch.testing.assert_close(logits, torch.stack(wanted), rtol=1e-4, atol=1e-4)


def test_stale_keys_of_an_earlier_owner_of_the_slot_are_never_seen(
    small_decoder, make_small_engine, request_of, finish
):
    engine = make_small_engine(max_num_seqs=1)
    engine.add(request_of("long", range(60, 110), max_tokens=20))
    engine.add(request_of("short", [3, 1, 4], max_tokens=8))
    events = finish(engine)["short"]
    assert [event.token_id for event in events] == endless(small_decoder, engine, [3, 1, 4], 8)


def endless(model, engine, prompt, num_tokens):
    """Greedy without cache, control tokens never chosen."""
    ids = list(prompt)
    for _ in range(num_tokens):
        logits = recompute(model, ids)
        logits[engine.runner.control_ids] = float("-inf")
        ids.append(int(logits.argmax()))
    return ids[len(prompt) :]


def test_rotation_depends_on_distance_only(small_config):
    tables = rope_tables(small_config, 64)
    q, k = torch.randn(2, 1, small_config.head_dim, generator=torch.Generator().manual_seed(0))

    def score(at, other):
        return rotate(q, *tables[:, at]) @ rotate(k, *tables[:, other]).T

    torch.testing.assert_close(score(7, 3), score(57, 53), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(score(7, 3), score(7, 4), rtol=1e-3)


@pytest.mark.skipif(not can_pack("cpu", torch.float32), reason="this torch has no oneDNN")
@pytest.mark.parametrize("num_rows", [1, 3, 33])
def test_a_packed_layer_is_the_same_layer(num_rows):
    torch.manual_seed(0)
    linear = nn.Linear(40, 24, bias=False).requires_grad_(False)
    rows = torch.randn(num_rows, 40)
    torch.testing.assert_close(PackedLinear(linear)(rows), linear(rows))
