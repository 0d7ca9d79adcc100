"""The instrument's watch over itself: lags of every kind, and what the verdict makes of them."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.client.kernel_stamps import WallClock
from llmbench.replay import self_probe
from llmbench.replay.self_probe import Lags, SelfProbe


@given(st.lists(st.lists(st.integers(min_value=0, max_value=10**9), max_size=50), max_size=50))
def test_few_lags_are_all_kept(groups):
    lags = Lags()
    for group in groups:
        lags.add(group)
    every = sorted(lag for group in groups for lag in group)
    if not every:
        assert lags.percentile(50) is None
        return
    assert lags.percentile(0) == every[0] / 1e9
    assert lags.percentile(100) == every[-1] / 1e9
    assert lags.second() == every[-1] / 1e9
    assert lags.second() == 0.0
    assert lags.largest_ns == every[-1]


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_many_lags_are_sampled_evenly(monkeypatch, size):
    monkeypatch.setattr(self_probe, "_SAMPLES_KEPT", 1000)
    lags = Lags()
    for start in range(0, 100_000, size):
        lags.add(range(start, min(start + size, 100_000)))
    assert lags.percentile(50) == pytest.approx(50_000e-9, rel=0.05)
    assert lags.percentile(99) == pytest.approx(99_000e-9, rel=0.05)
    assert lags.second() == 99_999e-9


async def test_a_collection_shows_as_a_pause():
    probe = SelfProbe(WallClock(), Lags())
    before = probe.whole()["gc_pauses"]
    gc.collect()
    row = probe.second()
    probe.close()
    assert probe.whole()["gc_pauses"] > before
    assert 0 < row["gc_pause_max_s"] <= probe.whole()["gc_pause_max_s"] < 5
    count = probe.whole()["gc_pauses"]
    gc.collect()
    assert probe.whole()["gc_pauses"] == count  # it no longer listens


async def test_a_clock_that_was_set_shows(monkeypatch):
    wall = WallClock()
    probe = SelfProbe(wall, Lags())
    assert probe.whole()["clock_step_s"] == 0
    wall.offset_ns -= 2_000_000_000
    probe.second()
    probe.close()
    assert probe.whole()["clock_step_s"] == pytest.approx(2.0, abs=0.01)


async def test_time_in_the_run_queue_is_a_share():
    probe = SelfProbe(WallClock(), Lags())
    until = time.perf_counter() + 0.05
    while time.perf_counter() < until:
        pass
    await asyncio.sleep(0.01)
    share = probe.second()["run_queue_share"]
    probe.close()
    assert share is None or 0 <= share < 1.01
