"""When a run settled and whether it drifted: on series whose answer is known, and on many that are steady."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.columns import from_records
from llmbench.report.summary import summarise
from llmbench.steady import Series, drift, mser, separation, settling
from tests.llmbench.sample_runs import MS, S, closed_loop, ok_record, open_loop

RUNS = 200


def autoregressive(chance, num, phi=0.7):
    noise, values = chance.normal(size=num + 100), np.zeros(num + 100)
    for at in range(1, num + 100):
        values[at] = phi * values[at - 1] + noise[at]
    return np.exp(0.5 * values[100:])


STEADY = {
    "normal": lambda chance, num: chance.normal(1, 0.2, num).clip(0.01),
    "lognormal": lambda chance, num: chance.lognormal(0, 1, num),
    "autoregressive": autoregressive,
}


def series(values, num_warmup=0):
    return Series(np.arange(len(values)) * 100 * MS, np.asarray(values), np.arange(len(values)) >= num_warmup)


def run_of(ttfts_s, *, rate=10, warmup=0, context=None):
    """A run at a constant rate with these TTFTs, and a second of output after each."""
    records = []
    for index, ttft in enumerate(ttfts_s):
        due = index * S // rate
        first = due + round(ttft * S)
        phase = "warmup" if index < warmup else "measure"
        events = [first + step * 50 * MS for step in range(20)]
        records.append(ok_record(index, due_ns=due, sent=due, events=events, phase=phase))
    window = (warmup * S // rate, len(records) * S // rate)
    return summarise(from_records(records), context or open_loop(window_ns=window))


def codes(summary):
    return [reason["code"] for reason in summary["verdict"]["reasons"]]


# ---- chance


@pytest.mark.parametrize("num", [60, 100, 400])
@pytest.mark.parametrize("kind", STEADY)
def test_of_steady_runs_at_most_one_in_a_hundred_is_flagged(kind, num):
    chance = np.random.default_rng(num)
    flagged = 0
    for _ in range(RUNS):
        values = series(STEADY[kind](chance, num), num // 20)
        trend = drift(values, "ttft")
        flagged += trend["drifting"] or settling(values, num // 20 * 100 * MS, "ttft")["transient"]
    assert flagged <= RUNS // 100


def test_growing_queues_and_long_warm_ups_are_found_in_nearly_every_run():
    chance = np.random.default_rng(3)
    drifting = transient = 0
    for _ in range(50):
        noise = chance.lognormal(0, 0.5, 300)
        drifting += drift(series(noise + np.linspace(0, 3, 300)), "ttft")["drifting"]
        transient += settling(series(noise * np.where(np.arange(300) < 75, 3, 1)), 0, "ttft")["transient"]
    assert drifting >= 49
    assert transient >= 45


# ---- the parts


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=200))
def test_mser_is_the_definition(values):
    numbers = np.array(values, dtype=float)
    batches = [numbers[at : at + 5].mean() for at in range(0, len(values) // 5 * 5, 5)]
    errors = [
        sum((value - np.mean(batches[d:])) ** 2 for value in batches[d:]) / (len(batches) - d) ** 2
        for d in range(len(batches) // 2 + 1)
        if d < len(batches)
    ]
    cut = mser(numbers) // 5
    if len(batches) < 2:
        assert cut == 0
    else:
        assert errors[cut] == pytest.approx(min(errors), abs=1e-6)


def test_mser_cuts_a_step_where_it_is_and_nothing_off_a_constant():
    assert mser(np.where(np.arange(400) < 80, 5.0, 1.0)) == 80
    assert mser(np.ones(100)) == 0
    assert mser(np.ones(3)) == 0


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30), st.lists(st.integers(0, 9), min_size=1, max_size=30)
)
def test_separation_is_the_share_of_ordered_pairs(before, after):
    share = np.mean([(b > a) + (b == a) / 2 for b in before for a in after])
    expected = max(share, 1 - share)
    assert separation(np.array(before, float), np.array(after, float)) == pytest.approx(expected)


@given(st.floats(-0.05, 5), st.integers(40, 400))
def test_a_straight_line_has_its_own_change_and_a_closed_interval(change, num):
    found = drift(series(1 + np.linspace(0, change, num)), "ttft")
    assert found["change_s"] == pytest.approx(change, rel=1e-6, abs=1e-9)
    low, high = found["ci95_s"]
    assert low <= found["change_s"] <= high


def test_two_bursts_are_no_drift_and_one_has_no_time_to_drift_in():
    saw = np.tile(np.arange(1, 33, dtype=float), 2)
    starts = np.repeat([0, 10 * S], 32)
    everything = np.ones(64, dtype=bool)
    assert not drift(Series(starts, saw, everything), "ttft")["drifting"]
    assert drift(Series(np.zeros(64, dtype=np.int64), saw, everything), "ttft") is None


# ---- the verdict


def noise(num, seed=1):
    return np.random.default_rng(seed).lognormal(-2, 0.4, num)


def test_a_warm_up_declared_too_short_is_named_with_the_one_it_takes():
    ttfts = noise(600) * np.where(np.arange(600) < 138, 4, 1)
    summary = run_of(ttfts, warmup=50)
    assert codes(summary) == ["not_steady"]
    (reason,) = summary["verdict"]["reasons"]
    assert reason["hint"] == "set load.warmup: 14s"
    assert "9 s after the warm-up ended" in reason["message"]
    assert "which had no warm-up" in run_of(ttfts)["verdict"]["reasons"][0]["message"]
    assert summary["steady"]["settled_s"] == pytest.approx(13.8, abs=0.5)
    assert summary["steady"]["warmup_s"] == 5
    assert codes(run_of(ttfts, warmup=140)) == []


def test_a_stall_that_passed_is_no_warm_up():
    ttfts = noise(400)
    ttfts[80:120] += np.linspace(4, 0, 40)
    assert codes(run_of(ttfts)) == []


def test_a_queue_that_grows_to_the_end_is_a_drift_and_the_hint_is_a_lower_rate():
    ttfts = noise(200) + np.arange(200) * 0.05
    summary = run_of(ttfts)
    assert codes(summary) == ["drift"]
    (reason,) = summary["verdict"]["reasons"]
    assert "TTFT rose by" in reason["message"]
    assert "ask for a lower load.rate" in reason["hint"]
    assert summary["drift"]["ttft"]["change_s"] == pytest.approx(10, rel=0.05)


def test_a_slow_fall_is_a_warm_up_that_never_ended():
    summary = run_of(noise(300) * np.linspace(3, 1, 300))
    assert codes(summary) == ["drift"]
    assert "fell" in summary["verdict"]["reasons"][0]["message"]
    assert "load.warmup" in summary["verdict"]["reasons"][0]["hint"]


def test_a_load_that_changes_by_intent_is_not_asked_to_be_steady():
    context = open_loop(level_load=False, window_ns=(0, 20 * S))
    summary = run_of(noise(200) + np.arange(200) * 0.05, context=context)
    assert codes(summary) == []
    assert summary["steady"] == summary["drift"] == {"kind": "not expected"}


def test_users_that_all_start_at_once_are_too_short_a_run():
    records = [ok_record(i, sent=i, events=[(i + 1) * 50 * MS, (i + 1) * 50 * MS + 9]) for i in range(100)]
    summary = summarise(from_records(records), closed_loop())
    assert summary["steady"]["kind"] == "too short"
    assert codes(summary) == []


def test_dropped_arrivals_already_say_that_the_queue_grew():
    from llmbench.trust import judge_trust

    summary = run_of(noise(200) + np.arange(200) * 0.05)
    counts = summary["counts"]
    dropped = summary | {"counts": counts | {"measured_outcomes": {"ok": 190, "dropped": 10}}}
    assert [reason["code"] for reason in judge_trust(dropped)["reasons"]] == ["dropped_arrivals"]


def test_the_context_of_an_older_run_is_a_level_load():
    context = open_loop()
    plain = context.to_json()
    del plain["level_load"]
    assert type(context).from_json(plain) == context
    assert type(context).from_json(replace(context, level_load=False).to_json()).level_load is False
