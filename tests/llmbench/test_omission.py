"""What a run did not ask: arrivals as delivered, and the stalls of a closed loop."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.columns import from_records
from llmbench.omission import IN_ONE_PIECE, dispersion, gap_distance, silences
from llmbench.records import Outcome
from llmbench.report.summary import summarise
from tests.llmbench.sample_runs import MS, S, closed_loop, failed_record, ok_record, open_loop

RUNS = 400

# ---- arrivals


def open_run(due_ns, sent_ns, *, ttft=2 * S, **more):
    records = [
        ok_record(i, due_ns=int(due), sent=int(sent), events=[int(sent) + ttft, int(sent) + ttft + 50 * MS])
        for i, (due, sent) in enumerate(zip(due_ns, sent_ns, strict=True))
    ]
    return summarise(from_records(records), open_loop(**more))


def codes(summary):
    return [reason["code"] for reason in summary["verdict"]["reasons"]]


CONSTANT = np.arange(1000) * 20 * MS
POISSON = np.cumsum(np.random.default_rng(2).exponential(20 * MS, 1000)).astype(np.int64)
BURSTS = np.repeat(np.arange(10) * 2 * S, 50)


@pytest.mark.parametrize("due", [CONSTANT, POISSON, BURSTS], ids=["constant", "poisson", "bursts"])
@pytest.mark.parametrize("constant_ms", [0, 40])
def test_a_millisecond_of_lag_distorts_nothing_nor_does_what_all_have_alike(due, constant_ms):
    lag = np.random.default_rng(3).exponential(0.3 * MS, len(due)) + constant_ms * MS
    summary = open_run(due, due + lag)
    assert codes(summary) == []
    assert summary["arrivals"]["ks"] < 0.1
    assert summary["arrivals"]["moved_share"] < 0.1


def test_what_was_due_at_one_instant_may_leave_one_after_another():
    due = np.zeros(500, dtype=np.int64)
    assert codes(open_run(due, np.arange(500) * 0.15 * MS, ttft=4 * S)) == []


@pytest.mark.parametrize("due", [CONSTANT, POISSON], ids=["constant", "poisson"])
def test_a_client_that_sends_in_clumps_is_told(due):
    """Everything due within 90 ms leaves together at its end; beside a TTFT of two seconds it is not late."""
    sent = -(-due // (90 * MS)) * 90 * MS
    summary = open_run(due, sent)
    assert codes(summary) == ["arrivals_distorted"]
    assert summary["arrivals"]["ks"] > 0.2
    assert summary["verdict"]["status"] == "SUSPECT"


def test_clumps_of_many_gaps_show_in_the_dispersion():
    """At 1,000 a second all of 90 ms at once: few gaps differ by more than what any client needs."""
    due = np.arange(5000) * MS
    summary = open_run(due, -(-due // (170 * MS)) * 170 * MS, ttft=4 * S)
    found = summary["arrivals"]
    assert found["ks"] < 0.2
    assert found["dispersion_sent"] > found["dispersion_planned"] + 0.5
    assert codes(summary) == ["arrivals_distorted"]
    assert "clumps" in summary["verdict"]["reasons"][0]["message"]


def test_lateness_that_is_told_is_not_told_again():
    sent = -(-CONSTANT // (90 * MS)) * 90 * MS
    assert codes(open_run(CONSTANT, sent, ttft=200 * MS)) == ["client_late"]


def test_a_closed_loop_has_no_planned_arrivals():
    assert summarise(from_records([ok_record(i) for i in range(50)]), closed_loop())["arrivals"] is None


NUMBERS = st.lists(st.integers(0, 20), min_size=1, max_size=40)


@given(NUMBERS, NUMBERS)
def test_without_tolerance_it_is_the_distance_of_kolmogorov_and_smirnov(planned, sent):
    points = np.arange(21)
    shares = [np.array([np.mean(np.array(values) <= x) for x in points]) for values in (planned, sent)]
    expected = np.abs(shares[0] - shares[1]).max()
    found = gap_distance(np.array(planned, float), np.array(sent, float), 0.0)
    assert found == pytest.approx(expected)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(-5, 5)), min_size=1, max_size=60))
def test_gaps_that_moved_by_less_than_the_tolerance_have_no_distance(gaps):
    planned = np.array([gap for gap, _ in gaps], dtype=float)
    sent = planned + np.array([moved for _, moved in gaps])
    assert gap_distance(planned, sent, 5.0) == 0
    assert 0 <= gap_distance(planned, sent, 1.0) <= 1


def test_dispersion_is_nothing_for_a_constant_rate_and_one_for_poisson_arrivals():
    assert dispersion(CONSTANT, -10 * MS, 20 * S, 2e8) == 0
    many = np.cumsum(np.random.default_rng(5).exponential(20 * MS, 50_000)).astype(np.int64)
    assert dispersion(many, 0, int(many[-1]), 2e8) == pytest.approx(1, abs=0.05)
    assert dispersion(BURSTS, -1, 20 * S, 1e9) > 10
    assert dispersion(CONSTANT, 0, 10 * MS, 1e8) is None


# ---- from due: what was never sent


def test_what_was_never_sent_is_infinite_from_due():
    records = [ok_record(i, due_ns=0, sent=MS, events=[100 * MS, 110 * MS]) for i in range(60)]
    records += [
        failed_record(60 + i, outcome, due_ns=0, sent_ns=None, end_ns=None)
        for i, outcome in enumerate([Outcome.DROPPED] * 30 + [Outcome.CANCELLED] * 10)
    ]
    whole, stopped = (
        summarise(from_records(records), open_loop(interrupted=interrupted))["attempts"]["ttft_due"]
        for interrupted in (False, True)
    )
    assert (whole["count"], whole["failed"], whole["p50"], whole["p90"]) == (100, 40, 0.1, None)
    assert (stopped["count"], stopped["failed"]) == (90, 30)
    closed = summarise(from_records(records), closed_loop())["attempts"]
    assert closed["ttft_due"]["count"] == closed["e2e_due"]["count"] == 0


# ---- stalls of a closed loop


def closed_run(
    *, users=10, num=100, stalls=(), ttft=100 * MS, think=0, tokens=5, gap=20 * MS, streamed=True, seed=None
):
    """Every user asks again when the answer is there; a stall (start, length) puts everything off by it."""
    chance = np.random.default_rng(seed)

    def later(instant):
        for start, length in stalls:
            if instant >= start:
                instant += length
        return instant

    records = []
    for user in range(users):
        at = user * 7 * MS
        for _ in range(num):
            factor = float(chance.lognormal(0, 0.6)) if seed is not None else 1.0
            events = [at + round(ttft * factor) + step * gap for step in range(tokens)]
            shown = [later(event) for event in events]
            more = {} if streamed else {"first_event_ns": None, "first_answer_ns": None}
            records.append(
                ok_record(
                    len(records),
                    sent=later(at),
                    events=shown if streamed else shown[-1:],
                    end_ns=shown[-1],
                    **more,
                )
            )
            at = events[-1] + think
    return summarise(from_records(records), closed_loop())


def test_a_stall_says_how_many_requests_were_never_asked():
    summary = closed_run(stalls=[(5 * S, 2 * S)])
    assert codes(summary) == ["closed_loop_stall"]
    (stall,) = summary["closed_loop"]["stalls"]
    assert stall["duration_s"] == pytest.approx(2.0, abs=0.05)
    assert stall["start_s"] == pytest.approx(5.0, abs=0.05)
    assert stall["waiting"] == 10
    # Ten users, 180 ms a request: 55.6 a second for two seconds.
    assert summary["closed_loop"]["withheld_requests"] == pytest.approx(111, abs=4)
    assert summary["closed_loop"]["ttft_p99_corrected_s"] == pytest.approx(2.0, abs=0.1)
    assert summary["metrics"]["ttft"]["p95"] < 0.2
    (reason,) = summary["verdict"]["reasons"]
    assert "nothing was sent while 10 users waited" in reason["message"]
    assert "load.arrivals: poisson, load.rate: 5" in reason["hint"]


def test_the_corrected_percentile_is_that_of_the_open_loop_that_met_the_same_stall():
    """A server that answers in 100 ms and stands still for two seconds; both loops at 50 a second."""
    due = np.arange(1000) * 20 * MS
    waits = np.where(due < 8 * S, 2 * S, 10 * S - due) * ((due > 8 * S - 100 * MS) & (due < 10 * S))
    ttft = waits + 100 * MS
    opened = np.percentile(ttft / S, 99)
    closed = closed_run(users=5, num=180, tokens=1, stalls=[(8 * S, 2 * S)])
    assert closed["closed_loop"]["ttft_p99_corrected_s"] == pytest.approx(opened, rel=0.05)


def test_several_stalls_are_counted_together():
    summary = closed_run(stalls=[(2 * S, S), (6 * S, S), (9 * S, S)])
    assert len(summary["closed_loop"]["stalls"]) == 3
    assert summary["closed_loop"]["stalled_s"] == pytest.approx(3, abs=0.1)
    assert "in 3 stalls" in summary["verdict"]["reasons"][0]["message"]


HEALTHY = {
    "steady": {},
    "long answers": {"tokens": 200, "num": 5, "users": 4},
    "long answers, one user": {"tokens": 200, "num": 5, "users": 1},
    "a slow first token, one user": {"ttft": 3 * S, "tokens": 10, "num": 30, "users": 1},
    "one user": {"users": 1},
    "few users who think": {"users": 2, "think": 3 * S, "num": 20},
    "long thoughts": {"users": 10, "think": 20 * S, "num": 5},
    "in one piece": {"streamed": False, "ttft": 2 * S, "num": 20, "seed": 1},
    "in one piece, one user": {"streamed": False, "ttft": 2 * S, "num": 100, "users": 1, "seed": 2},
    "in one piece, eight users": {"streamed": False, "ttft": 2 * S, "num": 100, "users": 8, "seed": 7},
    "in one piece, four users": {"streamed": False, "ttft": 2 * S, "num": 100, "users": 4, "seed": 3},
    "uneven first tokens, one user": {"users": 1, "num": 300, "ttft": S, "tokens": 50, "seed": 4},
    "uneven first tokens, two users": {"users": 2, "num": 300, "ttft": S, "tokens": 50, "seed": 5},
    "one token, four users": {"users": 4, "num": 200, "ttft": S, "tokens": 1, "seed": 6},
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_a_healthy_closed_loop_has_no_stall(kind):
    summary = closed_run(**HEALTHY[kind])
    assert summary["closed_loop"]["stalls"] == []
    assert "closed_loop_stall" not in codes(summary)
    assert summary["closed_loop"]["withheld_requests"] == 0


@pytest.mark.parametrize(("users", "times"), [(5, 5.0), (8, 3.0)])
def test_users_whose_answers_come_in_one_piece_are_seldom_all_silent_by_chance(users, times):
    """The premise of the limits: E2E lognormal with a sigma of 1, its median 1, 500 requests."""
    chance, silent = np.random.default_rng(9), 0
    for _ in range(RUNS):
        ends = [np.cumsum(chance.lognormal(0, 1, 500 // users)) for _ in range(users)]
        together = np.sort(np.concatenate(ends))
        gaps = np.diff(together[together <= min(each[-1] for each in ends)])
        silent += gaps.max() >= times
    assert silent <= RUNS // 100
    assert (users, times) in IN_ONE_PIECE


def test_a_short_stall_of_a_long_run_is_listed_and_no_reason():
    summary = closed_run(num=700, ttft=40 * MS, stalls=[(5 * S, round(0.7 * S))])
    assert len(summary["closed_loop"]["stalls"]) == 1
    assert codes(summary) == []


def test_the_last_long_answer_after_the_end_of_the_sends_is_no_stall():
    records = [ok_record(i, sent=i * 50 * MS, events=[i * 50 * MS + 40 * MS]) for i in range(100)]
    last = records[-1].sent_ns
    records += [ok_record(100 + i, sent=last + i, events=[last + 20 * S]) for i in range(5)]
    assert summarise(from_records(records), closed_loop())["closed_loop"]["stalls"] == []
    planned = replace(closed_loop(), window_ns=(0, 5 * S))
    assert summarise(from_records(records), planned)["closed_loop"]["stalls"] == []


def test_an_open_loop_withholds_nothing():
    assert open_run(CONSTANT, CONSTANT)["closed_loop"] is None


@given(st.lists(st.integers(0, 400), max_size=30), st.integers(1, 100))
def test_silences_are_the_gaps_between_instants(at_ms, least_ms):
    instants = np.array(at_ms, dtype=np.int64) * MS + MS // 2
    ordered = sorted(set(at_ms))
    expected = [((a + 1) * MS, b * MS) for a, b in pairwise(ordered) if b - a - 1 >= least_ms]
    half = len(instants) // 2
    assert silences([instants[:half], instants[half:]], 0, 400 * MS + MS, least_ms * MS) == expected
