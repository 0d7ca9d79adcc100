"""Work that can wait, done in thin slices between socket reads.

Decoding finished answers and rendering bodies ahead of time share the event loop with the reads. Each
turn of the loop first serves every socket that is ready and then runs one slice; a stamp is thus delayed
by a slice at most. When a backlog grows, slices get thicker: bounded memory comes before thin slices.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator

SLICE_S = 0.0002
_FULL_BACKLOG = 256


class Slices:
    """A queue of jobs, each an iterator that yields where it can pause."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: deque[Iterator[None]] = deque()
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Iterator[None]) -> None:
        """Queues a job; it starts on a later turn of the loop."""
        self._jobs.append(job)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def finish(self) -> None:
        """Runs everything that is queued, now."""
        while self._jobs:
            for _ in self._jobs.popleft():
                pass

    def _turn(self) -> None:
        until = time.perf_counter() + SLICE_S * (1 + len(self._jobs) / _FULL_BACKLOG)
        jobs = self._jobs
        while jobs:
            try:
                next(jobs[0])
            except StopIteration:
                jobs.popleft()
            if time.perf_counter() >= until:
                break
        self._scheduled = bool(jobs)
        if jobs:
            self._loop.call_soon(self._turn)
