from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.columns import from_records
from llmbench.records import Outcome
from llmbench.report.markdown import render_markdown
from llmbench.report.summary import summarise
from llmbench.report.terminal import render_summary
from llmbench.report.text import duration, exact_duration, failure_name, percent, significant
from tests.llmbench.sample_runs import MS, S, closed_loop, decidable, failed_record, ok_record, steady_run

GOLDEN = Path(__file__).parents[1] / "golden"


def sound_run():
    records, context = steady_run()
    return records, decidable(context)


def late_run():
    records, context = steady_run()
    for record in records:
        if record.sent_ns and record.outcome is Outcome.OK:
            record.due_ns = record.sent_ns - 84 * MS
            record.token_source = "events"
    return records, context


def failed_run():
    records = [
        failed_record(
            index,
            Outcome.CONNECT_ERROR,
            error_kind="connection",
            error="connection to http://127.0.0.1:8000 refused, and a good deal more to say about it",
        )
        for index in range(20)
    ]
    return records, closed_loop(name="nobody-there", planned=20, target="http://127.0.0.1:8000")


def short_run():
    records = [ok_record(i, sent=i * S, events=[i * S + 200 * MS, i * S + 220 * MS]) for i in range(8)]
    records.append(failed_record(8, error_kind="stream_error", error="engine died"))
    return records, closed_loop(name="short", planned=9, load="closed loop, one at a time", model="tiny")


def empty_run():
    return [], closed_loop(name="empty")


RUNS = {
    "sound": sound_run,
    "late": late_run,
    "failed": failed_run,
    "short": short_run,
    "empty": empty_run,
}


def summary_of(run):
    records, context = run()
    return summarise(from_records(records), context)


def check_golden(name: str, text: str) -> None:
    """Compare with tests/golden; `UPDATE_GOLDEN=1 pytest …` writes the files anew, to be read in the diff."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RUNS)
def test_the_terminal_summary_reads_as_in_the_golden_file(name):
    path = "reports/20261130T204512Z-chat-steady"
    check_golden(f"terminal-{name}.txt", render_summary(summary_of(RUNS[name]), report_path=path))


@pytest.mark.parametrize("name", RUNS)
def test_the_markdown_summary_reads_as_in_the_golden_file(name):
    check_golden(f"summary-{name}.md", render_markdown(summary_of(RUNS[name])))


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("width", [80, 100])
def test_no_line_is_wider_than_the_terminal(name, width):
    text = render_summary(summary_of(RUNS[name]), width=width)
    assert max(map(len, text.splitlines())) <= width


def test_colour_changes_nothing_but_colour():
    summary = summary_of(late_run)
    coloured = render_summary(summary, color=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == render_summary(summary)


def test_the_plan_is_shown_with_the_requests_that_were_measured():
    records, context = steady_run()
    context = replace(
        context, load="open loop, Poisson 4/s for 60 s after 5 s of warm-up   240 requests, seed 7"
    )
    text = render_summary(summarise(from_records(records), context), width=100)
    assert "Poisson 4/s for 60 s after 5 s of warm-up   227 requests, seed 7\n" in text
    assert "240" not in text


def test_the_verdict_stands_before_any_number():
    text = render_summary(summary_of(late_run))
    assert text.index("INVALID") < text.index("p50")
    assert "do not use these numbers" in text


def test_a_long_name_and_model_still_fit():
    records, context = steady_run(40)
    context = replace(context, name="n" * 60, model="organisation/" + "m" * 90, planned=40)
    text = render_summary(summarise(from_records(records), context))
    assert max(map(len, text.splitlines())) <= 80


def test_what_a_server_says_cannot_break_a_markdown_table():
    record = failed_record(0, error_kind="protocol", error="a | b\n<script> `x`")
    page = render_markdown(summarise(from_records([record]), closed_loop()))
    (row,) = [line for line in page.splitlines() if "script" in line]
    assert row == r"| protocol | a \| b \<script\> \`x\` | 1 |"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (182.4, "182"),
        (21.36, "21.4"),
        (2.914, "2.91"),
        (9.996, "10.0"),
        (99.96, "100"),
        (0.0312, "0.0312"),
        (1234.5, "1,234"),
        (999.9, "1,000"),
        (0.00001, "1.0e-05"),
    ],
)
def test_numbers_have_three_significant_digits(value, text):
    assert significant(value) == text


@given(st.floats(1e-3, 1e7))
def test_what_is_shown_is_within_half_a_percent(value):
    shown = float(significant(value).replace(",", ""))
    assert shown == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize(
    ("value_s", "text"),
    [(None, "-"), (0.341, "341 ms"), (0.0214, "21.4 ms"), (2.91, "2.91 s"), (1.0, "1.00 s")],
)
def test_a_duration_has_the_unit_that_fits(value_s, text):
    assert duration(value_s) == text


@pytest.mark.parametrize(
    ("value_s", "text"), [(0.5, "500 ms"), (1.0, "1 s"), (0.0125, "12.5 ms"), (90, "90 s")]
)
def test_a_limit_is_shown_as_somebody_chose_it(value_s, text):
    assert exact_duration(value_s) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "-"),
        (0, "0 %"),
        (1, "100 %"),
        (0.979, "97.9 %"),
        (0.5, "50 %"),
        (0.9999, ">99.9 %"),
        (0.0001, "<0.1 %"),
    ],
)
def test_a_share_is_never_rounded_to_all_or_nothing(share, text):
    assert percent(share) == text


@pytest.mark.parametrize(
    ("outcome", "kind", "status", "name"),
    [
        ("http_error", "http_status", 503, "http 503"),
        ("bad_stream", "stream_error", None, "stream error"),
        ("timeout", "timeout", None, "timeout"),
        ("connect_error", "connection", None, "connect error"),
        ("dropped", None, None, "dropped"),
    ],
)
def test_a_failure_is_named_in_a_word_or_two(outcome, kind, status, name):
    assert failure_name({"outcome": outcome, "error_kind": kind, "http_status": status}) == name
