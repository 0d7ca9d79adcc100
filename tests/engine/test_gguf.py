"""GGUF files written here by the letter of the format are read back, tensor, tokenizer and all."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import torch

from reference_engine.errors import ModelError
from reference_engine.gguf import GgufFile, unpermute
from reference_engine.gguf_convert import convert
from reference_engine.model import Decoder, attend_causally
from reference_engine.model_config import ModelConfig
from reference_engine.tokenizer import TextTokenizer
from reference_engine.weights import load_decoder, save_decoder

F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8
UINT32, FLOAT32, STRING, ARRAY = 4, 6, 8, 9


def string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(item):
    match item:
        case str():
            return struct.pack("<I", STRING) + string(item)
        case int():
            return struct.pack("<II", UINT32, item)
        case float():
            return struct.pack("<If", FLOAT32, item)
        case [str(), *_]:
            return struct.pack("<IIQ", ARRAY, STRING, len(item)) + b"".join(map(string, item))
        case list():
            return struct.pack("<IIQ", ARRAY, UINT32, len(item)) + np.array(item, "<u4").tobytes()
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


def test_blocks_are_dequantized_by_their_formulas(tmp_path):
    rng = np.random.default_rng(0)
    scales, least = rng.standard_normal((2, 4)).astype("<f2")
    signed = rng.integers(-128, 128, (4, 32), np.int8)
    nibbles = rng.integers(0, 16, (4, 32), np.uint8)
    packed = nibbles[:, :16] | nibbles[:, 16:] << 4
    q8 = b"".join(scales[i].tobytes() + signed[i].tobytes() for i in range(4))
    q4 = b"".join(scales[i].tobytes() + least[i].tobytes() + packed[i].tobytes() for i in range(4))
    half = rng.standard_normal((3, 5)).astype("<f2")
    full = rng.standard_normal(7).astype("<f4")
    tensors = {
        "q8": ((2, 64), Q8_0, q8),
        "half": ((3, 5), F16, half.tobytes()),
        "q4": ((2, 64), Q4_1, q4),
        "full": as_f32(full),
    }
    file = GgufFile(write_gguf(tmp_path / "a.gguf", {"general.name": "näme", "n": 7}, tensors))
    assert file.metadata == {"general.name": "näme", "n": 7}
    d, m = scales.astype(np.float32)[:, None], least.astype(np.float32)[:, None]
    np.testing.assert_array_equal(file.tensor("q8"), (d * signed).reshape(2, 64))
    np.testing.assert_array_equal(file.tensor("q4"), (d * nibbles + m).reshape(2, 64))
    np.testing.assert_array_equal(file.tensor("half"), half.astype(np.float32))
    np.testing.assert_array_equal(file.tensor("full"), full)


def test_unpermuting_puts_the_halves_of_each_head_back():
    rows = np.arange(8.0, dtype=np.float32)[:, None]  # two heads of four rows
    interleaved = rows[[0, 2, 1, 3, 4, 6, 5, 7]]
    np.testing.assert_array_equal(unpermute(interleaved, 2), rows)


def as_gguf(model, tokenizer_json, path):
    """What llama.cpp's converter writes for this network: its names, and q and k rows interleaved."""
    config = model.config
    q, kv, head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim

    def permute(weight, heads):
        shape = weight.shape
        return weight.reshape(heads, 2, head_dim // 2, shape[1]).swapaxes(1, 2).reshape(shape)

    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    tensors = {
        "token_embd.weight": as_f32(state["embedding.weight"]),
        "output_norm.weight": as_f32(state["norm.weight"]),
        "output.weight": as_f32(state["head.weight"]),
    }
    for i in range(config.num_hidden_layers):
        ours, theirs = f"layers.{i}", f"blk.{i}"
        wq, wk, wv = np.split(state[f"{ours}.qkv.weight"], [q * head_dim, (q + kv) * head_dim])
        gate, up = np.split(state[f"{ours}.gate_up.weight"], 2)
        parts = {
            "attn_norm": state[f"{ours}.input_norm.weight"],
            "attn_q": permute(wq, q),
            "attn_k": permute(wk, kv),
            "attn_v": wv,
            "attn_output": state[f"{ours}.o.weight"],
            "ffn_norm": state[f"{ours}.mlp_norm.weight"],
            "ffn_gate": gate,
            "ffn_up": up,
            "ffn_down": state[f"{ours}.down.weight"],
        }
        tensors |= {f"{theirs}.{kind}.weight": as_f32(weight) for kind, weight in parts.items()}
    vocabulary = sorted(tokenizer_json["model"]["vocab"].items(), key=lambda pair: pair[1])
    control = {token["id"] for token in tokenizer_json["added_tokens"]}
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": config.num_hidden_layers,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": q,
        "llama.attention.head_count_kv": kv,
        "llama.attention.key_length": head_dim,
        "llama.context_length": config.max_position_embeddings,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.freq_base": config.rope_theta,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": [token for token, _ in vocabulary],
        "tokenizer.ggml.token_type": [3 if token_id in control else 1 for _, token_id in vocabulary],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in tokenizer_json["model"]["merges"]],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }
    return write_gguf(path, metadata, tensors)


@pytest.fixture
def gguf(tmp_path, small_decoder, tiny_folder):
    tokenizer_json = json.loads((tiny_folder / "tokenizer.json").read_text(encoding="utf-8"))
    return as_gguf(small_decoder, tokenizer_json, tmp_path / "model.gguf")


def test_a_converted_file_is_the_same_network_and_the_same_tokenizer(
    tmp_path, gguf, small_decoder, tokenizer
):
    folder = tmp_path / "out"
    folder.mkdir()
    convert(gguf, folder)
    config = ModelConfig.from_folder(folder)
    model = load_decoder(folder, config, device="cpu", dtype=torch.float32)
    ids = torch.tensor([[5, 900, 17, 2000, 31]])
    positions = torch.arange(5)[None]
    got, want = (each(ids, positions, attend_causally) for each in (model, small_decoder))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    own = TextTokenizer.from_folder(folder)
    text = "HAMLET.\nTo be, or not to be: 1603! <|end|>\n  naïve 🙂"
    assert own.encode(text) == tokenizer.encode(text)
    assert own.control_ids == tokenizer.control_ids
    assert own.encode_chat([{"content": "Hail"}]) == tokenizer.encode("Hail")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"GGUF\x03", b"GGUX\x03", "not a GGUF file"),
        (b"GGUF\x03", b"GGUF\x09", "version 9"),
        (b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0gemma", "architecture gemma"),
        (b"smollm", b"marmot", "pre-tokenizer marmot"),
        (b"blk.2.attn_q.weight", b"blk.2.attn_z.weight", r"blk\.2\.attn_z\.weight"),
    ],
)
def test_what_cannot_be_converted_is_named(tmp_path, gguf, old, new, message):
    gguf.write_bytes(gguf.read_bytes().replace(old, new, 1))
    with pytest.raises(ModelError, match=message):
        convert(gguf, tmp_path)


@pytest.mark.parametrize("share", [0.001, 0.2, 0.9])
def test_a_file_cut_short_is_an_error_not_a_crash(tmp_path, gguf, share):
    whole = gguf.read_bytes()
    gguf.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelError):
        convert(gguf, tmp_path)


def test_saving_and_loading_a_checkpoint_changes_nothing(tmp_path, small_decoder):
    save_decoder(small_decoder, tmp_path / "model.safetensors", dtype=torch.float32)
    model = load_decoder(tmp_path, small_decoder.config, device="cpu", dtype=torch.float32)
    for name, tensor in small_decoder.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=0, atol=0)
    torch.testing.assert_close(model.frequencies, small_decoder.frequencies)


def test_a_checkpoint_that_does_not_fit_its_config_is_named(tmp_path, small_decoder):
    with pytest.raises(ModelError, match=r"neither model\.safetensors"):
        load_decoder(tmp_path, small_decoder.config, device="cpu", dtype=torch.float32)
    save_decoder(small_decoder, tmp_path / "model.safetensors", dtype=torch.float32)
    wide = {name: getattr(small_decoder.config, name) for name in small_decoder.config.__slots__}
    for change, message in (
        ({"num_hidden_layers": 4}, r"no tensor model\.layers\.3"),
        ({"intermediate_size": 41}, r"gate_proj\.weight has shape \(40, 24\), config\.json says \(41, 24\)"),
    ):
        with pytest.raises(ModelError, match=message):
            load_decoder(tmp_path, ModelConfig(**{**wide, **change}), device="cpu", dtype=torch.float32)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ModelError, match="not a safetensors file"):
        load_decoder(tmp_path, small_decoder.config, device="cpu", dtype=torch.float32)


def test_a_tied_checkpoint_has_one_matrix_for_both_ends(tmp_path, small_config):
    sizes = {name: getattr(small_config, name) for name in small_config.__slots__}
    model = Decoder(ModelConfig(**{**sizes, "tie_word_embeddings": True}))
    save_decoder(model, tmp_path / "model.safetensors", dtype=torch.float32)
    loaded = load_decoder(tmp_path, model.config, device="cpu", dtype=torch.float32)
    assert loaded.head.weight.data_ptr() == loaded.embedding.weight.data_ptr()
