"""Counts as a run goes, and the instrument watching itself."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.client.kernel_stamps import WallClock
from llmbench.load.plan import make_plan
from llmbench.records import Outcome, RequestRecord
from llmbench.replay.self_probe import Lags, SelfProbe
from llmbench.replay.tally import _LATEST, EverySecond, Tally, _Latest
from llmbench.scenario.model import Scenario

S = 10**9


def ended(outcome=Outcome.OK, phase="measure", events_s=(0.2, 0.4), tokens=3, **fields):
    record = RequestRecord(index=0, phase=phase, outcome=outcome, sent_ns=0, output_tokens=tokens, **fields)
    record.event_ns = [round(at * S) for at in events_s]
    if "event_tokens" not in fields:
        record.event_tokens = [1] * len(events_s)
    return record


def test_only_measured_successes_are_timed():
    tally = Tally()
    tally.add(ended())
    tally.add(ended(phase="warmup", events_s=(9,)))
    tally.add(ended(Outcome.TIMEOUT, events_s=(9,)))
    tally.add(ended(Outcome.DROPPED, events_s=()))
    tally.add(ended(events_s=()))
    assert (tally.errors, tally.dropped) == (1, 1)
    assert tally.ttft(50) == pytest.approx(0.2)
    assert tally.tpot(95) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "record", [ended(tokens=1), ended(tokens=0), ended(tokens=None), ended(event_tokens=None)], ids=str
)
def test_no_time_per_token_where_it_is_undefined(record):
    tally = Tally()
    tally.add(record)
    assert tally.tpot(50) is None
    assert tally.ttft(50) is not None


def test_nothing_yet_is_none():
    assert Tally().ttft(50) is None


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.sampled_from([0, 50, 95, 100]))
def test_percentiles_are_those_of_all_values_while_they_are_few(values, percent):
    latest = _Latest()
    for value in values:
        latest.add(value)
    assert latest.percentile(percent) == pytest.approx(float(np.percentile(values, percent)))


def test_then_only_the_latest_count():
    latest = _Latest()
    for value in range(3 * _LATEST + 100):
        latest.add(value)
    assert latest.percentile(0) == 2 * _LATEST + 100
    assert latest.percentile(100) == 3 * _LATEST + 99


@pytest.mark.alone
async def test_a_stalled_loop_shows_in_its_own_second():
    probe = SelfProbe(WallClock(), Lags())
    await asyncio.sleep(0.1)
    quiet = probe.second()
    time.sleep(0.15)  # noqa: ASYNC251 -- the stall is the point
    await asyncio.sleep(0.05)
    stalled = probe.second()
    await asyncio.sleep(0.05)
    after = probe.second()
    assert stalled["loop_lag_max_s"] > 0.1
    assert quiet["loop_lag_max_s"] < 0.1 > after["loop_lag_max_s"]
    probe.close()
    whole = probe.whole()
    assert whole["loop_lag_p99_s"] > 0.05
    assert 0 <= whole["cpu_share"] <= 1.2


@pytest.mark.alone
async def test_a_busy_second_shows_as_cpu():
    probe = SelfProbe(WallClock(), Lags())
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert probe.second()["cpu_share"] > 0.1  # of a core that others use as well
    probe.close()


async def test_a_run_of_an_instant_has_no_lag_to_tell():
    probe = SelfProbe(WallClock(), Lags())
    probe.close()
    assert probe.whole()["loop_lag_p99_s"] is None


@pytest.mark.alone
async def test_samples_come_once_a_second_also_after_a_stall():
    seconds, often = [], []
    clockwork = EverySecond(seconds.append, often.append)
    await asyncio.sleep(0.3)
    time.sleep(0.9)  # noqa: ASYNC251 -- the stall is the point
    await asyncio.sleep(0.95)
    clockwork.close()
    await asyncio.sleep(0.3)
    assert seconds == [1.0, 2.0]
    assert len(often) == 8
    assert often == sorted(often)


def rated(plan, *ends_s):
    tally = Tally(plan)
    for end_s in ends_s:
        tally.add(ended(end_ns=round(end_s * 1e9)))
    return tally


def plan_of(**load):
    workload = {"kind": "synthetic", "input_tokens": 8, "output_tokens": 8}
    target = {"url": "http://127.0.0.1:1"}
    return make_plan(Scenario.model_validate({"target": target, "load": load, "workload": workload}))


def test_the_live_rates_are_those_of_the_summary():
    """A ramp from 0 to 20/s reads 10/s over all of it, not the 20/s at its end."""
    plan = plan_of(arrivals="constant", stages=[{"ramp_to": 20.0, "for": 60.0}])
    tally = rated(plan, *(due_ns / 1e9 + 0.001 for due_ns in plan.due_ns.tolist()))
    achieved, offered = tally.rates(60 * S)
    assert offered == len(plan.due_ns) / 60 == pytest.approx(10, rel=0.01)
    assert achieved == pytest.approx(offered, rel=0.01)
    assert tally.rates(90 * S) == (achieved, offered)  # while the run drains, too


def test_the_warm_up_is_left_out_of_the_live_rates_once_it_is_over():
    plan = plan_of(arrivals="constant", rate=10.0, warmup=5.0, duration=10.0)
    tally = rated(plan, 1, 2, 3, 5.5, 6)
    assert tally.rates(5 * S) == (3 / 5, 10.0)
    assert tally.rates(7 * S) == (1.0, 10.0)
    assert tally.rates(0) == (0.0, None)


def test_live_no_more_is_achieved_than_was_offered():
    tally = rated(plan_of(arrivals="constant", rate=10.0, warmup=5.0, duration=10.0), *[5.01] * 50)
    assert tally.rates(6 * S) == (10.0, 10.0)


def test_a_closed_loop_has_no_offered_rate_nor_has_all_at_once():
    closed = rated(plan_of(arrivals="closed", concurrency=2, duration=10.0), 1, 2)
    assert closed.rates(4 * S) == (0.5, None)
    burst = rated(plan_of(arrivals="burst", requests=8), 1, 2)
    assert burst.rates(4 * S) == (0.5, None)
    assert Tally().rates(S) == (0.0, None)
