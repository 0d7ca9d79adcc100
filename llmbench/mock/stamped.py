"""When a request reached this machine, by the kernel's clock: a busy server reads late, and its log would say
that the request came late, which looks like an error of the client's.

Linux only, over plain TCP. The kernel hands out its stamps with `recvmsg(2)` (SO_TIMESTAMPNS, socket(7)),
which asyncio's transports do not call: reading is taken from them, writing stays theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import struct
import sys
import time
from typing import Any, Protocol

_SO_TIMESTAMPNS = 35  # asm-generic/socket.h; the stamp is a struct timespec of two 64-bit numbers
_timespec = struct.Struct("=qq").unpack_from
_READ_SIZE = 1 << 16
_CONTROL_SIZE = 64
_LATEST_NS = 10_000_000_000  # a stamp older than this is of a clock that was set


class Reader(Protocol):
    """Who is told of what arrived."""

    def arrived(self, data: bytes, arrival_ns: int) -> None:
        """Bytes, and when the last of them reached the machine (CLOCK_MONOTONIC)."""


class StampedReads:
    """Reads connections with the kernel's stamps, behind one epoll on the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._open: dict[int, tuple[socket.socket, asyncio.Transport, Reader]] = {}
        self._loop.add_reader(self._epoll.fileno(), self._on_ready)

    def ask(self, listening: int) -> None:
        """Has the kernel stamp what arrives at the connections to come of a listening socket's descriptor:
        a request may be there before its connection is accepted.
        """
        with socket.socket(fileno=os.dup(listening)) as sock, contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)

    def take(self, transport: asyncio.Transport, reader: Reader) -> int:
        """Reads this connection from now on; the number by which `leave` knows it."""
        sock = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        sock.setblocking(False)
        fd = sock.fileno()
        self._open[fd] = (sock, transport, reader)
        self._loop.call_soon(self._begin, fd)
        return fd

    def _begin(self, fd: int) -> None:
        """After the transport has begun to read: it would begin again."""
        if fd in self._open:
            self._open[fd][1].pause_reading()
            self._epoll.register(fd, select.EPOLLIN)

    def leave(self, fd: int) -> None:
        """The connection is over: its second descriptor would keep it open."""
        sock, _, _ = self._open.pop(fd)
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)
        sock.close()

    def close(self) -> None:
        """After every connection is over."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _on_ready(self) -> None:
        for fd, _ in self._epoll.poll(0):
            if fd in self._open:
                self._read(fd)

    def _read(self, fd: int) -> None:
        sock, transport, reader = self._open[fd]
        try:
            data, control, _, _ = sock.recvmsg(_READ_SIZE, _CONTROL_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, control = b"", []
        now_ns = time.monotonic_ns()
        if not data:
            self._epoll.unregister(fd)
            transport.close()
            return
        reader.arrived(data, _arrival_ns(control, now_ns))


def _arrival_ns(control: list[Any], now_ns: int) -> int:
    """The kernel's stamp on the monotonic clock; now where there is none, or none that can be."""
    if not control:
        return now_ns
    seconds, nanoseconds = _timespec(control[0][2])
    before_ns = time.monotonic_ns()
    offset_ns = time.time_ns() - (before_ns + time.monotonic_ns()) // 2
    arrival_ns: int = seconds * 1_000_000_000 + nanoseconds - offset_ns
    return arrival_ns if 0 <= now_ns - arrival_ns < _LATEST_NS else now_ns


def can_stamp() -> bool:
    """Whether the kernel's stamps can be had here at all."""
    return sys.platform == "linux" and struct.calcsize("P") == 8
