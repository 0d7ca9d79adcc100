"""The fast transport: HTTP/1.1 on a bare asyncio protocol, parsed by httptools.

What it does while a stream runs is all there is on the hot path: take the time at the socket read, keep the
bytes, and follow the framing (in C) to know where the response ends. Nothing is decoded before it has.

- Kept connections are reused newest first, and replaced before a server would close them: a request
  sent into a closing connection would fail through no fault of the server's. Nothing is ever sent twice.
- A request is written by `send(2)` straight away, not queued to the end of the loop's turn, so that the
  send stamp is the time at which its last byte was in the kernel.
- A response ends with its HTTP message. When `data: [DONE]` has come and the message lingers, the
  connection is given up after `LINGER_S`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar, cast

import httptools

from llmbench.client.deadlines import Deadlines
from llmbench.client.exchange import LINGER_S, Breakage, Done, Exchange, Outgoing, Timeouts
from llmbench.client.kernel_stamps import StampedSocket, StampedSockets, WallClock, ask_for_stamps
from llmbench.client.sse import says_done
from llmbench.client.unpack import unpack
from llmbench.client.wire import Destination

IDLE_LIMIT_S: Final = 4.0
"""Kept connections are used for this long at most after their last response: common servers close theirs
after 5 s (uvicorn, Node.js)."""
_IDLE_LIMIT_NS: Final = round(IDLE_LIMIT_S * 1e9)
_SPARE_CONNECTIONS: Final = 4
WARM_S: Final = 3.0
"""How long connections made ahead of a burst can wait for it."""
_CONNECTS_AT_ONCE: Final = 32

T = TypeVar("T")
Sockaddr = tuple[Any, ...] | str


class FastTransport:
    """Keep-alive connections to one server, each carrying one request at a time."""

    name = "fast"

    def __init__(
        self,
        destination: Destination,
        timeouts: Timeouts,
        *,
        tls: ssl.SSLContext | None = None,
        wall: WallClock | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall = wall
        self._stamped: StampedSockets | None = None
        self._destination = destination
        self._timeouts = timeouts
        self._tls = tls
        self.clock = clock
        self.deadlines = Deadlines(timeouts, clock)
        self._addresses: list[tuple[int, Sockaddr]] = []
        self._idle: list[_Connection] = []
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._unresolved: OSError | None = None
        self._spares = 0
        self._tending: asyncio.TimerHandle | None = None
        self._closing = False

    async def open(self, connections: int) -> None:
        """Resolves the host and makes `connections` connections; `send` reports those that fail."""
        try:
            self._addresses = await self._resolve()
        except OSError as error:
            self._unresolved = error
        self.deadlines.start()
        if self._wall is not None:
            self._stamped = StampedSockets(self._wall, self.clock)
        self._spares = min(connections, _SPARE_CONNECTIONS)
        await asyncio.gather(*(self._add_spare() for _ in range(connections)))
        self._tend()

    async def warm(self, connections: int) -> None:
        """Connects, some at a time, until so many connections are idle that stay good for `WARM_S`."""
        while not self._closing:
            oldest = self.clock() - _IDLE_LIMIT_NS + round(WARM_S * 1e9)
            num_good = sum(one.idle_since_ns >= oldest for one in self._idle)
            missing = min(connections - num_good, _CONNECTS_AT_ONCE)
            if missing <= 0 or not all(await asyncio.gather(*(self._add_spare() for _ in range(missing)))):
                return

    def send(self, outgoing: Outgoing, done: Done) -> None:
        """Sends on a kept connection when there is one, else on a new one."""
        now = self.clock()
        exchange = Exchange(outgoing.index, outgoing.request_id, now)
        connection = self._take_idle(now)
        if connection is None:
            self._connect_and_send(exchange, outgoing.message, done)
        else:
            connection.start(exchange, outgoing.message, done)

    def abort(self, detail: str) -> None:
        """Ends every exchange in flight as cancelled."""
        self.deadlines.expire_all("cancelled", detail)

    async def close(self) -> None:
        """Cancels what is in flight and closes every connection."""
        self._closing = True
        self.abort("the transport was closed")
        self.deadlines.stop()
        if self._tending is not None:
            self._tending.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self._connections):
            connection.shut()
        if self._stamped is not None:
            self._stamped.close()
        await asyncio.sleep(0)

    # ---- connections

    def release(self, connection: _Connection) -> None:
        """A connection whose response has ended and that may carry another."""
        if self._closing:
            connection.shut()
        else:
            self._idle.append(connection)

    def forget(self, connection: _Connection) -> None:
        """A connection that has gone."""
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _take_idle(self, now: int) -> _Connection | None:
        if not self._idle:
            return None
        connection = self._idle.pop()
        if now - connection.idle_since_ns <= _IDLE_LIMIT_NS:
            return connection
        # newest first: when this one is too old, so are all the others
        stale = [connection, *self._idle]
        self._idle.clear()
        for one in stale:
            one.shut()
        return None

    async def _add_spare(self) -> bool:
        try:
            self._idle.append(await self._connect())
        except (OSError, TimeoutError):
            return False  # the first request to need it will meet the same fault, and record it
        return True

    def _tend(self) -> None:
        """Once a second: idle connections too old to be trusted are replaced by a few new ones."""
        oldest = self.clock() - _IDLE_LIMIT_NS
        stale = [one for one in self._idle if one.idle_since_ns < oldest]
        for connection in stale:
            self._idle.remove(connection)
            connection.shut()
        for _ in range(min(len(stale), self._spares - len(self._idle))):
            self._spawn(self._add_spare())
        self._tending = asyncio.get_running_loop().call_later(1.0, self._tend)

    def _connect_and_send(self, exchange: Exchange, message: bytes, done: Done) -> None:
        task = self._spawn(self._connect())

        def expire(breakage: Breakage, detail: str) -> None:
            self.deadlines.remove(exchange)
            exchange.break_off(breakage, detail, self.clock())
            task.cancel()

        self.deadlines.add(exchange, expire)
        # not from inside the task: one that is cancelled before its first step never runs at all
        task.add_done_callback(partial(self._on_connected, exchange, message, done))

    def _on_connected(
        self, exchange: Exchange, message: bytes, done: Done, task: asyncio.Task[_Connection]
    ) -> None:
        self.deadlines.remove(exchange)
        error = None if task.cancelled() else task.exception()
        if not task.cancelled() and error is None:
            if exchange.breakage is None:
                exchange.connect_ns = self.clock() - exchange.start_ns
                task.result().start(exchange, message, done)
                return
            self.release(task.result())
        if exchange.breakage is None and error is not None:
            exchange.break_off("connect", describe_connect_error(error, self._timeouts), self.clock())
        elif exchange.breakage is None:
            exchange.break_off("cancelled", "the transport was closed", self.clock())
        done(exchange)

    async def _connect(self) -> _Connection:
        async with asyncio.timeout(self._timeouts.connect_s):
            error: OSError | None = None
            for family, sockaddr in self._addresses:
                try:
                    return await self._connect_to(family, sockaddr)
                except OSError as failure:
                    error = failure
            raise error or self._unresolved or OSError("the host has no address")

    async def _connect_to(self, family: int, sockaddr: Sockaddr) -> _Connection:
        loop = asyncio.get_running_loop()
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._stamped is not None:
                ask_for_stamps(sock)
            await loop.sock_connect(sock, sockaddr)
            connection = _Connection(self, None if self._tls else sock)
            if self._stamped is not None:
                connection.made_of(self._stamped.attach(sock, connection))
            else:
                server_name = self._destination.address.host if self._tls else None
                await loop.create_connection(
                    lambda: connection, sock=sock, ssl=self._tls, server_hostname=server_name
                )
        except BaseException:
            sock.close()
            raise
        self._connections.add(connection)
        return connection

    async def _resolve(self) -> list[tuple[int, Sockaddr]]:
        address = self._destination.address
        if address.unix_socket is not None:
            return [(socket.AF_UNIX, address.unix_socket)]
        found = await asyncio.get_running_loop().getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )
        return [(family, cast(Sockaddr, sockaddr)) for family, _, _, _, sockaddr in found]

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Connection(asyncio.Protocol):
    """One connection; at most one exchange at a time. The methods httptools calls are named by it."""

    def __init__(self, pool: FastTransport, sock: socket.socket | None) -> None:
        self._pool = pool
        self._sock = sock  # None over TLS, where only the transport can write
        self._clock = pool.clock
        self._wire: asyncio.Transport | StampedSocket | None = None
        self._exchange: Exchange | None = None
        self._done: Done | None = None
        self._num_served = 0
        self.idle_since_ns = pool.clock()
        self._has_headers = False
        self._keep = False
        self._complete = False
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data

    # ---- one exchange

    def start(self, exchange: Exchange, message: bytes, done: Done) -> None:
        """Sends a request now; the stamp is taken when its last byte was handed over."""
        self._exchange = exchange
        self._done = done
        self._has_headers = self._complete = False
        self._keep = True
        self._pool.deadlines.add(exchange, self._fail)
        sent = 0
        if self._sock is not None:
            try:
                sent = self._sock.send(message)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                detail = self._broken_detail(error)
                asyncio.get_running_loop().call_soon(self._fail_exchange, exchange, "reset", detail)
                return
        if sent < len(message) and self._wire is not None:
            self._wire.write(message[sent:] if sent else message)
        exchange.sent_ns = self._clock()

    def data_received(self, data: bytes) -> None:
        """A socket read that the loop made: the time first."""
        self._take(data, self._clock())

    def received(self, data: bytes, read_ns: int, arrived_ns: int) -> None:
        """A socket read with the kernel's stamp."""
        if self._exchange is not None:
            self._exchange.wire_read_ns.append(read_ns)
        self._take(data, arrived_ns)

    def _take(self, data: bytes, now: int) -> None:
        """The bytes of a read, which only the framing is read of; `now` is when they came."""
        exchange = self._exchange
        if exchange is None:
            self.shut()  # bytes that nobody asked for: the connection cannot be trusted
            return
        exchange.wire.append(data)
        exchange.wire_ns.append(now)
        problem: Exception | None = None
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            problem = error
        if exchange.headers_ns is None and self._has_headers:
            exchange.headers_ns = now
            if exchange.sent_ns is not None and exchange.sent_ns > now:
                exchange.sent_ns = now  # answered before the clock was read after the send
        if self._complete:
            # what follows a whole response is no part of it, but the connection cannot be trusted then
            self._finish(now, keep=self._keep and problem is None)
        elif problem is not None:
            self._fail("protocol", f"not HTTP: {problem}; the read began {data[:60]!r}")
        elif says_done(data, exchange.wire):
            asyncio.get_running_loop().call_later(LINGER_S, self._end_lingering, exchange, now)

    def on_message_begin(self) -> None:
        """A response begins; a second one, behind the whole of the first, was not asked for."""
        if self._complete:
            self._keep = False

    def on_headers_complete(self) -> None:
        """The whole head is there; 1xx answers announce another one."""
        exchange = self._exchange
        status = self._parser.get_status_code()
        if exchange is None or status < 200 or self._complete:
            return
        exchange.status = status
        self._has_headers = True
        self._keep = self._parser.should_keep_alive()  # false once the message is over

    def on_message_complete(self) -> None:
        """The body's last byte was fed; acted upon when the read has been booked."""
        self._complete = self._has_headers

    def resume_writing(self) -> None:
        """The last byte of a request that the socket did not take at once is in the kernel now."""
        if self._exchange is not None and not self._has_headers:
            self._exchange.sent_ns = self._clock()

    def _end_lingering(self, exchange: Exchange, done_ns: int) -> None:
        if self._exchange is exchange:
            self._finish(done_ns, keep=False)

    def _finish(self, now: int, *, keep: bool) -> None:
        exchange, done = self._settle(now)
        self._num_served += 1
        # an answer that came before the whole request had gone out: the rest would run into the next one
        if keep and self._wire is not None and self._wire.get_write_buffer_size() == 0:
            self.idle_since_ns = self._clock()
            self._pool.release(self)
        else:
            self.shut()
        done(exchange)

    def _fail(self, breakage: Breakage, detail: str) -> None:
        exchange, done = self._settle(self._clock())
        exchange.breakage = breakage
        exchange.detail = detail
        self.shut()
        done(exchange)

    def _fail_exchange(self, exchange: Exchange, breakage: Breakage, detail: str) -> None:
        if self._exchange is exchange:
            self._fail(breakage, detail)

    def _settle(self, now: int) -> tuple[Exchange, Done]:
        """Lets go of the exchange and makes the connection ready for another."""
        exchange, done = self._exchange, self._done
        assert exchange is not None
        assert done is not None
        exchange.end_ns = now
        self._exchange = self._done = None
        self._pool.deadlines.remove(exchange)
        return exchange, done

    # ---- the connection itself

    def made_of(self, stamped: StampedSocket) -> None:
        """The connection is read with the kernel's stamps."""
        self._wire = stamped

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._wire = cast(asyncio.Transport, transport)
        self._wire.set_write_buffer_limits(high=0)  # `resume_writing` tells when all is written

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer closed, or the connection broke. A body without a length ends here, whole."""
        self._pool.forget(self)
        exchange = self._exchange
        if exchange is None:
            return
        if exc is None and self._has_headers and _ends_with_connection(exchange):
            self._finish(self._clock(), keep=False)
        elif exc is None:
            self._fail("closed", self._broken_detail(None))
        else:
            self._fail("reset", self._broken_detail(exc))

    def shut(self) -> None:
        """Closes at once. Safe to call twice."""
        self._pool.forget(self)
        if self._wire is not None and not self._wire.is_closing():
            self._wire.abort()

    def _broken_detail(self, error: Exception | None) -> str:
        what = str(error) if error is not None and str(error) else "connection closed by the server"
        exchange = self._exchange
        if exchange is not None and exchange.status is not None:
            return f"{what} in the middle of the response"
        if self._num_served:
            return f"{what} before any answer, on a kept connection (request {self._num_served + 1} on it)"
        return f"{what} before any answer"


def _ends_with_connection(exchange: Exchange) -> bool:
    """Whether the body has no length of its own, so that the connection's end is its end."""
    for _ in unpack(exchange):
        pass
    return exchange.header(b"Content-Length") is None and exchange.header(b"Transfer-Encoding") is None


def describe_connect_error(error: BaseException, timeouts: Timeouts) -> str:
    """A connect failure in words: refused, timed out, TLS."""
    if isinstance(error, TimeoutError) and not str(error):
        return f"no connection within {timeouts.connect_s:g} s (target.connect_timeout)"
    return str(error) or type(error).__name__
