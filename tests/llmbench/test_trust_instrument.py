"""When the instrument was too late to see what it reports, and when not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmbench.columns import from_records
from llmbench.report.summary import summarise
from tests.llmbench.sample_runs import MS, ok_record, open_loop, steady_run

SELF = {"timestamps": "loop", "timestamps_note": None, "loop_lag_p99_s": 0.0005, "read_lag_p99_s": None}


def reasons(instrument, records=None):
    """{code: reason} of a run with TTFT 200 ms or so and gaps of 20 ms."""
    made, context = steady_run()
    context = replace(context, instrument=SELF | instrument)
    summary = summarise(from_records(made if records is None else records), context)
    return {reason["code"]: reason for reason in summary["verdict"]["reasons"]}


@pytest.mark.parametrize(
    ("instrument", "severity"),
    [
        ({}, None),
        ({"loop_lag_p99_s": 0.0019}, None),
        ({"loop_lag_p99_s": None}, None),
        ({"loop_lag_p99_s": 0.004}, None),
        ({"loop_lag_p99_s": 0.006}, "SUSPECT"),
        ({"loop_lag_p99_s": 0.015}, "SUSPECT"),
        ({"loop_lag_p99_s": 0.5}, "INVALID"),
        ({"loop_lag_p99_s": 0.5, "timestamps": "kernel", "read_lag_p99_s": 0.5}, None),
    ],
)
def test_a_late_loop_counts_where_it_stamps(instrument, severity):
    found = reasons(instrument).get("loop_late")
    assert (found["severity"] if found else None) == severity
    if found:
        assert found["measured"] > found["limit"]


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ("instrument.timestamps: loop", "instrument.timestamps: auto"),
        ("the kernel's stamps are of packets, which TLS hides", "plain http"),
        ("the kernel stamps arrivals on 64-bit Linux only", "other work"),
    ],
)
def test_the_remedy_fits_the_cause(note, said):
    assert said in reasons({"loop_lag_p99_s": 0.5, "timestamps_note": note})["loop_late"]["hint"]


def shared(index, *, share, bound_ms):
    events = [index * MS + (200 + 20 * number) * MS for number in range(20)]
    return ok_record(
        index,
        sent=index * MS,
        events=events,
        due_ns=index * MS,
        shared_events=round(share * 20),
        shared_bound_ns=bound_ms * MS if share else None,
        read_lag_ns=MS,
    )


@pytest.mark.parametrize(
    ("share", "bound_ms", "lag_s", "is_told"),
    [
        (0.0, 0, 0.030, False),
        (0.05, 30, 0.030, True),
        (0.5, 30, 0.030, True),
        (0.5, 30, 0.0005, False),  # read at once: the server sent them together
        (0.5, 5, 0.030, False),  # all within less than a gap
    ],
)
def test_events_read_together_count_where_the_read_was_late(share, bound_ms, lag_s, is_told):
    made = [shared(index, share=share, bound_ms=bound_ms) for index in range(100)]
    summary = summarise(
        from_records(made),
        open_loop(instrument=SELF | {"timestamps": "kernel", "read_lag_p99_s": lag_s}),
    )
    stamps = summary["instrument"]["stamps"]
    assert stamps["shared_share"] == pytest.approx(share)
    assert stamps["shared_bound_max_s"] == (bound_ms / 1e3 if share else None)
    codes = {reason["code"] for reason in summary["verdict"]["reasons"]}
    assert ("stamps_shared" in codes) == is_told


@pytest.mark.parametrize(("step_s", "is_told"), [(0.0, False), (2.0, True), (-0.5, True), (None, False)])
def test_a_clock_that_was_set_is_told(step_s, is_told):
    found = reasons({"clock_step_s": step_s}).get("clock_step")
    assert (found is not None) == is_told
    if found:
        assert found["measured"] == step_s
        assert f"{step_s:+.3g} s" in found["message"]


def test_a_client_whose_facts_are_not_known_is_not_accused():
    made, context = steady_run()
    summary = summarise(from_records(made), context)
    assert {"loop_late", "stamps_shared", "clock_step"}.isdisjoint(
        reason["code"] for reason in summary["verdict"]["reasons"]
    )
