"""The socket reads of an HTTP/1.1 response, taken apart after it has ended: headers, body chunks, stamps.

While a stream runs the fast transport only keeps what it read; here the transfer coding is undone. A body
chunk belongs to the read that brought its last byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httptools

from llmbench.client.exchange import Exchange
from llmbench.client.kernel_stamps import may_have_left_some

PAUSE_BYTES = 1 << 14
"""Bytes unpacked between two pauses."""


class _Collector:
    """What httptools calls, by these names, while a response is fed to it."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.final_headers: dict[bytes, bytes] = {}
        self.chunks: list[bytes] = []
        self.num_whole: int | None = None  # chunks of the whole response, once it is whole
        # C calling C: no Python frame for each header and chunk
        self.on_header = self.headers.setdefault
        self.on_body = self.chunks.append
        self.status_code: Callable[[], int] = int

    def on_headers_complete(self) -> None:
        """1xx answers announce another one; what follows a whole response is no part of it."""
        if not self.final_headers and self.status_code() >= 200:
            self.final_headers = dict(self.headers)
        self.headers.clear()

    def on_message_complete(self) -> None:
        """The body's last byte was fed."""
        if self.num_whole is None and self.final_headers:
            self.num_whole = len(self.chunks)


def unpack(exchange: Exchange) -> Iterator[None]:
    """Makes `raw_headers`, `chunks`, `read_ns`, `read_chunks` out of `wire` and `wire_ns`, and drops those.

    Pauses now and then. Bytes that are not HTTP end it; the transport has booked that.
    """
    wire, wire_ns = exchange.wire, exchange.wire_ns
    if not wire:
        return
    made_ns = exchange.wire_read_ns or wire_ns
    exchange.lags_ns = [made - came for made, came in zip(exchange.wire_read_ns, wire_ns, strict=False)]
    empty_ns = wire_ns[0] if exchange.sent_ns is None else exchange.sent_ns
    found = _Collector()
    parser = httptools.HttpResponseParser(found)
    found.status_code = parser.get_status_code
    feed, chunks = parser.feed_data, found.chunks
    counted = num_bytes = 0
    for now, made, data in zip(wire_ns, made_ns, wire, strict=True):
        try:
            feed(data)
            is_sound = True
        except httptools.HttpParserError:
            is_sound = False
        count = len(chunks) if found.num_whole is None else found.num_whole
        if count != counted:
            counted = count
            exchange.read_ns.append(now)
            exchange.read_chunks.append(count)
            exchange.empty_ns.append(empty_ns)
        if not is_sound:
            break
        empty_ns = now if may_have_left_some(data) else made
        num_bytes += len(data)
        if num_bytes >= PAUSE_BYTES:
            num_bytes = 0
            yield
    del found.status_code  # the parser knows the collector: no cycle, so that both go now, bodies and all
    exchange.raw_headers = found.final_headers
    exchange.chunks = chunks[:counted]
    exchange.wire, exchange.wire_ns, exchange.wire_read_ns = [], [], []
