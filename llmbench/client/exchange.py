"""The raw capture of one request, and the seam between the runner and a transport.

A transport does as little as it can while streams are running: it stamps each socket read on one
monotonic clock and keeps the bytes. What the bytes mean is decided later, by `decode`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol

Breakage = Literal["connect", "reset", "closed", "protocol", "timeout", "no_progress", "cancelled"]
"""Why an exchange ended without a whole HTTP response.

connect      no connection could be made (refused, unresolved, TLS, connect timeout)
reset        the connection broke (RST, EPIPE) before the response was whole
closed       the peer closed the connection cleanly before the response was whole
protocol     bytes that are not HTTP
timeout      the whole-request timeout passed
no_progress  nothing arrived for the no-progress timeout
cancelled    the run was stopped
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One request ready to be sent: the whole HTTP/1.1 message, whose body starts at `body_start`.

    `request_id` goes out as X-Request-Id.
    """

    index: int
    request_id: str
    message: bytes
    body_start: int

    @property
    def payload(self) -> bytes:
        """The JSON body alone, for transports that make their own heads."""
        return self.message[self.body_start :]


class Exchange:
    """One request on the wire, as it happened. Filled by a transport, read by `decode`.

    start_ns     when the runner handed the request over, before any connection was made
    sent_ns      when the last byte of the request was handed to the socket
    connect_ns   nanoseconds spent connecting; None on a kept connection
    headers_ns   the read that completed the response's head
    wire         socket reads as they came, heads and framing included, until `unpack` makes of them what
                 follows; a transport whose library decodes HTTP itself leaves it empty
    wire_ns      one stamp for each of them: when its last byte arrived, as well as that is known
    wire_read_ns when the event loop made each read, where `wire_ns` are the kernel's stamps; else empty
    chunks       body bytes in order of arrival, transfer coding removed, content coding kept
    read_ns      one stamp for each socket read that brought body bytes
    empty_ns     for each such read, when the socket was empty before: what it brought came later than that
    lags_ns      how long after its arrival each read was made; empty without the kernel's stamps
    read_chunks  for each such read, how many `chunks` had arrived when it was done
    raw_headers  names as they came

    `*_ns` are nanoseconds of the run's monotonic clock, None when it did not happen.
    """

    # defaults on the class: an exchange is made for every request, and few of these are set on each
    connect_ns: int | None = None
    sent_ns: int | None = None
    headers_ns: int | None = None
    end_ns: int | None = None
    status: int | None = None
    breakage: Breakage | None = None
    detail: str | None = None
    raw_headers: Mapping[bytes, bytes] = MappingProxyType({})

    def __init__(self, index: int, request_id: str, start_ns: int) -> None:
        self.index = index
        self.request_id = request_id
        self.start_ns = start_ns
        self.wire: list[bytes] = []
        self.wire_ns: list[int] = []
        self.wire_read_ns: list[int] = []
        self.chunks: list[bytes] = []
        self.read_ns: list[int] = []
        self.empty_ns: list[int] = []
        self.lags_ns: list[int] = []
        self.read_chunks: list[int] = []

    @property
    def last_sign_ns(self) -> int | None:
        """When the response last made progress; None before its head was there."""
        if self.headers_ns is None:
            return None
        return (self.wire_ns or self.read_ns or [self.headers_ns])[-1]

    def header(self, name: bytes) -> bytes | None:
        """A header's value, whatever the case of its name; `name` in the common spelling is found at once."""
        value = self.raw_headers.get(name)
        if value is not None:
            return value
        wanted = name.lower()
        for other, value in self.raw_headers.items():
            if len(other) == len(wanted) and other.lower() == wanted:
                return value
        return None

    def break_off(self, breakage: Breakage, detail: str, end_ns: int) -> None:
        """Ends the exchange as broken; what had arrived is kept."""
        self.breakage = breakage
        self.detail = detail
        self.end_ns = end_ns


LINGER_S = 0.05
"""How long a message may go on after `data: [DONE]`; then its connection is given up."""

Done = Callable[[Exchange], None]
"""Called once for each exchange, on the event loop, when it has ended in whatever way."""


class Transport(Protocol):
    """The seam. Methods are called on the event loop's thread; none of them raises for the peer's faults."""

    name: str

    async def open(self, connections: int) -> None:
        """Resolves the address and makes up to `connections` connections ahead of time."""

    async def warm(self, connections: int) -> None:
        """Sees to it that so many requests can be sent together soon without connecting first."""

    def send(self, outgoing: Outgoing, done: Done) -> None:
        """Starts one request now. `done` is called exactly once, never before `send` has returned."""

    def abort(self, detail: str) -> None:
        """Ends every exchange in flight as cancelled."""

    async def close(self) -> None:
        """Closes every connection. Exchanges in flight are cancelled first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds. `total_s` counts from the hand-over, `no_progress_s` from the last byte that arrived."""

    connect_s: float = 10.0
    total_s: float = 120.0
    no_progress_s: float = 60.0
