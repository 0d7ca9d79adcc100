"""The instrument watching itself: how late its event loop wakes, how much CPU it uses."""

from __future__ import annotations

import asyncio
import resource
import time
from array import array

import numpy as np

LAG_TICK_S = 0.02


class SelfProbe:
    """The instrument watching itself: how late the event loop wakes, how much CPU the process uses."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lags = array("d")
        self._second_lag = 0.0
        self._start = self._last = (time.perf_counter(), _cpu_seconds())
        self._due = self._loop.time() + LAG_TICK_S
        self._timer = self._loop.call_at(self._due, self._tick)

    def close(self) -> None:
        """Stops watching."""
        self._timer.cancel()

    def second(self) -> dict[str, float]:
        """The figures since the last call: `loop_lag_max_s`, and `cpu_share` of one core."""
        now = (time.perf_counter(), _cpu_seconds())
        share = (now[1] - self._last[1]) / max(now[0] - self._last[0], 1e-9)
        lag, self._second_lag, self._last = self._second_lag, 0.0, now
        return {"loop_lag_max_s": lag, "cpu_share": share}

    def whole(self) -> dict[str, float | None]:
        """The figures of the whole run."""
        wall = time.perf_counter() - self._start[0]
        lags = np.frombuffer(self._lags, dtype=np.float64)
        return {
            "loop_lag_p99_s": float(np.percentile(lags, 99)) if len(lags) else None,
            "cpu_share": (_cpu_seconds() - self._start[1]) / wall if wall > 0 else None,
        }

    def _tick(self) -> None:
        # a loop that counts in whole milliseconds may wake early: that is no lag
        lag = max(0.0, self._loop.time() - self._due)
        self._lags.append(lag)
        self._second_lag = max(self._second_lag, lag)
        self._due = self._loop.time() + LAG_TICK_S
        self._timer = self._loop.call_at(self._due, self._tick)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
