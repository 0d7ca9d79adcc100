"""GGUF files as llama.cpp's converters write them, from networks and tokenizers of the tests."""

from __future__ import annotations

import json
import struct

import numpy as np
import torch

from reference_engine.model import Decoder
from reference_engine.rope import signed_frequencies

F32 = 0
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(item):
    match item:
        case str():
            return struct.pack("<I", STRING) + string(item)
        case bool():
            return struct.pack("<IB", BOOL, item)
        case int():
            return struct.pack("<II", UINT32, item)
        case float():
            return struct.pack("<If", FLOAT32, item)
        case [str(), *_]:
            return struct.pack("<IIQ", ARRAY, STRING, len(item)) + b"".join(map(string, item))
        case [float(), *_]:
            return struct.pack("<IIQ", ARRAY, FLOAT32, len(item)) + np.array(item, "<f4").tobytes()
        case list():
            return struct.pack("<IIQ", ARRAY, INT32, len(item)) + np.array(item, "<i4").tobytes()
    raise TypeError(item)


def write_gguf(path, metadata, tensors):
    """`tensors`: name -> (rows-first shape, type number, bytes)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(string(key) + value(item) for key, item in metadata.items())
    body = b""
    for name, (shape, kind, raw) in tensors.items():
        head += string(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", kind, len(body))
        body += raw + bytes(-len(raw) % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + body)
    return path


def as_f32(array):
    return (tuple(array.shape), F32, np.ascontiguousarray(array, "<f4").tobytes())


def random_decoder(config, seed=1, std=0.5):
    """Weights large enough that tokens differ and no two logits are close."""
    torch.manual_seed(seed)
    model = Decoder(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        else:
            torch.nn.init.normal_(parameter, std=std)
    return model


def permute(weight, heads):
    """llama.cpp's order of q and k rows in its Llama files: halves of a head interleaved."""
    pairs = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def tensors_of(model, family):
    config = model.config
    num_q, num_kv = config.num_attention_heads, config.num_key_value_heads
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    out = {"token_embd.weight": state["embedding.weight"], "output_norm.weight": state["norm.weight"]}
    if not config.tie_word_embeddings:
        out["output.weight"] = state["head.weight"]
    if config.rope_scaling.kind == "llama3":  # as divisors of the plain frequencies
        fields = {name: getattr(config, name) for name in config.__slots__ if name != "rope_scaling"}
        plain = signed_frequencies(type(config)(**fields))
        out["rope_freqs.weight"] = (plain / signed_frequencies(config))[: config.head_dim // 2].numpy()
    plain_names = {"input_norm": "attn_norm", "o": "attn_output", "mlp_norm": "ffn_norm", "down": "ffn_down"}
    plain_names |= {"q_norm": "attn_q_norm", "k_norm": "attn_k_norm"}
    for name, weight in state.items():
        if not name.startswith("layers."):
            continue
        _, index, part, what = name.split(".")
        at = f"blk.{index}"
        if part == "qkv":
            q, k, v = np.split(weight, np.cumsum([num_q, num_kv]) * config.head_dim)
            if family == "llama":
                q, k = permute(q, num_q), permute(k, num_kv)
            out |= {f"{at}.attn_{part}.{what}": w for part, w in (("q", q), ("k", k), ("v", v))}
        elif part == "gate_up":
            gate, up = np.split(weight, 2)
            out |= {f"{at}.ffn_gate.{what}": gate, f"{at}.ffn_up.{what}": up}
        else:
            out[f"{at}.{plain_names[part]}.{what}"] = weight
    return {name: as_f32(weight) for name, weight in out.items()}


def metadata_of(config, family):
    out = {
        "general.architecture": family,
        "general.license": "mit",
        f"{family}.block_count": config.num_hidden_layers,
        f"{family}.embedding_length": config.hidden_size,
        f"{family}.feed_forward_length": config.intermediate_size,
        f"{family}.attention.head_count": config.num_attention_heads,
        f"{family}.attention.head_count_kv": config.num_key_value_heads,
        f"{family}.attention.key_length": config.head_dim,
        f"{family}.attention.value_length": config.head_dim,
        f"{family}.rope.dimension_count": config.head_dim,
        f"{family}.context_length": config.max_position_embeddings,
        f"{family}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{family}.rope.freq_base": config.rope_theta,
    }
    scaling = config.rope_scaling
    if scaling.kind in {"linear", "yarn"}:
        out |= {f"{family}.rope.scaling.type": scaling.kind, f"{family}.rope.scaling.factor": scaling.factor}
    if scaling.kind == "yarn":
        out[f"{family}.rope.scaling.original_context_length"] = scaling.original_max_position_embeddings
    return out


def byte_level_metadata(tokenizer_json, pre):
    """From a `tokenizer.json` of a byte-level BPE."""
    raw = json.loads(tokenizer_json)
    vocabulary = sorted(raw["model"]["vocab"].items(), key=lambda pair: pair[1])
    control = {token["id"] for token in raw["added_tokens"]}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [token for token, _ in vocabulary],
        "tokenizer.ggml.token_type": [3 if token_id in control else 1 for _, token_id in vocabulary],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in raw["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }


def sentence_piece_metadata(pieces):
    """From pieces in the order of their scores; bytes and control tokens come first, as in Llama's."""
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*first, *pieces],
        "tokenizer.ggml.scores": [*[0.0] * len(first), *(-float(rank) for rank in range(len(pieces)))],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces)],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
