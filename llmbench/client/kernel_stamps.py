"""When bytes reached this machine: by the kernel's clock, not by when the event loop got round to them.

Linux stamps every packet it receives for a socket that asks (`SO_TIMESTAMPNS`, socket(7)) and hands the stamp
out with the bytes (`recvmsg(2)`, cmsg(3)). An arrival is then the same however late the loop wakes; the
difference to the loop's own stamp is the read lag, kept beside it. For TCP the stamp is that of the last
segment a read returned: what came with earlier segments of the same read arrived between the read before and
it (`client.stream` counts these events and bounds them).

Packets are stamped by the wall clock, which is converted to the run's monotonic one by an offset taken once.
Slewing (ntpd, chrony) moves both clocks alike; when the wall clock is set, the offset is taken anew.

Only over plain TCP on Linux: TLS and proxies hide the packets, Unix sockets have none.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
import select
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Literal, Protocol

from llmbench.scenario.address import Address

Stamps = Literal["kernel", "loop"]

_READ_SIZES = (1 << 12, 1 << 18)
"""Bytes of one read at most: an event is small, and room for much costs much; where that was filled, more."""
STEP_NS = 1_000_000
"""A change of the offset between wall and monotonic clock that means that the wall clock was set."""
_SUSPICIOUS_NS = 50_000_000  # a lag beyond this is either a starved client or a clock that was set

# asm-generic/socket.h, SO_TIMESTAMPNS_OLD: on 64-bit machines its struct timespec has two 64-bit numbers
_SO_TIMESTAMPNS = 35
_MACHINES = ("x86_64", "amd64", "aarch64", "arm64", "riscv64")
_timespec = struct.Struct("=qq").unpack_from
_CONTROL_SIZE = 64
_READS_A_TURN = 64


def why_not(transport: str, address: Address) -> str | None:
    """Why arrivals from there cannot be stamped by the kernel, in words; None where they can."""
    if sys.platform != "linux" or platform.machine().lower() not in _MACHINES:
        return "the kernel stamps arrivals on 64-bit Linux only"
    if address.tls:
        return "the kernel's stamps are of packets, which TLS hides"
    if address.unix_socket is not None:
        return "a Unix socket has no packets that the kernel stamps"
    if transport != "fast":
        return f"the {transport} transport reads its sockets itself"
    if not _kernel_gives_stamps():
        return "the kernel of this machine gives no stamps (a sandbox?)"
    return None


def _kernel_gives_stamps() -> bool:
    """Tries it on a connection to ourselves; the kernel needs a moment to begin."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(OSError))
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ours = stack.enter_context(socket.create_connection(server.getsockname(), timeout=1.0))
        far = stack.enter_context(server.accept()[0])
        ask_for_stamps(ours)
        for _ in range(20):
            far.send(b"x")
            if ours.recvmsg(1, _CONTROL_SIZE)[1]:
                return True
            time.sleep(0.001)
    return False


def ask_for_stamps(sock: socket.socket) -> None:
    """Has the kernel stamp what arrives at this socket. Raises OSError where it does not know how."""
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def may_have_left_some(data: bytes) -> bool:
    """Whether a read was filled, so that the socket may not have been empty after it."""
    return len(data) in _READ_SIZES


class WallClock:
    """What the wall clock shows when the monotonic clock shows nought, and whether it was set meanwhile."""

    def __init__(self) -> None:
        self.offset_ns = wall_offset_ns()
        self.largest_step_ns = 0

    def look(self) -> int:
        """Takes the offset anew; returns the step since the last look, 0 unless the clock was set."""
        offset_ns = wall_offset_ns()
        step_ns = offset_ns - self.offset_ns
        if abs(step_ns) < STEP_NS:
            return 0
        self.offset_ns = offset_ns
        self.largest_step_ns = max(self.largest_step_ns, step_ns, key=abs)
        return step_ns

    def arrival_ns(self, wall_ns: int, read_ns: int) -> int:
        """A packet's stamp on the monotonic clock; never after the read that returned it.

        A stamp before a step of the clock cannot be told from a late one: it counts as read at once.
        """
        arrived_ns = wall_ns - self.offset_ns
        lag_ns = read_ns - arrived_ns
        if 0 <= lag_ns < _SUSPICIOUS_NS:
            return arrived_ns
        if (lag_ns > -STEP_NS and lag_ns < 0) or self.look():
            return read_ns
        return min(arrived_ns, read_ns)


def wall_offset_ns() -> int:
    """Wall clock minus monotonic clock, from the tightest of some readings: within 0.1 us or so."""
    best_ns, offset_ns = 1 << 62, 0
    for _ in range(8):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        if after - before < best_ns:
            best_ns, offset_ns = after - before, wall - (before + after) // 2
    return offset_ns


class Receiver(Protocol):
    """The protocol that a `StampedSocket` calls."""

    def received(self, data: bytes, read_ns: int, arrived_ns: int) -> None:
        """Bytes: when the loop read them, and when the last of them arrived."""

    def resume_writing(self) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...


class StampedSockets:
    """Every connection that is read with its stamps, behind one epoll of their own on the running loop.

    Not `loop.add_reader` for each: libuv takes a socket off its list at the first sign of an error, be there
    bytes to read before it or not, and costs more for each event. At most `_READS_A_TURN` sockets are read in
    a turn of the loop, so that what is due is sent meanwhile.
    """

    def __init__(self, wall: WallClock, clock: Callable[[], int]) -> None:
        self.wall = wall
        self.clock = clock
        self.epoll = select.epoll()
        self.open: dict[int, StampedSocket] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.epoll.fileno(), self._on_ready)

    def attach(self, sock: socket.socket, receiver: Receiver) -> StampedSocket:
        """Reads a connected, non-blocking socket from now on."""
        return StampedSocket(self, sock, receiver)

    def close(self) -> None:
        """Closes every connection."""
        for one in list(self.open.values()):
            one.abort()
        self._loop.remove_reader(self.epoll.fileno())
        self.epoll.close()

    def _on_ready(self) -> None:
        sockets = self.open
        for fd, events in self.epoll.poll(0, _READS_A_TURN):
            one = sockets.get(fd)  # closed meanwhile by what another one brought?
            if one is not None:
                if events != select.EPOLLOUT:
                    one.read()
                if events & select.EPOLLOUT:
                    one.send_rest()


class StampedSocket:
    """A connected socket, read with its stamps: what is used of asyncio.Transport."""

    def __init__(self, sockets: StampedSockets, sock: socket.socket, receiver: Receiver) -> None:
        self._sockets = sockets
        self._sock = sock
        self._fd = sock.fileno()
        self._receiver = receiver
        self._clock = sockets.clock
        self._arrival_ns = sockets.wall.arrival_ns
        self._recvmsg = sock.recvmsg
        self._read_size = _READ_SIZES[0]
        self._unsent = bytearray()
        self._is_closing = False
        sockets.open[self._fd] = self
        sockets.epoll.register(self._fd, select.EPOLLIN)

    def is_closing(self) -> bool:
        """Whether it was closed, by either side."""
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return len(self._unsent)

    def write(self, data: bytes) -> None:
        """Sends when the kernel takes more."""
        if self._is_closing:
            return
        if not self._unsent:
            self._sockets.epoll.modify(self._fd, select.EPOLLIN | select.EPOLLOUT)
        self._unsent += data

    def abort(self) -> None:
        """Closes at once; `connection_lost` follows."""
        self._close(None)

    def read(self) -> None:
        """One read of what is there."""
        try:
            data, control, _, _ = self._recvmsg(self._read_size, _CONTROL_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)
            return
        read_ns = self._clock()
        if not data:
            self._close(None)
            return
        self._read_size = _READ_SIZES[len(data) in _READ_SIZES]
        arrived_ns = read_ns
        if control:
            seconds, nanoseconds = _timespec(control[0][2])
            arrived_ns = self._arrival_ns(seconds * 1_000_000_000 + nanoseconds, read_ns)
        self._receiver.received(data, read_ns, arrived_ns)

    def send_rest(self) -> None:
        """Sends what the kernel takes of what is waiting."""
        if self._is_closing:
            return
        try:
            sent = self._sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._close(error)
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._sockets.epoll.modify(self._fd, select.EPOLLIN)
            self._receiver.resume_writing()

    def _close(self, error: Exception | None) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        del self._sockets.open[self._fd]
        self._sockets.epoll.unregister(self._fd)
        self._unsent.clear()
        with contextlib.suppress(OSError):
            self._sock.close()
        asyncio.get_running_loop().call_soon(self._receiver.connection_lost, error)
