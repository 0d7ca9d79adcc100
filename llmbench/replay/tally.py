"""Counts as a run goes: for the live view, and the timeline's row a second. Nothing here is a result."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmbench.load.plan import Plan
from llmbench.records import Outcome, RequestRecord

_LATEST = 8192
"""Requests over which the live percentiles are taken: the latest ones."""
_LATEST_A_BEAT = 512
"""Of them so many are handed on at once: at most, a worker's beat is some ten kilobytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far the sending is. `started` counts those dropped too, `done` whatever has a record."""

    at_ns: int
    started: int
    sent: int
    done: int
    in_flight: int
    is_stopped: bool


class Tally:
    """What has ended so far. `plan` says which time is measured; without one there are no rates.

    That of a worker is emptied by `drain` four times a second, and its parent's takes it up with `absorb`.
    """

    def __init__(self, plan: Plan | None = None) -> None:
        self.errors = 0
        self.dropped = 0
        self._plan = plan
        self._answered = [0, 0]  # successes that ended before the measured window, and in it
        self._ttft = _Latest()
        self._tpot = _Latest()

    def add(self, record: RequestRecord) -> None:
        """Books a record."""
        self._count(record)
        if record.outcome is Outcome.DROPPED:
            self.dropped += 1
        elif record.outcome is not Outcome.OK:
            self.errors += 1
        elif record.event_ns and record.sent_ns is not None and record.phase == "measure":
            first, last = record.event_ns[0], record.event_ns[-1]
            self._ttft.add((first - record.sent_ns) / 1e9)
            tokens = record.output_tokens
            if tokens is not None and tokens > 1 and record.event_tokens is not None:
                self._tpot.add((last - first) / (tokens - 1) / 1e9)

    def drain(self) -> dict[str, Any]:
        """What was booked since the last call, as plain JSON values; of the times the latest ones."""
        drained = {
            "errors": self.errors,
            "dropped": self.dropped,
            "answered": self._answered,
            "ttft": self._ttft.drain(),
            "tpot": self._tpot.drain(),
        }
        self.errors = self.dropped = 0
        self._answered = [0, 0]
        return drained

    def absorb(self, drained: Mapping[str, Any]) -> None:
        """Books what another tally has drained."""
        self.errors += drained["errors"]
        self.dropped += drained["dropped"]
        self._answered = [mine + more for mine, more in zip(self._answered, drained["answered"], strict=True)]
        for latest, values in ((self._ttft, drained["ttft"]), (self._tpot, drained["tpot"])):
            for value in values:
                latest.add(value)

    def rates(self, at_ns: int) -> tuple[float, float | None]:
        """(achieved, offered) requests per second of the measured window so far, or of the warm-up while it
        lasts: what the summary says (`metrics.throughput`) when the window closes. Offered is None in a
        closed loop, and where everything is due at once.
        """
        if self._plan is None:
            return 0.0, None
        start_ns, end_ns = self._plan.window_ns
        is_measuring = at_ns > start_ns
        start_ns, end_ns = (start_ns, end_ns) if is_measuring else (0, None)
        until_ns = at_ns if end_ns is None or end_ns <= start_ns else min(at_ns, end_ns)
        seconds, answered = (until_ns - start_ns) / 1e9, self._answered[is_measuring]
        if seconds <= 0:
            return 0.0, None
        if not self._plan.is_open or end_ns == start_ns:
            return answered / seconds, None
        num_due = self._plan.num_due(start_ns, until_ns)
        return min(answered, num_due) / seconds, num_due / seconds

    def _count(self, record: RequestRecord) -> None:
        if self._plan is None or record.outcome is not Outcome.OK or record.end_ns is None:
            return
        start_ns, end_ns = self._plan.window_ns
        if end_ns is None or end_ns <= start_ns or record.end_ns <= end_ns:
            self._answered[record.end_ns >= start_ns] += 1

    def ttft(self, percent: float) -> float | None:
        """A percentile of TTFT so far, s."""
        return self._ttft.percentile(percent)

    def tpot(self, percent: float) -> float | None:
        """A percentile of TPOT so far, s."""
        return self._tpot.percentile(percent)


class _Latest:
    """The latest values, for percentiles that follow the run at a bounded cost."""

    def __init__(self) -> None:
        self._values = array("d")
        self._place = 0
        self._fresh: deque[float] = deque(maxlen=_LATEST_A_BEAT)

    def drain(self) -> list[float]:
        """The values since the last call, the latest of them."""
        fresh = list(self._fresh)
        self._fresh.clear()
        return fresh

    def add(self, value: float) -> None:
        self._fresh.append(value)
        if len(self._values) < _LATEST:
            self._values.append(value)
        else:
            self._values[self._place] = value
            self._place = (self._place + 1) % _LATEST

    def percentile(self, percent: float) -> float | None:
        if not self._values:
            return None
        return float(np.percentile(np.frombuffer(self._values, dtype=np.float64), percent))


class EverySecond:
    """Calls `sample` with the seconds since its start, once a second, and `often` four times a second."""

    def __init__(self, sample: Callable[[float], Any], often: Callable[[float], Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self._sample = sample
        self._often = often
        self._start = self._loop.time()
        self._count = 0
        self._timer = self._loop.call_later(0.25, self._tick)

    def close(self) -> None:
        """No more calls."""
        self._timer.cancel()

    def _tick(self) -> None:
        self._count += 1
        self._often(self._loop.time() - self._start)
        if self._count % 4 == 0:
            self._sample(self._count / 4)
        self._timer = self._loop.call_at(self._start + (self._count + 1) * 0.25, self._tick)
