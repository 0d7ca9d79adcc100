"""The same code on a GPU says what it says on a CPU. Needs one: `pytest -m gpu`."""

from __future__ import annotations

import random

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this torch finds no CUDA device"),
]

PROMPTS = {
    f"r{i}": [random.Random(i).randrange(300, 3000) for _ in range(length)]
    for i, length in enumerate((1, 2, 17, 40, 90, 33, 64))
}


def answers(engine, request_of, finish, **sampling):
    for name, prompt in PROMPTS.items():
        engine.add(request_of(name, prompt, **sampling))
    return {name: [event.token_id for event in events] for name, events in finish(engine).items()}


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"kv_cache": "contiguous"},
        {"kv_cache": "none"},
        {"max_num_batched_tokens": 16, "max_num_seqs": 4},
        {"attention": "plain"},
    ],
    ids=str,
)
def test_in_float32_the_tokens_are_those_of_the_cpu(make_tiny_engine, request_of, finish, switches):
    on_cpu = answers(make_tiny_engine(), request_of, finish)
    assert answers(make_tiny_engine(device="cuda", **switches), request_of, finish) == on_cpu


def test_in_bfloat16_it_writes_as_many_tokens_as_asked(make_tiny_engine, request_of, finish):
    engine = make_tiny_engine(device="cuda", dtype="bfloat16")
    texts = answers(engine, request_of, finish, max_tokens=20, temperature=0.8, seed=1)
    assert {len(tokens) for tokens in texts.values()} == {20}


def test_the_cache_takes_what_the_weights_leave(make_tiny_engine):
    small, large = (make_tiny_engine(device="cuda", gpu_memory_utilization=share) for share in (0.2, 0.5))
    assert 0 < small.cache_size.num_blocks <= large.cache_size.num_blocks
