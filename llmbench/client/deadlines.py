"""Timeouts for every exchange in flight by one periodic sweep, instead of a timer for each request.

A sweep costs a comparison for each exchange; a timeout may be noticed up to `SWEEP_S` late, which is
small beside any sensible timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llmbench.client.exchange import Breakage, Exchange, Timeouts

SWEEP_S = 0.05

Expire = Callable[[Breakage, str], None]


class Deadlines:
    """The exchanges in flight and what to do when one runs out of time."""

    def __init__(self, timeouts: Timeouts, clock: Callable[[], int]) -> None:
        self._timeouts = timeouts
        self._clock = clock
        self._live: dict[Exchange, Expire] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._live)

    def start(self) -> None:
        """Begins sweeping on the running loop."""
        self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def stop(self) -> None:
        """Stops sweeping."""
        if self._timer is not None:
            self._timer.cancel()

    def add(self, exchange: Exchange, expire: Expire) -> None:
        """Watches an exchange until `remove`; `expire` is called at most once for each sweep."""
        self._live[exchange] = expire

    def remove(self, exchange: Exchange) -> None:
        """Forgets an exchange; unknown ones are ignored, since an end may be seen twice."""
        self._live.pop(exchange, None)

    def expire_all(self, breakage: Breakage, detail: str) -> None:
        """Ends every exchange now."""
        for exchange, expire in list(self._live.items()):
            if exchange in self._live:  # not ended meanwhile, by what another one's end set off
                expire(breakage, detail)

    def _sweep(self) -> None:
        now = self._clock()
        total_ns = round(self._timeouts.total_s * 1e9)
        silence_ns = round(self._timeouts.no_progress_s * 1e9)
        for exchange, expire in list(self._live.items()):
            if exchange not in self._live:
                continue
            last_ns = exchange.last_sign_ns
            if now - exchange.start_ns > total_ns:
                expire("timeout", f"no end after {self._timeouts.total_s:g} s (target.timeout)")
            # before the headers a server may be queueing: only the whole-request timeout applies
            elif last_ns is not None and now - last_ns > silence_ns:
                expire(
                    "no_progress",
                    f"nothing arrived for {self._timeouts.no_progress_s:g} s (target.no_progress_timeout)",
                )
        self.start()
