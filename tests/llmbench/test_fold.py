"""Folding lines: nothing too wide, nothing lost, and what is copied from a message stays in one piece."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.fold import fold

LONG = "/var/folders/" + "a" * 90 + "/reports"


def test_what_fits_stays_as_it_is():
    text = "  ttft   1 ms\n\n    indented, " + "x" * 40
    assert fold(text) == text


@given(st.lists(st.text("ab-/.", min_size=1, max_size=30), min_size=1, max_size=60))
def test_no_line_is_wider_and_no_word_is_lost_or_broken(words):
    folded = fold("  " + " ".join(words))
    assert folded.split() == words
    assert all(len(line) <= 80 for line in folded.splitlines())


def test_a_continued_line_stands_further_in():
    first, *rest = fold("    " + "word " * 40).splitlines()
    assert first.startswith("    word")
    assert all(line.startswith("      word") for line in rest)


@pytest.mark.parametrize(
    "whole",
    [LONG, f"http://{'h' * 90}/v1", f"llmbench report {LONG}", f"curl http://{'h' * 70}/v1/models"],
)
def test_paths_urls_and_commands_stay_whole(whole):
    folded = fold(f"The run was killed; what had ended can be seen with: {whole} and nothing else helps")
    assert whole in folded
