"""The alarm rings at the instant that was set, once, on either loop."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import pytest

from llmbench.replay.alarm import Alarm
from tests.llmbench.scripted import run_on

LOOPS = pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
WAYS = pytest.mark.parametrize("way", ["timerfd", "the loop's timer"])


@pytest.fixture
def without_timerfd(monkeypatch, request):
    def apply(way):
        if way != "timerfd":
            monkeypatch.setattr(sys, "platform", "elsewhere")
        elif not sys.platform.startswith("linux"):
            pytest.skip("timerfd is Linux's")

    return apply


def lags_ms(loop, offsets_ms):
    """How late each ring is, for alarms set one after the other."""

    async def main():
        rings = []
        rung = asyncio.Event()

        def ring():
            rings.append(time.monotonic_ns())
            rung.set()

        alarm, late = Alarm(ring), []
        start = time.monotonic_ns()
        for offset in offsets_ms:
            at = start + round(offset * 1e6)
            alarm.set(at)
            await asyncio.wait_for(rung.wait(), 5)
            rung.clear()
            late.append((rings[-1] - at) / 1e6)
        await asyncio.sleep(0.02)
        assert len(rings) == len(offsets_ms)  # once each
        alarm.close()
        return sorted(late)

    return run_on(loop, main)


@pytest.mark.alone
@LOOPS
@WAYS
def test_it_rings_when_it_should(loop, way, without_timerfd):
    """With a timerfd to some tens of microseconds; loops count in milliseconds. (Medians: machines are
    busy.)
    """
    without_timerfd(way)
    late = lags_ms(loop, [5 + 3.3 * n for n in range(40)])
    if way == "timerfd":
        assert late[0] >= 0
        assert late[len(late) // 2] < 0.5
    assert late[len(late) // 2] < 2.5


@LOOPS
@WAYS
def test_an_instant_that_has_passed_rings_at_once(loop, way, without_timerfd):
    without_timerfd(way)
    assert lags_ms(loop, [-1000, -1, -50_000])[0] > 0
    early = 10**6 - time.monotonic_ns() / 1e6  # the very start of the clock, and before
    assert len(lags_ms(loop, [early, early - 10**9])) == 2


@pytest.mark.alone
@LOOPS
@WAYS
def test_setting_again_replaces_and_closing_silences(loop, way, without_timerfd):
    without_timerfd(way)

    async def main():
        rings = []
        alarm = Alarm(lambda: rings.append(time.monotonic_ns()))
        now = time.monotonic_ns()
        alarm.set(now + 10_000_000)
        alarm.set(now + 60_000_000)
        await asyncio.sleep(0.03)
        assert rings == []
        await asyncio.sleep(0.06)
        assert len(rings) == 1
        alarm.set(time.monotonic_ns() + 5_000_000)
        alarm.close()
        await asyncio.sleep(0.02)
        assert len(rings) == 1
        alarm.close()

    run_on(loop, main)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="timerfd is Linux's")
def test_no_descriptor_is_left_open():
    async def main():
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        for _ in range(20):
            Alarm(lambda: None).close()
        return len(os.listdir("/proc/self/fd")) - before  # noqa: PTH208

    assert run_on("uvloop", main) == 0
