"""A Llama-family GGUF file in, a Hugging Face folder out: weights dequantized to float32, `config.json`,
and the tokenizer and chat template rebuilt from the file's own metadata.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from reference_engine.errors import ModelError
from reference_engine.gguf import Floats, GgufFile, unpermute

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
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type


def convert(path: Path, folder: Path) -> None:
    """Write `folder` (which exists). Raises ModelError for anything but a Llama with a GPT-2 style BPE."""
    file = GgufFile(path)
    config = config_of(file)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tokenizer_of(file).save(str(folder / "tokenizer.json"))
    settings = json.dumps(_tokenizer_settings(file), indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(settings, encoding="utf-8")
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors: dict[str, Floats] = {}
    for name in file.tensors:
        if name == "rope_freqs.weight":  # scaling factors, of no use where there is no scaling
            continue
        weight, kind = file.tensor(name), name.split(".")[-2]
        tensors[hugging_face_name(name)] = unpermute(weight, heads[kind]) if kind in heads else weight
    ordered = {name: np.ascontiguousarray(weight) for name, weight in tensors.items()}
    save_file(ordered, folder / "model.safetensors", {"format": "pt"})


def config_of(file: GgufFile) -> dict[str, Any]:
    """`config.json` from `llama.*` metadata."""
    if (architecture := _get(file, "general.architecture")) != "llama":
        raise ModelError(f"{file.path}: architecture {architecture}; only llama is supported")
    heads = _get(file, "llama.attention.head_count")
    width = _get(file, "llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": width,
        "intermediate_size": _get(file, "llama.feed_forward_length"),
        "num_hidden_layers": _get(file, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.metadata.get("llama.attention.head_count_kv", heads),
        "head_dim": file.metadata.get("llama.attention.key_length", width // heads),
        "max_position_embeddings": _get(file, "llama.context_length"),
        "rms_norm_eps": _get(file, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": file.metadata.get("llama.rope.freq_base", 10_000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": _get(file, "tokenizer.ggml.eos_token_id"),
        "torch_dtype": "float32",
    }


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    match name.split("."):
        case [kind, "weight"] if kind in _TOP_NAMES:
            return f"{_TOP_NAMES[kind]}.weight"
        case ["blk", index, kind, "weight"] if kind in _LAYER_NAMES:
            return f"model.layers.{index}.{_LAYER_NAMES[kind]}.weight"
    raise ModelError(f"GGUF tensor {name}: not a part of a Llama decoder that is known here")


def tokenizer_of(file: GgufFile) -> Tokenizer:
    """A byte-level BPE from `tokenizer.ggml.*`: how text is cut before merging depends on `pre`."""
    if (kind := _get(file, "tokenizer.ggml.model")) != "gpt2":
        raise ModelError(f"{file.path}: tokenizer {kind}; only gpt2 (byte-level BPE) is supported")
    cut: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    match _get(file, "tokenizer.ggml.pre"):
        case "smollm":  # GPT-2's rule, after setting every digit apart
            cut.insert(0, pre_tokenizers.Digits(individual_digits=True))
        case "gpt-2":
            pass
        case pre:
            raise ModelError(f"{file.path}: pre-tokenizer {pre}; supported: smollm, gpt-2")
    tokens: list[str] = _get(file, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in _get(file, "tokenizer.ggml.merges")]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cut)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = list(zip(tokens, _get(file, "tokenizer.ggml.token_type"), strict=True))
    control = [AddedToken(token, special=True, normalized=False) for token, kind in kinds if kind == _CONTROL]
    tokenizer.add_special_tokens(control)
    defined = [AddedToken(token, normalized=False) for token, kind in kinds if kind == _USER_DEFINED]
    tokenizer.add_tokens(defined)
    return tokenizer


def _tokenizer_settings(file: GgufFile) -> dict[str, Any]:
    tokens = _get(file, "tokenizer.ggml.tokens")
    ids = {kind: file.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos")}
    named = {f"{kind}_token": tokens[token_id] for kind, token_id in ids.items() if token_id is not None}
    return {"chat_template": file.metadata.get("tokenizer.chat_template"), **named}


def _get(file: GgufFile, key: str) -> Any:
    if key not in file.metadata:
        raise ModelError(f"{file.path}: metadata {key} is missing")
    return file.metadata[key]
