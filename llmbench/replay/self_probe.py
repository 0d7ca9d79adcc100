"""The instrument watching itself: what kept it from being on time, a second at a time and over the run.

loop lag      how late the event loop wakes for a timer, which is how late it may read a socket
read lag      how long what had arrived (by the kernel's stamp) waited to be read
run queue     how long this thread was ready to run while others had the core (schedstat, Linux)
collections   how long the garbage collector held everything up
clock step    by how much the wall clock was set
"""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmbench.client.kernel_stamps import WallClock

LAG_TICK_S = 0.02
_SAMPLES_KEPT = 1 << 17
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class Lags:
    """Read lags: the longest, and an even sample of them all that stays small however long the run."""

    def __init__(self) -> None:
        self.largest_ns = 0
        self._second_largest_ns = 0
        self._sample = array("q")
        self._every = 1
        self._skip = 0

    def add(self, lags_ns: Sequence[int]) -> None:
        """Books the lags of some reads."""
        if not lags_ns:
            return
        self._second_largest_ns = max(self._second_largest_ns, *lags_ns)
        self._sample.extend(lags_ns[self._skip :: self._every])
        self._skip = (self._skip - len(lags_ns)) % self._every
        if len(self._sample) > _SAMPLES_KEPT:
            self._sample = self._sample[::2]
            self._every *= 2

    def second(self) -> float | None:
        """The longest lag since the last call, s; None where no read was stamped."""
        largest_ns, self._second_largest_ns = self._second_largest_ns, 0
        self.largest_ns = max(self.largest_ns, largest_ns)
        return largest_ns / 1e9 if self._sample else None

    def percentile(self, percent: float) -> float | None:
        """Over the whole run, s; None where no read was stamped."""
        if not self._sample:
            return None
        return float(np.percentile(np.frombuffer(self._sample, dtype=np.int64), percent)) / 1e9


class SelfProbe:
    """One for each process that sends; made on its running loop."""

    def __init__(self, wall: WallClock, lags: Lags) -> None:
        self._loop = asyncio.get_running_loop()
        self._wall = wall
        self._read_lags = lags
        self._lags = array("d")
        self._second_lag = 0.0
        self._pause_began_ns = 0
        self._pauses_ns = array("q")
        self._second_pause_ns = 0
        self._start = self._last = _Spent()
        self._due = self._loop.time() + LAG_TICK_S
        self._timer = self._loop.call_at(self._due, self._tick)
        gc.callbacks.append(self._on_collection)

    def close(self) -> None:
        """Stops watching."""
        self._timer.cancel()
        gc.callbacks.remove(self._on_collection)

    def second(self) -> dict[str, float | None]:
        """The figures since the last call: longest lags and pauses in seconds, shares of the time passed."""
        now = _Spent()
        self._wall.look()
        row = {
            "loop_lag_max_s": self._second_lag,
            "read_lag_max_s": self._read_lags.second(),
            "gc_pause_max_s": self._second_pause_ns / 1e9,
            **now.since(self._last),
        }
        self._second_lag, self._second_pause_ns, self._last = 0.0, 0, now
        return row

    def whole(self) -> dict[str, Any]:
        """The figures of the whole run."""
        lags = np.frombuffer(self._lags, dtype=np.float64)
        self._read_lags.second()
        self._wall.look()
        return {
            "loop_lag_p99_s": float(np.percentile(lags, 99)) if len(lags) else None,
            "loop_lag_max_s": float(lags.max()) if len(lags) else None,
            "read_lag_p50_s": self._read_lags.percentile(50),
            "read_lag_p99_s": self._read_lags.percentile(99),
            "read_lag_max_s": self._read_lags.largest_ns / 1e9 if self._read_lags.percentile(50) else None,
            "gc_pauses": len(self._pauses_ns),
            "gc_pause_max_s": max(self._pauses_ns, default=0) / 1e9,
            "clock_step_s": self._wall.largest_step_ns / 1e9,
            **_Spent().since(self._start),
        }

    def _tick(self) -> None:
        # a loop that counts in whole milliseconds may wake early: that is no lag
        lag = max(0.0, self._loop.time() - self._due)
        self._lags.append(lag)
        self._second_lag = max(self._second_lag, lag)
        self._due = self._loop.time() + LAG_TICK_S
        self._timer = self._loop.call_at(self._due, self._tick)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._pause_began_ns = time.perf_counter_ns()
            return
        pause_ns = time.perf_counter_ns() - self._pause_began_ns
        self._pauses_ns.append(pause_ns)
        self._second_pause_ns = max(self._second_pause_ns, pause_ns)


class _Spent:
    """Time passed, the process's CPU time, and the time its thread waited for a core, so far; seconds."""

    def __init__(self) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self.wall_s = time.perf_counter()
        self.cpu_s = usage.ru_utime + usage.ru_stime
        self.queued_s = _queued_s()

    def since(self, before: _Spent) -> dict[str, float | None]:
        """Shares of the time between the two: `cpu_share` (of one core), `run_queue_share`."""
        wall_s = self.wall_s - before.wall_s
        if wall_s <= 0:
            return {"cpu_share": None, "run_queue_share": None}
        waited = None
        if self.queued_s is not None and before.queued_s is not None:
            waited = (self.queued_s - before.queued_s) / wall_s
        return {"cpu_share": (self.cpu_s - before.cpu_s) / wall_s, "run_queue_share": waited}


def _queued_s() -> float | None:
    """Seconds that this thread has waited on a run queue (proc(5): schedstat); None where nobody counts."""
    try:
        return int(_SCHEDSTAT.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None
