"""SmolLM2-135M-Instruct, where it can be had: the weights mean what they should."""

from __future__ import annotations

import pytest
import torch

from reference_engine.catalog import fetch_smollm2, smollm2_gguf
from reference_engine.config import EngineConfig, Switches
from reference_engine.engine import Engine
from reference_engine.gguf import GgufFile
from reference_engine.model import attend_causally
from reference_engine.model_config import ModelConfig
from reference_engine.packing import pack_linears
from reference_engine.tokenizer import TextTokenizer
from reference_engine.weights import load_decoder

pytestmark = [pytest.mark.models]


@pytest.fixture(scope="module")
def engine():
    folder = fetch_smollm2()
    return Engine.load(
        folder, EngineConfig.resolve(ModelConfig.from_folder(folder), Switches(max_model_len=512))
    )


def say(engine, request_of, finish, max_tokens=24, **prompts):
    for name, prompt in prompts.items():
        engine.add(request_of(name, prompt, ignore_eos=False, max_tokens=max_tokens))
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


PROMPTS = (
    "The capital of France is", "Once upon a time", "def fibonacci(n):", "1, 2, 3, 4,", "Dear Sir or Madam,",
    "Water boils at", "The three primary colours are", "SELECT name FROM", "In 1969, the first man",
    "To be, or not to be", "import numpy as np\n", "The opposite of hot is", "My favourite recipe:\n\n1.",
    "Photosynthesis is", "Q: What is 7 times 8?\nA:",
    "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n",
    "Il était une fois", '{"name": "Anna", "age":', "The sun rises in the", "☃ means",
)  # fmt: skip


@pytest.mark.slow
def test_twenty_prompts_go_on_as_with_transformers():
    transformers = pytest.importorskip("transformers")
    folder = fetch_smollm2()
    ours = load_decoder(folder, ModelConfig.from_folder(folder), device="cpu", dtype=torch.float32)
    theirs = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    pack_linears(ours)
    tokenizer = TextTokenizer.from_folder(folder)
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt)
        said = theirs.generate(
            torch.tensor([ids]), max_new_tokens=16, min_new_tokens=16, do_sample=False, eos_token_id=None
        )
        positions = torch.arange(said.shape[1])[None]
        with (
            torch.inference_mode()
        ):  # one pass over all of it: every token must be the best after those before
            logits = ours.logits(ours(said, positions, attend_causally))[0]
            wanted = theirs(said).logits[0]
        torch.testing.assert_close(logits, wanted, rtol=0, atol=2e-3)
        assert logits[len(ids) - 1 : -1].argmax(-1).tolist() == said[0, len(ids) :].tolist(), prompt


SWITCHES = {
    "contiguous": {"kv_cache": "contiguous"},
    "no cache, by the textbook": {"kv_cache": "none", "attention": "plain"},
    "small blocks, small chunks": {"block_size": 4, "max_num_batched_tokens": 8, "max_num_seqs": 8},
    "whole prompts, one at a time": {"enable_chunked_prefill": False, "max_num_seqs": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES.keys())
def test_twenty_prompts_say_the_same_whatever_the_switches(engine, request_of, finish, switches):
    config = EngineConfig.resolve(engine.model_config, Switches(max_model_len=512, **switches))
    other = Engine(engine.runner.model, engine.tokenizer, config)
    prompts = {prompt: engine.tokenizer.encode(prompt) for prompt in PROMPTS}
    said = [say(one, request_of, finish, max_tokens=6, **prompts) for one in (engine, other)]
    assert said[0] == said[1]
