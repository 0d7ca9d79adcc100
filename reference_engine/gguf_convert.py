"""A GGUF file of a known family in, a Hugging Face folder out: weights dequantized to float32,
`config.json`, and the tokenizer and chat template rebuilt from the file's own metadata.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reference_engine.errors import ModelError
from reference_engine.gguf import Floats, GgufFile, unpermute
from reference_engine.gguf_tokenizer import tokenizer_of, tokenizer_settings

# general.architecture -> Hugging Face's name and model type (Mistral's files call themselves llama)
_ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}
_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_DIVISORS = "rope_freqs.weight"


class _Source(NamedTuple):
    """Where a tensor comes from: its name in the file, and how many heads to put in order (0: none)."""

    name: str
    num_heads: int


def convert(path: Path, folder: Path) -> None:
    """Write `folder` (which exists). Raises ModelError naming the file and what in it is not known here."""
    file = GgufFile(path)
    config = config_of(file)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tokenizer_of(file).save(str(folder / "tokenizer.json"))
    settings = json.dumps(tokenizer_settings(file), indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(settings, encoding="utf-8")
    is_permuted = file.metadata["general.architecture"] == "llama"
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    sources = {
        hugging_face_name(name): _Source(name, heads.get(name.split(".")[-2], 0) if is_permuted else 0)
        for name in file.tensors
        if name != _ROPE_DIVISORS
    }
    _write(file, sources, folder / "model.safetensors")


def config_of(file: GgufFile) -> dict[str, Any]:
    """`config.json` from the metadata and from which tensors there are."""
    family = _get(file, "general.architecture")
    if family not in _ARCHITECTURES:
        raise ModelError(f"{file.path}: architecture {family}; supported: {', '.join(_ARCHITECTURES)}")
    own = {
        key.removeprefix(f"{family}."): value
        for key, value in file.metadata.items()
        if key.startswith(family)
    }
    if own.get("expert_count"):
        raise ModelError(f"{file.path}: {own['expert_count']} experts; mixtures of experts are not supported")

    def need(key: str) -> Any:
        return _get(file, f"{family}.{key}")

    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path}: no tensor token_embd.weight")
    architecture, model_type = _ARCHITECTURES[family]
    heads, width = need("attention.head_count"), need("embedding_length")
    eos = [file.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot")]
    ends = list(dict.fromkeys(token_id for token_id in eos if token_id is not None))
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_act": "silu",
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": width,
        "intermediate_size": need("feed_forward_length"),
        "num_hidden_layers": need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": own.get("attention.head_count_kv", heads),
        "head_dim": own.get("attention.key_length", width // heads),
        "max_position_embeddings": need("context_length"),
        "rms_norm_eps": need("attention.layer_norm_rms_epsilon"),
        "rope_theta": own.get("rope.freq_base", 10_000.0),
        **_rope_of(file, own),
        **_biases_of(file, family),
        **({"sliding_window": own["attention.sliding_window"]} if "attention.sliding_window" in own else {}),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "torch_dtype": "float32",
    }


def _biases_of(file: GgufFile, family: str) -> dict[str, bool]:
    if family == "qwen2":  # always has the three it has
        return {}
    found = {key: f"blk.0.{name}.bias" in file.tensors for key, name in
             (("attention_bias", "attn_q"), ("mlp_bias", "ffn_up"))}  # fmt: skip
    return {key: True for key, is_there in found.items() if is_there}


def _rope_of(file: GgufFile, own: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_scaling` as llama.cpp means it: a type and a factor, or a divisor for every frequency."""
    if _ROPE_DIVISORS in file.tensors:
        divisors = [float(value) for value in file.tensor(_ROPE_DIVISORS)]
        if any(value != 1 for value in divisors):  # ones: written by converters where nothing is scaled
            same = {"short_factor": divisors, "long_factor": divisors}
            return {"rope_scaling": {"rope_type": "longrope", **same, "attention_factor": 1.0}}
    kind, factor = own.get("rope.scaling.type", "none"), own.get("rope.scaling.factor", 0.0)
    if kind in {"none", ""} or factor in {0.0, 1.0}:
        return {}
    scaling: dict[str, Any] = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        scaling |= {
            "original_max_position_embeddings": own.get("rope.scaling.original_context_length"),
            "beta_fast": own.get("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": own.get("rope.scaling.yarn_beta_slow", 1.0),
            "attention_factor": own.get("rope.scaling.attn_factor", 1.0) * (0.1 * math.log(factor) + 1.0),
        }
    return {"rope_scaling": scaling}


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    match name.split("."):
        case [kind, "weight"] if kind in _TOP_NAMES:
            return f"{_TOP_NAMES[kind]}.weight"
        case ["blk", index, kind, "weight" | "bias" as what] if kind in _LAYER_NAMES:
            return f"model.layers.{index}.{_LAYER_NAMES[kind]}.{what}"
    raise ModelError(f"GGUF tensor {name}: not a part of a decoder that is known here")


def _write(file: GgufFile, sources: Mapping[str, _Source], path: Path) -> None:
    """A safetensors file (header length, JSON, numbers), tensor by tensor: one is in memory at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, source in sources.items():
        shape = file.tensors[source.name].shape
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as out:
        out.write(len(raw).to_bytes(8, "little") + raw)
        for source in sources.values():
            weight: Floats = file.tensor(source.name)
            if source.num_heads:
                weight = unpermute(weight, source.num_heads)
            out.write(np.ascontiguousarray(weight, "<f4").data)


def _get(file: GgufFile, key: str) -> Any:
    if key not in file.metadata:
        raise ModelError(f"{file.path}: metadata {key} is missing")
    return file.metadata[key]
