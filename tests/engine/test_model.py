"""The network with a cache, in any batch, computes what it computes without one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from reference_engine.model import attend_causally, rope_tables, rotate
from reference_engine.packing import PackedLinear, can_pack


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
