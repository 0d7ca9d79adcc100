"""Switches that contradict each other are refused before anything is loaded, by name."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace

import pytest

from reference_engine.__main__ import _public_name, build_parser, switches_of
from reference_engine.config import EngineConfig, Switches, bytes_per_token, cache_size
from reference_engine.errors import ConfigError
from reference_engine.model_config import ModelConfig

MODEL = ModelConfig(
    vocab_size=100,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=512,
)
PER_TOKEN = 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, head size, bytes of a float


def resolve(**switches: object) -> EngineConfig:
    return EngineConfig.resolve(MODEL, Switches(**switches))


def test_what_is_left_open_comes_from_the_model_and_the_device():
    config = resolve()
    assert (config.max_model_len, config.max_num_batched_tokens, config.block_size) == (512, 512, 64)
    assert (config.enable_prefix_caching, config.enable_chunked_prefill) == (True, True)
    assert resolve(device="cuda").max_num_batched_tokens == 2048
    assert resolve(max_num_seqs=600).max_num_batched_tokens == 600
    assert resolve(kv_cache="contiguous").enable_prefix_caching is False
    none = resolve(kv_cache="none")
    assert (none.enable_chunked_prefill, none.max_num_batched_tokens) == (False, 2048)
    longer = EngineConfig.resolve(replace(MODEL, max_position_embeddings=9000), Switches(kv_cache="none"))
    assert longer.max_num_batched_tokens == 9000, "the longest prompt fits into a step"
    assert resolve().num_threads == 1, "a small model is computed by one thread"


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"max_model_len": 513}, "--max-model-len 513 is more than the 512"),
        ({"max_model_len": 0}, "--max-model-len must be at least 1"),
        ({"max_num_seqs": 0}, "--max-num-seqs must be at least 1"),
        ({"block_size": 0}, "--block-size must be at least 1"),
        ({"num_threads": 0}, "--threads must be at least 1"),
        ({"gpu_memory_utilization": 1.5}, "--gpu-memory-utilization must be above 0 and at most 1, not 1.5"),
        (
            {"max_num_batched_tokens": 100, "enable_chunked_prefill": False},
            "in one step, so the longest must fit",
        ),
        ({"max_num_batched_tokens": 600, "max_num_seqs": 700}, "600 is less than --max-num-seqs 700"),
        ({"kv_cache": "contiguous", "enable_prefix_caching": True}, "needs --kv-cache paged"),
        ({"kv_cache": "none", "enable_chunked_prefill": True}, "needs a KV cache"),
    ],
)
def test_switches_that_cannot_work_are_refused_by_name(switches, message):
    with pytest.raises(ConfigError, match=message):
        resolve(**switches)


def test_the_cache_is_as_large_as_said_or_as_there_is_and_never_larger_than_of_use():
    assert bytes_per_token(MODEL, "float32") == PER_TOKEN
    assert bytes_per_token(MODEL, "bfloat16") == PER_TOKEN // 2
    paged = cache_size(MODEL, resolve(kv_cache_memory=1024 * PER_TOKEN), available_bytes=0)
    assert (paged.num_blocks, paged.block_size) == (16, 64)
    assert cache_size(MODEL, resolve(max_num_seqs=2), available_bytes=10**12).num_tokens == 2 * 512
    asked = {"max_num_seqs": 2, "kv_cache_memory": 2048 * PER_TOKEN}
    kept = cache_size(MODEL, resolve(**asked, enable_prefix_caching=True), available_bytes=0)
    assert kept.num_tokens == 2048  # the rest keeps prompts of finished requests
    bare = cache_size(MODEL, resolve(**asked, enable_prefix_caching=False), available_bytes=0)
    assert bare.num_tokens == 2 * 512
    assert cache_size(MODEL, resolve(), available_bytes=600 * PER_TOKEN).num_blocks == 9
    slabs = cache_size(MODEL, resolve(kv_cache="contiguous"), available_bytes=2000 * PER_TOKEN)
    assert (slabs.num_blocks, slabs.block_size) == (3, 512)
    assert cache_size(MODEL, resolve(kv_cache="none"), available_bytes=0) is None


def test_a_cache_too_small_for_one_sequence_says_what_would_do():
    with pytest.raises(ConfigError, match=r"holds 448 tokens, less .* --kv-cache-memory to 1 MB"):
        cache_size(MODEL, resolve(kv_cache_memory=500 * PER_TOKEN), available_bytes=0)


def test_the_command_line_gives_every_switch():
    words = (
        "--max-model-len 9 --max-num-seqs 8 --max-num-batched-tokens 77 --kv-cache contiguous --block-size 4 "
        "--kv-cache-memory 1.5GiB --gpu-memory-utilization 0.5 --batching static --no-enable-prefix-caching "
        "--no-enable-chunked-prefill --attention plain --device cuda --dtype float16 --threads 3"
    )
    args = build_parser().parse_args(words.split())
    given = switches_of(args)
    same = [
        field.name
        for field in fields(Switches)
        if getattr(given, field.name) == getattr(Switches(), field.name)
    ]
    assert same == [], "a switch that does nothing"
    assert given.kv_cache_memory == 1_610_612_736
    plain = switches_of(build_parser().parse_args([]))
    assert plain == Switches()
    assert switches_of(argparse.Namespace(**{**vars(args), "dtype": "auto"})).dtype == "bfloat16"


@pytest.mark.parametrize("size", ["", "GB", "5 XB", "-1MB", "0", "1e3"])
def test_a_size_that_is_none_is_refused(size, capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args([f"--kv-cache-memory={size}"])
    assert "is no size; write 512MB or 2GiB" in capsys.readouterr().err


def test_a_model_given_by_path_is_served_under_a_name_not_a_path(tmp_path):
    (tmp_path / "Some-Model.Q4_1.gguf").touch()
    assert _public_name(str(tmp_path / "Some-Model.Q4_1.gguf")) == "Some-Model.Q4_1"
    assert _public_name(str(tmp_path)) == tmp_path.name
    assert _public_name("org/name") == "org/name"
