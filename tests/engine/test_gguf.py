"""GGUF files written here by the letter of the format are read back, tensor, tokenizer and all."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import sys

import gguf as gguf_package
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tokenizers import pre_tokenizers

from reference_engine.catalog import model_folder
from reference_engine.errors import ModelError
from reference_engine.gguf import GgufFile, unpermute
from reference_engine.gguf_convert import config_of, convert
from reference_engine.gguf_tokenizer import tokenizer_of, tokenizer_settings
from reference_engine.listing import listing
from reference_engine.model import Decoder, attend_causally
from reference_engine.model_config import ModelConfig, RopeScaling
from reference_engine.tokenizer import TextTokenizer
from reference_engine.weights import load_decoder, save_decoder
from tests.engine.gguf_files import (
    as_f32,
    byte_level_metadata,
    metadata_of,
    random_decoder,
    sentence_piece_metadata,
    tensors_of,
    write_gguf,
)

F16, Q4_1, Q8_0 = 1, 3, 8


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


SMALL = {
    "vocab_size": 4,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 8,
}
LLAMA3 = RopeScaling(kind="llama3", factor=8.0, original_max_position_embeddings=32)
YARN = RopeScaling(
    kind="yarn", factor=4.0, original_max_position_embeddings=24, attention_factor=0.1 * math.log(4) + 1
)
FAMILIES = {
    "llama": ("llama", {}),
    "llama, tied and biased": (
        "llama",
        {"tie_word_embeddings": True, "qkv_bias": True, "o_bias": True, "mlp_bias": True},
    ),
    "llama3": ("llama", {"rope_scaling": LLAMA3}),
    "linear": ("llama", {"rope_scaling": RopeScaling(kind="linear", factor=2.0)}),
    "qwen2": ("qwen2", {"qkv_bias": True, "rope_scaling": YARN}),
    "qwen3": ("qwen3", {"qk_norm": True}),
}


def changed(config, changes):
    return dataclasses.replace(config, **changes)


@pytest.fixture
def gguf(tmp_path, small_decoder, tiny_folder):
    words = byte_level_metadata((tiny_folder / "tokenizer.json").read_text(encoding="utf-8"), "smollm")
    metadata = metadata_of(small_decoder.config, "llama") | words
    return write_gguf(tmp_path / "model.gguf", metadata, tensors_of(small_decoder, "llama"))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_converted_file_computes_what_the_network_does(tmp_path, tiny_folder, small_config, name):
    family, changes = FAMILIES[name]
    model = random_decoder(changed(small_config, changes))
    words = byte_level_metadata((tiny_folder / "tokenizer.json").read_text(encoding="utf-8"), "smollm")
    path = write_gguf(
        tmp_path / "a.gguf", metadata_of(model.config, family) | words, tensors_of(model, family)
    )
    convert(path, tmp_path)
    loaded = load_decoder(tmp_path, ModelConfig.from_folder(tmp_path), device="cpu", dtype=torch.float32)
    ids, positions = torch.arange(90)[None] * 31, torch.arange(90)[None]
    got, want = (each(ids, positions, attend_causally) for each in (loaded, model))
    torch.testing.assert_close(got, want, rtol=2e-3, atol=2e-3 if "rope_scaling" in changes else 1e-4)


def test_a_converted_file_has_the_tokenizer_of_the_network(tmp_path, tokenizer, gguf):
    convert(gguf, tmp_path)
    own = TextTokenizer.from_folder(tmp_path)
    text = "HAMLET.\nTo be, or not to be: 1603! <|end|>\n  naïve 🙂"
    assert own.encode(text) == tokenizer.encode(text)
    assert own.control_ids == tokenizer.control_ids
    assert own.encode_chat([{"content": "Hail"}]) == tokenizer.encode("Hail")


def test_sentence_pieces_are_joined_best_score_first(tmp_path):
    mark = "\u2581"
    letters = [mark, *"abdehlow,."]
    pieces = ["he", "ll", "lo", "hell", "hello", mark + "hello", "ow", mark + "b", *letters]
    file = GgufFile(write_gguf(tmp_path / "a.gguf", sentence_piece_metadata(pieces), {}))
    tokenizer = tokenizer_of(file)
    for text, wanted in (
        ("hello", ["<s>", mark + "hello"]),
        ("hell bowl", ["<s>", mark, "hell", mark + "b", "ow", "l"]),
        ("llow", ["<s>", mark, "ll", "ow"]),
        ("a ☃", ["<s>", mark, "a", mark, "<0xE2>", "<0x98>", "<0x83>"]),
    ):
        encoded = tokenizer.encode(text)
        assert encoded.tokens == wanted
        assert tokenizer.decode(encoded.ids) == text
    assert tokenizer.encode("a", add_special_tokens=False).tokens == [mark, "a"]


@pytest.mark.parametrize(
    ("pre", "text", "wanted"),
    [
        ("smollm", " 12'll", ["Ġ", "1", "2", "'ll"]),
        ("gpt-2", " 12'll\n\n x", ["Ġ12", "'ll", "Ċ", "Ċ", "Ġx"]),
        ("llama-bpe", " 12345'LL\n\n x", ["Ġ", "123", "45", "'LL", "ĊĊ", "Ġx"]),
        ("qwen2", " 123'LL!\n", ["Ġ", "1", "2", "3", "'LL", "!Ċ"]),
        ("default", "a+b 1234", ["a", "+", "b", "Ġ", "123", "4"]),
    ],
)
def test_text_is_cut_as_the_model_is_used_to(tmp_path, pre, text, wanted):
    """A vocabulary of whole words and of bytes: a word in one piece has been cut out in one piece."""
    whole = [word for word in wanted if len(word) > 1]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges, known = [], []
    for word in whole:
        for end in range(2, len(word) + 1):
            if word[:end] not in known:
                known.append(word[:end])
                merges.append(f"{word[: end - 1]} {word[end - 1]}")
    tokens = [*alphabet, *known]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
    }
    tokenizer = tokenizer_of(GgufFile(write_gguf(tmp_path / "a.gguf", metadata, {})))
    assert tokenizer.encode(text, add_special_tokens=False).tokens == wanted
    assert tokenizer.encode(text).tokens[: len(tokenizer.encode(text).tokens) - len(wanted)] == (
        [tokens[0]] if pre == "llama-bpe" else []
    )


def test_a_file_by_its_path_is_converted_once(tmp_path, monkeypatch, gguf):
    monkeypatch.setenv("LLMBENCH_CACHE", str(tmp_path / "cache"))
    folder = model_folder(str(gguf))
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert model_folder(str(gguf)) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    (entry,) = [entry for entry in listing() if entry["source"] == str(gguf)]
    assert (entry["name"], entry["licence"], entry["is_here"]) == (str(gguf), "mit", True)
    os.utime(gguf, ns=(1, 1))
    assert model_folder(str(gguf)) != folder
    gguf.write_bytes(gguf.read_bytes()[:-5000])
    with pytest.raises(ModelError, match="does not fit into the file"):
        model_folder(str(gguf))
    assert not list((tmp_path / "cache").rglob(".partial-*"))


@pytest.mark.parametrize("name", [kind.name for kind in gguf_package.quants._type_traits])
def test_every_quantization_is_dequantized_as_by_the_gguf_package(tmp_path, name):
    kind = gguf_package.GGMLQuantizationType[name]
    rng = np.random.default_rng(7)
    weights = rng.standard_normal((4, 512)).astype(np.float32)
    try:
        raw = gguf_package.quants.quantize(weights, kind)
    except NotImplementedError:  # can be read, not made, by the package: any bytes are some weights
        per, num_bytes = gguf_package.GGML_QUANT_SIZES[kind]
        raw = rng.integers(0, 256, (4, 512 // per * num_bytes), np.uint8)
    path = write_gguf(tmp_path / "a.gguf", {}, {"w": ((4, 512), int(kind), raw.tobytes())})
    with np.errstate(all="ignore"):
        wanted = gguf_package.quants.dequantize(raw, kind)
    np.testing.assert_array_equal(GgufFile(path).tensor("w"), wanted)


@given(
    weights=arrays(np.float32, (2, 256), elements=st.floats(-1e3, 1e3, width=32)),
    name=st.sampled_from(["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_weights_are_dequantized_as_by_the_gguf_package(tmp_path, weights, name):
    kind = gguf_package.GGMLQuantizationType[name]
    with np.errstate(all="ignore"):  # tiny weights have no scale in half precision
        raw = gguf_package.quants.quantize(weights, kind)
        wanted = gguf_package.quants.dequantize(raw, kind)
    path = write_gguf(tmp_path / "a.gguf", {}, {"w": ((2, 256), int(kind), raw.tobytes())})
    np.testing.assert_array_equal(GgufFile(path).tensor("w"), wanted)


@given(at=st.integers(4, 3000), bits=st.integers(1, 255))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_flipped_byte_of_the_header_never_crashes(tmp_path, at, bits):
    metadata = metadata_of(ModelConfig(**SMALL), "llama") | sentence_piece_metadata(["a", "b"])
    path = write_gguf(tmp_path / "a.gguf", metadata, {"w": ((1, 32), 8, bytes(34))})
    raw = bytearray(path.read_bytes())
    raw[at % len(raw)] ^= bits
    path.write_bytes(raw)
    with contextlib.suppress(ModelError):
        file = GgufFile(path)
        for name in file.tensors:
            file.tensor(name)
        tokenizer_of(file)


WRONG = ["text", "", 7.5, float("inf"), 0, 1, 2**31, True, ["a", "b"], ["", ""], [1, 2], [0.5], []]


@pytest.mark.parametrize("words", ["byte level", "sentence pieces"])
def test_metadata_of_the_wrong_kind_is_named_and_never_crashes(tmp_path, small_decoder, tiny_folder, words):
    """A number where a list should be once ended in a TypeError, deep inside."""
    json_text = (tiny_folder / "tokenizer.json").read_text(encoding="utf-8")
    own = (
        byte_level_metadata(json_text, "smollm") if words == "byte level" else sentence_piece_metadata(["a"])
    )
    right = metadata_of(small_decoder.config, "llama") | own
    refusals = []
    for key, wrong in itertools.product(right, WRONG):
        path = write_gguf(tmp_path / "odd.gguf", right | {key: wrong}, tensors_of(small_decoder, "llama"))
        try:
            file = GgufFile(path)
            config_of(file)
            tokenizer_of(file)
            tokenizer_settings(file)
        except ModelError as error:
            refusals.append(str(error))
    assert len(refusals) > 100
    assert all("odd.gguf" in said for said in refusals)


def test_the_key_and_what_it_must_be_are_named(tmp_path):
    path = write_gguf(tmp_path / "a.gguf", {"llama.block_count": "six"}, {})
    with pytest.raises(
        ModelError, match=r"a\.gguf: metadata llama\.block_count is 'six'; it must be a whole"
    ):
        GgufFile(path)


def test_without_the_package_the_plain_types_are_named(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "a.gguf", {}, {"w": ((1, 32), 2, bytes(18))})
    assert GgufFile(path).tensor("w").tolist() == [[0.0] * 32]
    monkeypatch.setitem(sys.modules, "gguf.constants", None)
    with pytest.raises(ModelError, match=r"w is of GGUF type 2; without the package `gguf` only F32, F16"):
        GgufFile(path).tensor("w")
    monkeypatch.undo()
    path = write_gguf(tmp_path / "a.gguf", {}, {"w": ((1, 32), 99, bytes(18))})
    with pytest.raises(ModelError, match="w is of GGUF type 99, which is not known"):
        GgufFile(path).tensor("w")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"GGUF\x03", b"GGUX\x03", "not a GGUF file"),
        (b"GGUF\x03", b"GGUF\x09", "version 9"),
        (
            b"\x05\0\0\0\0\0\0\0llama",
            b"\x05\0\0\0\0\0\0\0gemma",
            "architecture gemma; supported: llama, qwen2",
        ),
        (b"smollm", b"marmot", "pre-tokenizer marmot; supported: gpt-2"),
        (b"llama.block_count", b"llama.block_claim", r"metadata llama\.block_count is missing"),
        (b"ggml.token_type", b"ggml.taken_type", r"metadata tokenizer\.ggml\.token_type is missing"),
        (b"token_embd.weight", b"token_embe.weight", r"no tensor token_embd\.weight"),
        (b"blk.2.attn_q.weight", b"blk.2.attn_z.weight", r"blk\.2\.attn_z\.weight"),
    ],
)
def test_what_cannot_be_converted_is_named(tmp_path, gguf, old, new, message):
    gguf.write_bytes(gguf.read_bytes().replace(old, new, 1))
    with pytest.raises(ModelError, match=message):
        convert(gguf, tmp_path)


@given(share=st.floats(0, 0.999))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_file_cut_short_is_an_error_not_a_crash(tmp_path, gguf, share):
    whole, cut = gguf.read_bytes(), tmp_path / "cut.gguf"
    cut.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelError, match=r"cut\.gguf"):
        convert(cut, tmp_path)


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
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    header["model.norm.weight"]["dtype"] = "I32"
    typed = json.dumps(header).encode()
    for damaged, message in (
        (b"", "not a safetensors file, or cut short"),
        (b"nonsense" * 9, "not a safetensors file, or cut short"),
        (whole[: length // 2], "not a safetensors file, or cut short"),
        (whole[:8] + b"x" * length, "not a readable safetensors file"),
        (whole[:-1], r"cut short: [\d,]+ bytes of [\d,]+ are there"),
        (
            len(typed).to_bytes(8, "little") + typed + whole[8 + length :],
            r"norm\.weight is I32; supported: F64",
        ),
    ):
        path.write_bytes(damaged)
        with pytest.raises(ModelError, match=rf"model\.safetensors: .*{message}"):
            load_decoder(tmp_path, small_decoder.config, device="cpu", dtype=torch.float32)


def test_a_tied_checkpoint_has_one_matrix_for_both_ends(tmp_path, small_config):
    sizes = {name: getattr(small_config, name) for name in small_config.__slots__}
    model = Decoder(ModelConfig(**{**sizes, "tie_word_embeddings": True}))
    save_decoder(model, tmp_path / "model.safetensors", dtype=torch.float32)
    loaded = load_decoder(tmp_path, model.config, device="cpu", dtype=torch.float32)
    assert loaded.head.weight.data_ptr() == loaded.embedding.weight.data_ptr()
