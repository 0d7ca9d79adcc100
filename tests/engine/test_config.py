"""A choice that cannot work is refused before anything is loaded, by its name."""

from __future__ import annotations

import json

import pytest

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
        (
            {"architectures": ["MixtralForCausalLM"]},
            "MixtralForCausalLM; supported: LlamaForCausalLM, Mistral",
        ),
        ({"architectures": None, "model_type": "gpt2"}, "architectures is gpt2; supported"),
        ({"architectures": None}, "missing architectures"),
        ({"hidden_act": "gelu"}, "hidden_act is gelu, only silu"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config is awq, only none"),
        (
            {"architectures": ["MistralForCausalLM"], "attention_bias": True},
            "attention_bias is True, which Mis",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "mlp_bias": True},
            "mlp_bias is True, which Qwen2ForCausalLM",
        ),
        ({"sliding_window": 500}, "sliding_window is 500, less than max_position_embeddings 512"),
        (
            {"architectures": ["MistralForCausalLM"], "max_position_embeddings": 4097},
            "sliding_window is 4096, less than max_position_embeddings 4097",  # transformers' default
        ),
        (
            {"architectures": ["Qwen3ForCausalLM"], "sliding_window": 64, "use_sliding_window": True},
            "sliding_window is 64",
        ),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2}},
            "rope_scaling is of type dynamic.*would have to be",
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 8}},
            "rope_parameters: llama3 needs low_freq_fa",
        ),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: linear needs factor"),
        (
            {"rope_scaling": {"type": "linear", "factor": -2}},
            "rope_scaling.factor is -2, not a positive number",
        ),
        (
            {"rope_scaling": {"type": "default", "mrope_section": [1]}},
            "rope_scaling.mrope_section is not known",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor is",
        ),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [2]}},
            "longrope is supported only where long_factor equals short_factor",
        ),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1], "long_factor": [1]}},
            "longrope needs 4 div",
        ),
        ({"vocab_size": "many"}, "vocab_size is 'many', not a positive whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, not a positive whole number"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        ({"hidden_size": 33}, "hidden_size 33 is no multiple of num_attention_heads 4"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
    ],
)
def test_arithmetic_we_lack_is_refused_not_ignored(tmp_path, changes, message):
    with pytest.raises(ModelError, match=rf"config\.json: .*{message}"):
        read(tmp_path, **changes)


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    with pytest.raises(ModelError, match=r"hidden_act is relu.*sliding_window is 7.*head_dim 5 is odd"):
        read(tmp_path, hidden_act="relu", sliding_window=7, head_dim=5)


def test_windows_that_hide_nothing_or_are_switched_off_are_fine(tmp_path):
    qwen = read(tmp_path, architectures=["Qwen2ForCausalLM"], sliding_window=8, num_key_value_heads=2)
    assert qwen.qkv_bias
    assert not qwen.o_bias
    mistral = read(tmp_path, architectures=["MistralForCausalLM"], num_key_value_heads=4)
    assert mistral.num_key_value_heads == 4


def test_the_end_of_a_turn_may_be_told_in_generation_config(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [8, 9]}')
    assert read(tmp_path).eos_token_ids == (8, 9)
    (tmp_path / "generation_config.json").write_text("{}")
    assert read(tmp_path).eos_token_ids == (3, 4)


def test_missing_keys_and_files_are_named(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json: no such file"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"vocab_size": 5}')
    with pytest.raises(ModelError, match=r"config\.json: missing architectures, hidden_size, .*max_pos"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="expected a JSON object"):
        ModelConfig.from_folder(tmp_path)
