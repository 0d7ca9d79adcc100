"""GGUF files mean to us what they mean to llama.cpp: the same tokens in, the same tokens out."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from reference_engine.gguf_convert import convert
from reference_engine.model import attend_causally
from reference_engine.model_config import ModelConfig, RopeScaling
from reference_engine.tokenizer import TextTokenizer
from reference_engine.weights import load_decoder
from tests.engine.gguf_files import (
    byte_level_metadata,
    metadata_of,
    random_decoder,
    sentence_piece_metadata,
    tensors_of,
    write_gguf,
)

pytestmark = [pytest.mark.slow]
pytest.importorskip(
    "xllamacpp", reason="the wheel xllamacpp brings llama.cpp; pip install 'llmbench[llamacpp]'"
)

SERVER = Path(__file__).parents[1] / "e2e" / "llamacpp_server.py"
TEXTS = (
    "To be, or not to be: that is the question.",
    "In 12345 days, I'LL pay $1,000.50 (don't!)\n\n  naïve  ☃ 🙂\t日本語 ...\r\n",
    "a+b=c ^_^ x<y~z |w|  1st 2nd ½ ²",
    "   leading and trailing   ",
)
LETTERS = "etaoinshrdlucmfwypvbgkjqxz.,:$0123456789"
PIECES = [
    "\u2581to",
    "\u2581be",
    "\u2581the",
    "th",
    "at",
    "is",
    "que",
    "stion",
    "\u2581b",
    "\u2581t",
    "qu",
    "st",
]
PIECES += ["ion", "io", "to", "be", "he", "\u2581", *LETTERS]
YARN = RopeScaling(kind="yarn", factor=4.0, original_max_position_embeddings=32)
LLAMA3 = RopeScaling(kind="llama3", factor=8.0, original_max_position_embeddings=32)
CASES = {
    "llama, smollm": ("llama", {}, "smollm"),
    "llama, gpt-2, tied, biases": (
        "llama",
        {"tie_word_embeddings": True, "qkv_bias": True, "o_bias": True},
        "gpt-2",
    ),
    "llama, SentencePiece, linear": ("llama", {"rope_scaling": RopeScaling(kind="linear", factor=2.0)}, None),
    "llama 3": ("llama", {"rope_scaling": LLAMA3}, "llama-bpe"),
    "qwen2, yarn": ("qwen2", {"qkv_bias": True, "rope_scaling": YARN}, "qwen2"),
    "qwen3, default": ("qwen3", {"qk_norm": True}, "default"),
}


@contextmanager
def llamacpp(path):
    server = subprocess.Popen(
        [sys.executable, str(SERVER), str(path), "--slots", "1", "--context", "256"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        url = next((line.split()[-1] for line in server.stdout if line.startswith("llama.cpp ready")), None)
        assert url is not None, "llama.cpp's server ended before it was ready"
        yield lambda where, **body: ask(url + where, body)
    finally:
        server.terminate()
        server.communicate(timeout=30)


def ask(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@pytest.mark.parametrize("name", CASES)
def test_llamacpp_reads_the_same_from_the_file(tmp_path, tiny_folder, small_config, name):
    family, changes, pre = CASES[name]
    if pre is None:
        words = sentence_piece_metadata(PIECES)
    else:
        words = byte_level_metadata((tiny_folder / "tokenizer.json").read_text(encoding="utf-8"), pre)
        words["tokenizer.ggml.bos_token_id"] = 1
    sizes = {"hidden_size": 48, "intermediate_size": 64, "vocab_size": len(words["tokenizer.ggml.tokens"])}
    config = dataclasses.replace(small_config, **{**sizes, **changes})
    model = random_decoder(config)
    path = write_gguf(tmp_path / "a.gguf", metadata_of(config, family) | words, tensors_of(model, family))
    convert(path, tmp_path)
    ours = load_decoder(tmp_path, ModelConfig.from_folder(tmp_path), device="cpu", dtype=torch.float32)
    tokenizer = TextTokenizer.from_folder(tmp_path)
    with llamacpp(path) as theirs:
        for text in TEXTS:
            wanted = theirs("/tokenize", content=text, add_special=True)["tokens"]
            assert tokenizer.encode(text) == wanted, text
        prompt = tokenizer.encode(TEXTS[0])[:60]
        sampling = {
            "n_predict": 24,
            "temperature": 0,
            "ignore_eos": True,
            "return_tokens": True,
            "n_probs": 0,
        }
        said = theirs("/completion", prompt=prompt, cache_prompt=False, **sampling)["tokens"]
    ids = list(prompt)
    for token in said:
        logits = ours.logits(ours(torch.tensor([ids]), torch.arange(len(ids))[None], attend_causally))[0, -1]
        best = logits.topk(2)
        assert token == int(best.indices[0]) or logits[token] > best.values[0] - 0.02 * logits.std()
        ids.append(token)
    assert len(said) == 24
