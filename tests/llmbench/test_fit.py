"""Prompts hit the length asked for, whatever the tokenizer, from a few counts and no tokenizer of our own."""

from __future__ import annotations

import asyncio
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmbench.errors import UsageError
from llmbench.scenario.model import Scenario
from llmbench.workload.data import load_data
from llmbench.workload.fit import fit_text, stated_fit, tokenizer_count
from llmbench.workload.prompts import make_workload
from llmbench.workload.vocabulary import VOCABULARY

tokenizers = pytest.importorskip("tokenizers")

SOURCES = Path(__file__).parents[2] / "llmbench" / "workload"
SYSTEM = "You are a patient teacher who explains things in plain words."


@cache
def trained(vocab_size: int, corpus: str):
    """A byte-level BPE, trained here: on prose of our words, or on source code that holds few of them."""
    if corpus == "prose":
        texts = [" ".join(VOCABULARY.prose(400, np.random.default_rng(seed))) for seed in range(15)]
    else:
        texts = [path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.py"))]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, show_progress=False, initial_alphabet=byte_level.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def bpe(vocab_size: int, corpus: str):
    return lambda text: len(trained(vocab_size, corpus).encode(text).ids)


TOKENIZERS = {
    "words": lambda text: len(text.split()),
    "words and blanks": lambda text: 2 * len(text.split()) - 1,
    "bytes": lambda text: len(text.encode()),
    "4 characters": lambda text: -(-len(text) // 4),
    "3 characters": lambda text: -(-len(text) // 3),
    "BPE 300 of code": bpe(300, "code"),
    "BPE 500 of code": bpe(500, "code"),
    "BPE 1500 of code": bpe(1500, "code"),
    "BPE 700 of prose": bpe(700, "prose"),
    "BPE 3000 of prose": bpe(3000, "prose"),
}


class Server:
    """Counts prompt tokens as a server would: a template around every message, and the text's own tokens."""

    def __init__(self, count, template=9, message=5):
        self._count, self._template, self._message = count, template, message
        self.num_asked = 0

    def tokens(self, messages) -> int:
        texts = [self._count(message["content"]) for message in messages]
        return self._template + self._message * (len(texts) - 1) + sum(texts)

    async def count(self, text):
        self.num_asked += 1
        return self.tokens([{"content": text}])

    async def count_with_system(self, system, text):
        self.num_asked += 1
        return self.tokens([{"content": system}, {"content": text}])


def fitted(server, **more):
    return asyncio.run(fit_text(server.count, source="usage", **more))


@cache
def fit_of(name: str):
    return fitted(Server(TOKENIZERS[name]))


@cache
def fit_with_system(name: str):
    server = Server(TOKENIZERS[name])
    return fitted(server, systems=[SYSTEM], count_with_system=server.count_with_system)


def source(fit, *, seed=1, salt="s", **workload):
    scenario = Scenario.model_validate(
        {
            "target": {"url": "http://localhost"},
            "load": {"arrivals": "closed", "concurrency": 1, "requests": 1},
            "workload": {"kind": "synthetic", "output_tokens": 1, **workload},
            "seed": seed,
        }
    )
    return make_workload(scenario, load_data(scenario), fit=fit, salt=salt)


def is_near(real: int, asked: int) -> bool:
    return abs(real - asked) <= max(2, 0.02 * asked)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_at_most_eight_counts_are_asked_for(name):
    server = Server(TOKENIZERS[name])
    fit = fitted(server)
    assert server.num_asked == fit.report.num_probes <= 8
    assert fit.report.source == "usage"
    assert fit.report.expected_error < 0.02


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("words", "one cost"),
        ("words and blanks", "one cost"),
        ("bytes", "per character"),
        ("4 characters", "per character"),
        ("BPE 500 of code", "per word"),
        ("BPE 3000 of prose", "one cost"),
    ],
)
def test_the_method_suits_the_tokenizer(name, method):
    assert fit_of(name).report.method == method


@given(
    name=st.sampled_from(sorted(TOKENIZERS)),
    asked=st.integers(40, 3000),
    index=st.integers(0, 10**6),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
def test_fitted_prompts_are_within_two_percent_or_two_tokens(name, asked, index, seed):
    server = Server(TOKENIZERS[name])
    spec = source(fit_of(name), seed=seed, input_tokens=asked).spec(index)
    assert spec.input_tokens_asked == asked
    assert is_near(server.tokens(spec.messages), asked)


@given(
    name=st.sampled_from(["words", "4 characters", "BPE 500 of code", "BPE 3000 of prose"]),
    prefix=st.integers(20, 600),
    own=st.integers(150, 600),
    index=st.integers(0, 100),
    cache_mode=st.sampled_from(["cold", "warm", "mixed"]),
)
@settings(deadline=None, max_examples=40)
def test_prefix_system_message_and_salt_are_counted_in(name, prefix, own, index, cache_mode):
    server, fit, system = Server(TOKENIZERS[name]), fit_with_system(name), SYSTEM
    requests = source(
        fit,
        input_tokens=own,
        prefix={"tokens": prefix, "groups": 3},
        system=system,
        cache=cache_mode,
    )
    spec = requests.spec(index)
    assert spec.input_tokens_asked == prefix + own
    # Without a salt the system message stands first, where in a tiny vocabulary its first word costs
    # otherwise.
    slack = 3 if cache_mode != "cold" else 0
    real = server.tokens(spec.messages)
    assert is_near(real, prefix + own) or abs(real - prefix - own) <= 2 + slack


def test_a_system_message_is_measured_or_else_estimated():
    system = "one two three four five six"
    server = Server(TOKENIZERS["words"], message=7)
    measured = fitted(server, systems=[system], count_with_system=server.count_with_system)
    assert measured.tokens_of_system(system) == 6 + 7
    text_only = fitted(server, systems=[system])
    assert text_only.tokens_of_system(system) == 6 + 4
    assert stated_fit().tokens_of_system(system) == pytest.approx(len(system) / 4 + 4)
    assert stated_fit().tokens_of_system(None) == 0


def test_the_overhead_is_the_templates():
    assert fitted(Server(TOKENIZERS["words"], template=37)).report.overhead_tokens == 37


@pytest.mark.parametrize(
    ("answers", "num_probes"),
    [([None], 1), ([12] * 8, 6), ([0] * 8, 6), ([500, 10, 10, 10, 10, 10, 10, 10], 6)],
    ids=["cannot count", "always the same", "always zero", "falls"],
)
def test_counts_that_make_no_sense_leave_a_stated_fit_named_so(answers, num_probes):
    left = iter(answers)

    async def count(text):
        return next(left)

    fit = asyncio.run(fit_text(count, source="usage"))
    assert fit.report.source == "estimate"
    assert fit.report.method == "stated"
    assert fit.report.num_probes == num_probes
    assert (fit.overhead_tokens, fit.per_word) == (8.0, 1.0)
    assert asyncio.run(fit_text(_never, source="usage", is_chat=False)).overhead_tokens == 0.0


async def _never(text):
    return None


def test_a_server_that_stops_counting_half_way_leaves_an_average():
    server = Server(TOKENIZERS["BPE 500 of code"])

    async def count(text):
        return await server.count(text) if server.num_asked < 3 else None

    fit = asyncio.run(fit_text(count, source="usage"))
    assert fit.report.method == "average"
    assert 1 < fit.per_word < 4


def test_a_local_tokenizer_learns_every_word(tmp_path):
    path = tmp_path / "tokenizer.json"
    trained(1500, "code").save(str(path))
    fit = asyncio.run(fit_text(tokenizer_count(path), source="tokenizer"))
    assert fit.report.num_words == len(VOCABULARY.words)
    count = TOKENIZERS["BPE 1500 of code"]
    spec = source(fit, input_tokens=800).spec(3)
    assert is_near(8 + count(spec.messages[0]["content"]), 800)


def test_a_broken_or_missing_tokenizer_is_named(tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(UsageError, match=r"target\.tokenizer: .*tokenizer\.json cannot be read"):
        tokenizer_count(path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match="pip install tokenizers"):
        tokenizer_count(path)
