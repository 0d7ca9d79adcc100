"""The network with a cache, in any batch, computes what it computes without one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from reference_engine.model import RMSNorm, attend_causally
from reference_engine.packing import PackedLinear, can_pack
from reference_engine.rope import rotate, signed_frequencies, tables


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
    frequencies = signed_frequencies(small_config)
    q, k = torch.randn(2, 1, small_config.head_dim, generator=torch.Generator().manual_seed(0))

    def at(x, position):
        cos, sin = tables(torch.tensor([position]), frequencies, 1.0, torch.float32)
        return rotate(x[None], cos, sin)[0]

    def score(one, other):
        return at(q, one) @ at(k, other).T

    for far in (57, 100_057):
        torch.testing.assert_close(score(7, 3), score(far, far - 4), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(score(7, 3), score(7, 4), rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [0.0, 1e-4, 1.0, 1e4])
def test_the_norm_is_the_one_of_torch(dtype, size):
    torch.manual_seed(0)
    norm = RMSNorm(24, 1e-5).to(dtype)
    torch.nn.init.normal_(norm.weight)
    x = (torch.randn(2, 3, 24) * size).to(dtype)
    torch.testing.assert_close(norm(x), torch.rms_norm(x, (24,), norm.weight, 1e-5))


def test_the_norm_has_the_gradient_of_torchs():
    torch.manual_seed(0)
    norm, x = RMSNorm(24, 1e-5), torch.randn(5, 24, requires_grad=True)
    torch.nn.init.normal_(norm.weight)
    seen = torch.randn(5, 24)
    ours = torch.autograd.grad((norm(x) * seen).sum(), (x, norm.weight))
    wanted = torch.autograd.grad((torch.rms_norm(x, (24,), norm.weight, 1e-5) * seen).sum(), (x, norm.weight))
    torch.testing.assert_close(ours, wanted)


@pytest.mark.skipif(not can_pack("cpu", torch.float32), reason="this torch has no oneDNN")
@pytest.mark.parametrize("num_rows", [1, 3, 33])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_packed_layer_is_the_same_layer(num_rows, has_bias):
    torch.manual_seed(0)
    linear = nn.Linear(40, 24, bias=has_bias).requires_grad_(False)
    rows = torch.randn(num_rows, 40)
    torch.testing.assert_close(PackedLinear(linear)(rows), linear(rows))
