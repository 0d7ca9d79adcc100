"""The script that made the bundled model still works, on a few lines of text."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from reference_engine.model_config import ModelConfig
from reference_engine.models.train_tiny import clean, conversations, documents, speeches
from reference_engine.tokenizer import TextTokenizer

PLAY = """ACT I

BERNARDO.
Who's there?

FRANCISCO.
[Aside.] Nay, answer me. Stand
and unfold yourself.

[Enter HORATIO.]

BERNARDO.
Long live the king!
"""
VERSES = "Genesis 1\n\n" + "".join(
    f"  {i} In the beginning God created\nheaven and earth.\n" for i in range(1, 1100)
)


def test_verses_become_prose_without_numbers():
    text = clean(VERSES)
    assert text.startswith("Genesis 1\n\nIn the beginning God created heaven and earth. In the beginning")
    assert not any(letter.isdigit() for letter in text[10:])


def test_plays_keep_their_lines():
    assert clean(PLAY) == PLAY.strip()


def test_speeches_come_without_names_and_stage_directions():
    assert speeches(PLAY) == [
        "Who's there?",
        "Nay, answer me. Stand\nand unfold yourself.",
        "Long live the king!",
    ]


def test_speeches_answer_each_other_under_the_chat_template():
    (talk,) = conversations(PLAY, random.Random(1))
    assert talk.startswith("<|user|>\nWho's there?<|end|>\n<|assistant|>\nNay, answer me.")


def test_documents_are_the_same_for_the_same_seed(tmp_path):
    path = tmp_path / "play.txt"
    path.write_text(PLAY * 40)
    assert documents([path], 3) == documents([path], 3) != documents([path], 4)


@pytest.mark.slow
def test_it_trains_a_draft_that_loads(tmp_path, tiny_folder):
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text(VERSES * 3)
    words = ["--text", str(text), "--held-out", str(text), "--tokenizer", str(tiny_folder / "tokenizer.json")]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "reference_engine.models.train_tiny",
            str(out),
            "--draft",
            "--steps",
            "2",
            *words,
        ],
        check=True,
    )
    assert ModelConfig.from_folder(out).hidden_size == 64
    assert TextTokenizer.from_folder(out).encode("In the beginning")
