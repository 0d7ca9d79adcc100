"""The live view: what is written for a snapshot, on a terminal and in a log."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.replay.live import (
    LiveSnapshot,
    PlainLines,
    RewrittenBlock,
    observer_for,
    progress_block,
    progress_line,
    repaint,
    short_time,
)

HALFWAY = LiveSnapshot(
    elapsed_s=32.0,
    total_s=70.0,
    done=118,
    planned=247,
    in_flight=6,
    rate_asked_per_s=4.0,
    rate_achieved_per_s=3.98,
    ttft_p50_s=0.179,
    ttft_p95_s=0.338,
    tpot_p50_s=0.0213,
    tpot_p95_s=0.026,
    errors=0,
    dropped=0,
    phase="measure",
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_line_says_time_requests_latency_and_errors():
    expected = "  32 s of 70   118 of 247 done   6 in flight   ttft 179/338 ms   tpot 21.3 ms   0 errors"
    assert progress_line(HALFWAY) == expected


def test_before_the_first_token_a_log_line_shows_no_latency():
    start = replace(
        HALFWAY, ttft_p50_s=None, ttft_p95_s=None, tpot_p50_s=None, tpot_p95_s=None, phase="warmup"
    )
    assert "ttft" not in progress_line(start)
    assert progress_line(start).endswith("warm-up")


def test_the_block_shows_time_left_and_both_rates():
    text = "\n".join(progress_block(HALFWAY))
    assert "38 s left" in text
    assert "3.98/s of 4/s asked" in text
    assert "21.3 ms" in text
    assert "26 ms" in text


def test_a_run_that_ends_by_requests_projects_the_time_left():
    by_requests = replace(HALFWAY, total_s=None, planned=236)
    assert "about 32 s left" in progress_block(by_requests)[0]


def test_a_closed_loop_over_time_shows_neither_a_plan_nor_an_asked_rate():
    closed = replace(HALFWAY, planned=None, rate_asked_per_s=None)
    assert "118 done" in progress_line(closed)
    assert "asked" not in "\n".join(progress_block(closed))


def test_dropped_arrivals_are_shown_when_there_are_any():
    assert "dropped" not in progress_line(HALFWAY)
    assert "12 dropped" in progress_line(replace(HALFWAY, dropped=12))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0 µs"),
        (0.000_25, "250 µs"),
        (0.000_999_6, "1 ms"),
        (0.0214, "21.4 ms"),
        (0.1824, "182 ms"),
        (0.9996, "1 s"),
        (2.914, "2.91 s"),
        (75.0, "75 s"),
        (1234.0, "1,234 s"),
    ],
)
def test_times_keep_three_digits_and_a_unit(seconds: float | None, text: str):
    assert short_time(seconds) == text


@given(st.floats(min_value=1e-6, max_value=1e4))
def test_a_shown_time_is_within_half_a_percent_of_the_true_one(seconds: float):
    number, unit = short_time(seconds).split(" ")
    shown = float(number.replace(",", "")) * {"µs": 1e-6, "ms": 1e-3, "s": 1.0}[unit]
    assert shown == pytest.approx(seconds, rel=0.0051)


def test_plain_output_is_one_line_every_ten_seconds_and_never_a_carriage_return():
    stream = io.StringIO()
    view = PlainLines(stream)
    view.started("chat-steady   http://127.0.0.1:8000", 247, 70.0)
    for quarter in range(4 * 70):
        view.progress(replace(HALFWAY, elapsed_s=quarter / 4))
    view.finished()
    text = stream.getvalue()
    assert len(text.splitlines()) == 1 + 6
    assert "\r" not in text
    assert "\x1b" not in text


def test_a_stalled_observer_does_not_make_up_for_missed_lines():
    stream = io.StringIO()
    view = PlainLines(stream)
    for elapsed_s in (9.9, 35.0, 36.0, 40.1):
        view.progress(replace(HALFWAY, elapsed_s=elapsed_s))
    assert [line.split(" of ")[0].strip() for line in stream.getvalue().splitlines()] == ["35 s", "40 s"]


def test_the_block_is_painted_over_itself_and_wiped_at_the_end():
    stream = Terminal()
    view = RewrittenBlock(stream)
    view.started("chat-steady\nopen loop", 247, 70.0)
    view.progress(HALFWAY)
    view.progress(HALFWAY)
    view.finished()
    view.finished()
    num_lines = len(["chat-steady", "open loop", "", *progress_block(HALFWAY)])
    assert stream.getvalue().count(f"\x1b[{num_lines}F") == 2
    assert stream.getvalue().endswith(f"\x1b[{num_lines}F\x1b[J")


def test_a_notice_stays_below_the_block_until_the_run_ends():
    stream = Terminal()
    view = RewrittenBlock(stream)
    view.waiting("starting the reference engine")
    view.started("chat-steady", None, None)
    view.progress(HALFWAY)
    assert stream.getvalue().count("reference engine") == 1
    view.waiting("interrupted: waiting for 6 in flight")
    view.progress(HALFWAY)
    view.progress(HALFWAY)
    assert stream.getvalue().count("interrupted: waiting for 6 in flight") == 3


@given(width=st.integers(min_value=2, max_value=200))
def test_no_line_of_the_block_wraps(width: int):
    painted = repaint(progress_block(HALFWAY), 0, width).removeprefix("\x1b[J")
    assert all(len(line) < width for line in painted.splitlines())


class Closed(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("view", [PlainLines(Closed()), RewrittenBlock(Closed())], ids=["lines", "block"])
def test_a_reader_that_leaves_does_not_end_the_measurement(view):
    view.started("chat-steady", None, None)
    view.progress(HALFWAY)
    view.finished()


@pytest.mark.parametrize(
    ("term", "is_terminal", "is_live", "kind"),
    [
        ("xterm-256color", True, True, RewrittenBlock),
        ("xterm-256color", True, False, PlainLines),  # --no-live
        ("dumb", True, True, PlainLines),
        ("xterm-256color", False, True, PlainLines),  # a pipe
    ],
)
def test_the_view_fits_the_stream(monkeypatch, term, is_terminal, is_live, kind):
    monkeypatch.setenv("TERM", term)
    stream = Terminal() if is_terminal else io.StringIO()
    assert type(observer_for(stream, is_live=is_live)) is kind
