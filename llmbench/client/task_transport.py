"""What transports on a library have in common: a task for each request, timeouts by the sweep, one end each.

A stamp is taken when the reading task wakes, not at the socket read, so it is later under load than the fast
transport's. Nothing else differs: a lingering message is given up after `[DONE]` here too.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from llmbench.client.deadlines import Deadlines
from llmbench.client.exchange import LINGER_S, Breakage, Done, Exchange, Outgoing, Timeouts
from llmbench.client.sse import says_done
from llmbench.client.wire import Destination


class TaskTransport(ABC):
    """Everything but the library's own calls."""

    name: str
    _errors: tuple[type[Exception], ...]

    def __init__(
        self,
        destination: Destination,
        timeouts: Timeouts,
        *,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._destination = destination
        self._timeouts = timeouts
        self._tls = tls
        self._proxy = proxy
        self._clock = clock
        self._deadlines = Deadlines(timeouts, clock)
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    def _open_client(self) -> None: ...

    @abstractmethod
    async def _close_client(self) -> None: ...

    @abstractmethod
    async def _request(self, exchange: Exchange, outgoing: Outgoing) -> None:
        """Sends, and hands every piece of the body to `_book`; raises one of `_errors`."""

    @abstractmethod
    def _breakage_of(self, error: Exception) -> tuple[Breakage, str]: ...

    async def open(self, connections: int) -> None:
        """Makes the client; it connects when a request needs it, so `connections` has no effect."""
        self._open_client()
        self._deadlines.start()

    async def warm(self, connections: int) -> None:
        """Has no effect: the library connects when a request needs it."""
        return

    def send(self, outgoing: Outgoing, done: Done) -> None:
        """Starts a task for the request."""
        exchange = Exchange(outgoing.index, outgoing.request_id, self._clock())
        task = asyncio.get_running_loop().create_task(self._carry(exchange, outgoing))
        self._tasks.add(task)
        # not from inside the task: one that is cancelled before its first step never runs at all
        task.add_done_callback(partial(self._ended, exchange, done))

        def expire(breakage: Breakage, detail: str) -> None:
            self._deadlines.remove(exchange)
            self._break_off(exchange, breakage, detail)
            task.cancel()

        self._deadlines.add(exchange, expire)

    def abort(self, detail: str) -> None:
        """Ends every exchange in flight as cancelled."""
        self._deadlines.expire_all("cancelled", detail)

    async def close(self) -> None:
        """Cancels what is in flight and closes the client."""
        self.abort("the transport was closed")
        self._deadlines.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._close_client()

    async def _carry(self, exchange: Exchange, outgoing: Outgoing) -> None:
        try:
            await self._request(exchange, outgoing)
        except self._errors as error:
            self._break_off(exchange, *self._breakage_of(error))
        else:
            self._end(exchange, self._clock())

    def _book(self, exchange: Exchange, data: bytes) -> None:
        """A piece of the body: the time first."""
        now = self._clock()
        exchange.chunks.append(data)
        exchange.read_ns.append(now)
        exchange.read_chunks.append(len(exchange.chunks))
        if says_done(data, exchange.chunks):
            task = asyncio.current_task()
            asyncio.get_running_loop().call_later(LINGER_S, self._end_lingering, exchange, now, task)

    def _end_lingering(self, exchange: Exchange, now: int, task: asyncio.Task[Any] | None) -> None:
        if exchange.end_ns is None and task is not None:
            self._end(exchange, now)
            task.cancel()

    def _end(self, exchange: Exchange, now: int) -> None:
        if exchange.end_ns is None:
            exchange.end_ns = now

    def _break_off(self, exchange: Exchange, breakage: Breakage, detail: str) -> None:
        if exchange.end_ns is None:
            exchange.break_off(breakage, detail, self._clock())

    def _ended(self, exchange: Exchange, done: Done, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._deadlines.remove(exchange)
        if task.cancelled():
            self._break_off(exchange, "cancelled", "the run was stopped")
        elif (error := task.exception()) is not None:
            self._break_off(exchange, "protocol", f"{type(error).__name__}: {error}")
        done(exchange)
