"""What a signal does in each part of a run, without a run; with one: tests/e2e/test_interrupts.py."""

from __future__ import annotations

import os
import signal

import pytest

from llmbench.replay.interrupts import EXIT_INTERRUPTED, Interrupts


@pytest.fixture
def left(monkeypatch):
    """What was done on leaving, the exit code last."""
    done: list[object] = []
    monkeypatch.setattr(os, "_exit", done.append)
    return done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_interrupts_and_the_second_leaves(left, number):
    with Interrupts(lambda: left.append("told")) as interrupts:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert interrupts.heard
        signal.raise_signal(number)
    assert left == ["told", EXIT_INTERRUPTED]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_after_the_run_has_ended_itself_leaves(left, number):
    """Its drain was interrupted before anything was sent: what tidies up is not interrupted once more."""
    with Interrupts(lambda: left.append("told")) as interrupts:
        with pytest.raises(KeyboardInterrupt):
            interrupts.end()
        signal.raise_signal(number)
    assert left == ["told", EXIT_INTERRUPTED]


def test_what_stood_there_before_is_put_back(left):
    before = signal.getsignal(signal.SIGINT)
    with Interrupts(lambda: None):
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
    assert not left
