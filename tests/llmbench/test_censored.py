"""Kaplan and Meier's estimate: the textbook's arithmetic, its invariants, and what a run makes of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.censored import curve, percentile
from llmbench.columns import from_records
from llmbench.records import Outcome
from llmbench.report.summary import summarise
from llmbench.report.terminal import render_summary
from tests.llmbench.sample_runs import MS, S, closed_loop, failed_record, ok_record

TIMES = st.lists(st.integers(1, 30), min_size=1, max_size=40)


def test_the_remission_times_of_freireich_are_those_of_the_textbook():
    """21 patients on 6-MP, weeks (Freireich 1963; Kalbfleisch and Prentice, table 1.2)."""
    ended = np.array([6, 6, 6, 7, 10, 13, 16, 22, 23], dtype=float)
    cut = np.array([6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35], dtype=float)
    times, at_most = curve(ended, cut)
    assert times.tolist() == [6, 7, 10, 13, 16, 22, 23]
    expected = [0.857, 0.807, 0.753, 0.690, 0.627, 0.538, 0.448]
    assert (1 - at_most).tolist() == pytest.approx(expected, abs=5e-4)
    assert percentile(ended, cut, 90) is None
    assert 22 <= percentile(ended, cut, 50) <= 23


@given(TIMES, st.lists(st.integers(1, 30), max_size=40))
def test_the_curve_is_the_product_over_the_ends(ended, cut):
    times, at_most = curve(np.array(ended, float), np.array(cut, float))
    survival = 1.0
    for time, share in zip(times, at_most, strict=True):
        at_risk = sum(t >= time for t in ended + cut)
        survival *= 1 - ended.count(int(time)) / at_risk
        assert share == pytest.approx(1 - survival, abs=1e-9)
        # What was cut off lasted longer: never more ended by now than the successes alone would say.
        assert share <= np.mean(np.array(ended) <= time) + 1e-9


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=60), st.floats(0, 100))
def test_with_nothing_cut_off_it_is_the_plain_percentile(ended, percent):
    found = percentile(np.array(ended), np.empty(0), percent)
    assert found == pytest.approx(np.percentile(ended, percent), rel=1e-12)


@given(TIMES, st.lists(st.integers(31, 40), min_size=1, max_size=5), st.floats(0, 100))
def test_cut_off_after_every_end_it_is_the_percentile_of_all_as_far_as_they_ended(ended, cut, percent):
    """The interpolation is the plain one's: then what is cut off is only known to be above."""
    found = percentile(np.array(ended, float), np.array(cut, float), percent)
    everything = sorted(ended) + [max(ended)] * len(cut)
    if percent / 100 > len(ended) / (len(ended) + len(cut)) + 1e-9:
        assert found is None
    elif found is not None:
        assert found == pytest.approx(np.percentile(everything, percent))


@given(TIMES, TIMES)
def test_percentiles_rise_and_lie_between_the_ends(ended, cut):
    found = [
        percentile(np.array(ended, float), np.array(cut, float), percent) for percent in range(0, 101, 5)
    ]
    known = [value for value in found if value is not None]
    assert known == sorted(known)
    assert found[len(known) :] == [None] * (len(found) - len(known))
    assert all(min(ended) <= value <= max(ended) for value in known)


def test_of_exponential_times_cut_off_at_their_median_the_median_is_found():
    chance = np.random.default_rng(1)
    times, patience = chance.exponential(1, 4000), chance.exponential(1.5, 4000)
    ended, cut = times[times <= patience], patience[times > patience]
    assert percentile(ended, cut, 50) == pytest.approx(np.log(2), rel=0.05)
    assert np.median(ended) < 0.6 * np.log(2) * 1.2  # the successes alone look faster


# ---- of a run


def finished(index, ttft_ms):
    return ok_record(index, events=[ttft_ms * MS, 2 * ttft_ms * MS])


def run_of(*others):
    records = [finished(i, 100 + i) for i in range(60)]
    return summarise(from_records([*records, *others]), closed_loop())


def test_without_unfinished_requests_both_views_are_one():
    summary = run_of()
    assert summary["censored"]["count"] == 0
    for name in ("ttft", "e2e"):
        for stat in ("p50", "p90", "p95", "p99"):
            assert summary["censored"][name][stat] == summary["metrics"][name][stat]


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.TIMEOUT])
def test_the_unfinished_are_censored_and_the_failed_are_not(outcome):
    cut = [failed_record(60 + i, outcome, sent_ns=0, end_ns=30 * S) for i in range(40)]
    broken = [failed_record(100 + i, Outcome.HTTP_ERROR) for i in range(10)]
    summary = run_of(*cut, *broken)
    assert summary["censored"]["count"] == 40
    ttft = summary["censored"]["ttft"]
    assert (ttft["count"], ttft["unfinished"]) == (100, 40)
    assert ttft["p50"] == pytest.approx(np.percentile([*range(100, 160), *[9999] * 40], 50) / 1e3)
    assert ttft["p95"] is None
    assert "TTFT by Kaplan-Meier, 40 unfinished: p50 1" in render_summary(summary)


def test_a_first_token_that_came_is_known_though_the_rest_was_cut_off():
    started = failed_record(
        60,
        Outcome.CANCELLED,
        sent_ns=0,
        end_ns=S,
        event_ns=[500 * MS],
        event_tokens=[1],
        first_event_ns=500 * MS,
    )
    censored = run_of(started)["censored"]
    assert censored["ttft"]["unfinished"] == 0
    assert censored["ttft"]["count"] == censored["e2e"]["count"] == 61
    assert censored["e2e"]["unfinished"] == 1


def test_never_sent_is_neither():
    unsent = failed_record(60, Outcome.CANCELLED, sent_ns=None, end_ns=None)
    assert run_of(unsent)["censored"]["count"] == 0
