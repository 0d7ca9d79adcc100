"""SmolLM2-135M-Instruct, where it can be had: the weights mean what they should."""

from __future__ import annotations

import pytest

from reference_engine.catalog import fetch_smollm2, smollm2_gguf
from reference_engine.config import EngineConfig
from reference_engine.engine import Engine
from reference_engine.gguf import GgufFile
from reference_engine.model_config import ModelConfig

pytestmark = [pytest.mark.models]


@pytest.fixture(scope="module")
def engine():
    folder = fetch_smollm2()
    return Engine.load(folder, EngineConfig.resolve(ModelConfig.from_folder(folder), max_model_len=512))


def say(engine, request_of, finish, **prompts):
    for name, prompt in prompts.items():
        engine.add(request_of(name, prompt, ignore_eos=False, max_tokens=24))
    return {name: "".join(event.text for event in events) for name, events in finish(engine).items()}


def test_it_knows_the_capital_of_france(engine, request_of, finish):
    chat = engine.tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    plain = engine.tokenizer.encode("The capital of France is")
    said = say(engine, request_of, finish, chat=chat, plain=plain)
    assert said["chat"] == "The capital of France is Paris."
    assert said["plain"].startswith(" Paris.\n\nThe answer is: 2018-01-22")


def test_its_tokenizer_goes_there_and_back(engine):
    tokens = GgufFile(smollm2_gguf()).metadata["tokenizer.ggml.tokens"]
    for text in ("Hello world", "1234 naïve ☃ 🙂", "def f(x):\n\treturn  x\n", "don't\r\n\r\n  stop"):
        ids = engine.tokenizer.encode(text)
        assert engine.tokenizer.decode(ids) == text
    assert [tokens[i] for i in engine.tokenizer.encode("In 2024 it's")] == [
        "In", "Ġ", "2", "0", "2", "4", "Ġit", "'s",
    ]  # fmt: skip
    assert engine.tokenizer.encode("<|im_end|>") == [2]
