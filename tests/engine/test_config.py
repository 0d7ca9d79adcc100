"""A choice that cannot work is refused before anything is loaded, by its name."""

from __future__ import annotations

import json

import pytest

from reference_engine.catalog import cache_folder, model_folder
from reference_engine.errors import ModelError
from reference_engine.model_config import ModelConfig

RAW = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "eos_token_id": [3, 4],
}


def read(tmp_path, **changes):
    (tmp_path / "config.json").write_text(json.dumps({**RAW, **changes}))
    return ModelConfig.from_folder(tmp_path)


def test_a_config_is_read_with_hugging_faces_defaults(tmp_path):
    config = read(tmp_path, rope_theta=5e5)
    assert (config.num_key_value_heads, config.head_dim, config.rope_theta) == (4, 8, 5e5)
    assert (config.rms_norm_eps, config.tie_word_embeddings) == (1e-6, False)
    assert config.eos_token_ids == (3, 4)
    assert read(tmp_path, eos_token_id=7).eos_token_ids == (7,)
    assert read(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 9.0}).rope_theta == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM.*only LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, "hidden_act is gelu"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "rope scaling is llama3"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope scaling is linear"),
    ],
)
def test_arithmetic_we_lack_is_refused_not_ignored(tmp_path, changes, message):
    with pytest.raises(ModelError, match=message):
        read(tmp_path, **changes)


def test_missing_keys_and_files_are_named(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json: no such file"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"vocab_size": 5}')
    with pytest.raises(ModelError, match=r"config\.json: missing hidden_size, .*max_position_embeddings"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="expected a JSON object"):
        ModelConfig.from_folder(tmp_path)


def test_an_unknown_model_lists_the_known_ones():
    with pytest.raises(ModelError, match=r"--model gpt-17: neither one of tiny, smollm2-135m nor a folder"):
        model_folder("gpt-17")


def test_the_cache_lies_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("LLMBENCH_CACHE", str(tmp_path))
    assert cache_folder().parent == tmp_path
    monkeypatch.delenv("LLMBENCH_CACHE")
    assert cache_folder().parts[-3:] == (".cache", "llmbench", "models")
