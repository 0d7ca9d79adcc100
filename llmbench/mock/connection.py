"""One client's connection, and the delivery of one answer over it."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable, Iterator
from time import monotonic_ns
from typing import Any, Protocol, cast

from llmbench.mock.clock import Clock
from llmbench.mock.http1 import BadRequest, Request, RequestParser
from llmbench.mock.script import Action, Step
from llmbench.mock.stamped import StampedReads
from llmbench.mock.truth import Lateness, Served

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
# A send of more is cut in two, so that one answer without pauses does not hold up all others.
_MAX_SEND_BYTES = 256 * 1024


class Service(Protocol):
    """What a connection needs of the server behind it."""

    connections: set[Connection]

    def take(self, connection: Connection, request: Request, arrival_ns: int) -> None:
        """Answer `request`, now or later; `connection.finished` must follow."""

    def refuse(self, connection: Connection, error: BadRequest) -> None:
        """Answer what was no request, and close."""


class Connection(asyncio.Protocol):
    """Reads requests, one at a time, and writes answers.

    Writes go straight to the descriptor while nothing is queued: uvloop keeps what a transport is given until
    the end of the loop's turn, and the log of send times would then be early.
    """

    def __init__(self, service: Service, stamped: StampedReads | None = None) -> None:
        self._service = service
        self._stamped = stamped
        self._stamped_fd = -1
        self._parser = RequestParser()
        self._transport = cast(asyncio.Transport, None)
        self._fd = -1
        self._busy = False
        self._taking = False
        self.paused = False
        self.lost = False
        self.split_bytes: int | None = None
        self.delivery: Delivery | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is there."""
        self._transport = cast(asyncio.Transport, transport)
        self._service.connections.add(self)
        if transport.get_extra_info("ssl_object") is None:
            self._fd = transport.get_extra_info("socket").fileno()
            if self._stamped is not None:
                self._stamped_fd = self._stamped.take(self._transport, self)

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the client has left, or the connection was closed here."""
        self._fd = -1
        self.lost = True
        if self._stamped is not None and self._stamped_fd >= 0:
            self._stamped.leave(self._stamped_fd)
        self._service.connections.discard(self)
        if self.delivery is not None:
            self.delivery.abandon()

    def pause_writing(self) -> None:
        """asyncio: the client reads too slowly; the next send waits."""
        self.paused = True

    def resume_writing(self) -> None:
        """asyncio: the client has caught up."""
        self.paused = False
        if self.delivery is not None:
            self.delivery.resume()

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes from the client."""
        self.arrived(data, monotonic_ns())

    def arrived(self, data: bytes, arrival_ns: int) -> None:
        """Bytes from the client, and when they came."""
        self._parser.feed(data)
        self._take_requests(arrival_ns)

    def _take_requests(self, arrival_ns: int) -> None:
        if self._taking:
            return
        self._taking = True
        try:
            while not self._busy and not self._transport.is_closing():
                request = self._parser.next_request()
                if request is None:
                    if self._parser.wants_continue():
                        self.send(_CONTINUE)
                    break
                self._busy = True
                self._service.take(self, request, arrival_ns)
        except BadRequest as error:
            self._service.refuse(self, error)
        finally:
            self._taking = False

    def send(self, data: bytes) -> None:
        """Give `data` to the kernel now, or queue what it does not take."""
        if self.split_bytes is not None and len(data) > self.split_bytes:
            for start in range(0, len(data), self.split_bytes):
                self._send(data[start : start + self.split_bytes])
        elif data:
            self._send(data)

    def _send(self, data: bytes) -> None:
        transport = self._transport
        if transport.is_closing():
            return
        if self._fd >= 0 and transport.get_write_buffer_size() == 0:
            try:
                num_sent = os.write(self._fd, data)
            except BlockingIOError:
                num_sent = 0
            except OSError:
                transport.abort()
                return
            if num_sent == len(data):
                return
            data = data[num_sent:]
        transport.write(data)

    def finished(self, *, keep_alive: bool) -> None:
        """The answer is complete: take the next request, or close."""
        self._busy = False
        self.delivery = None
        if keep_alive:
            self._take_requests(monotonic_ns())
        else:
            self._transport.close()

    def close(self) -> None:
        """Close once everything written has gone."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def reset(self) -> None:
        """Close with a TCP reset (on a Unix socket: just close)."""
        sock: Any = self._transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


class Delivery:
    """One answer on its way: performs the steps of a script when they are due.

    `ended` is called once, with how it ended, when the answer is over for whatever reason.
    """

    __slots__ = (
        "_clock",
        "_connection",
        "_ended",
        "_keep_alive",
        "_late",
        "_over",
        "_start_ns",
        "_step",
        "_steps",
        "_waits",
        "served",
    )

    def __init__(
        self,
        connection: Connection,
        steps: Iterator[Step],
        served: Served,
        clock: Clock,
        late: Lateness,
        *,
        keep_alive: bool,
        ended: Callable[[Delivery, str], None],
    ) -> None:
        self.served = served
        self._connection = connection
        self._steps = steps
        self._clock = clock
        self._late = late
        self._keep_alive = keep_alive
        self._ended = ended
        self._start_ns = 0
        self._over = False
        self._waits = False
        self._step: Step = (0, Action.SEND, b"", 0)
        connection.delivery = self

    def start(self, at_ns: int) -> None:
        """Begin: the script's instant 0 is `at_ns` of CLOCK_MONOTONIC."""
        if self._connection.lost:  # it left while its request was held back
            self.abandon()
            return
        self.served.start_ns = at_ns
        self._start_ns = at_ns - self._clock.frozen_ns
        self._step = next(self._steps)
        if self._step[0] == 0:
            self.advance()
        else:
            self._clock.at(self._start_ns + self._step[0], self.advance)

    def advance(self) -> None:
        """Send everything that is due at the instant which has come, and ask for the next one."""
        if self._over:
            return
        if self._connection.paused:
            self._waits = True
            return
        step = self._step
        due_ns, action, data, count = step
        if action is Action.SEND:
            step = next(self._steps)
        if action is Action.SEND and step[0] == due_ns:
            step = self._send_all(due_ns, step)
        else:
            self._send(due_ns, data, (count,) if count else ())
            if action is not Action.SEND:
                self._finish(action)
                return
        if not self._over:
            self._step = step
            self._clock.at(self._start_ns + step[0], self.advance)

    def _send_all(self, due_ns: int, step: Step) -> Step:
        """Send the current step and all others of the same instant; returns the first of a later one."""
        first = self._step
        parts, counts, size = [first[2]], [first[3]] if first[3] else [], len(first[2])
        while step[0] == due_ns and size < _MAX_SEND_BYTES:
            parts.append(step[2])
            size += len(step[2])
            if step[3]:
                counts.append(step[3])
            if step[1] is not Action.SEND:
                self._send(due_ns, b"".join(parts), counts)
                self._finish(step[1])
                return step
            step = next(self._steps)
        self._send(due_ns, b"".join(parts), counts)
        return step

    def _send(self, due_ns: int, data: bytes, counts: list[int] | tuple[int, ...]) -> None:
        now_ns = monotonic_ns()
        self._connection.send(data)
        if not counts:
            return
        self._late.add(now_ns - due_ns - self._start_ns - self._clock.frozen_ns)
        served = self.served
        for count in counts:
            served.event_ns.append(now_ns)
            served.event_tokens.append(count)

    def _finish(self, action: Action) -> None:
        if action is Action.HANG:
            return
        end = {Action.FINISH: "done", Action.CLOSE: "cut", Action.RESET: "reset"}[action]
        connection = self._connection
        self._end(end)
        if action is Action.FINISH:
            connection.finished(keep_alive=self._keep_alive)
        elif action is Action.CLOSE:
            connection.close()
        else:
            connection.reset()

    def _end(self, end: str) -> None:
        self._over = True
        self._connection.delivery = None
        self.served.end_ns = monotonic_ns()
        self.served.end = end
        self._ended(self, end)

    def resume(self) -> None:
        """The client reads again: send what came due meanwhile."""
        if self._waits:
            self._waits = False
            self.advance()

    def abandon(self) -> None:
        """The client has left: nothing more is sent."""
        if not self._over:
            self._end("client left")
