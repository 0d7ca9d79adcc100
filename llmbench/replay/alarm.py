"""Waking at an absolute instant, to some tens of microseconds.

Event loops round their timers to whole milliseconds (libuv counts in them, epoll_wait takes them), which
would show as send lag. On Linux a timerfd has no such grain and costs one wake-up (timerfd_create(2));
elsewhere the loop's own timer is used and the rounding shows, truthfully, in the send lag.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = 0o4000 | 0o2000000
_TFD_TIMER_ABSTIME = 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Alarm:
    """Calls `ring` on the running loop at the instant last set, once. Instants are of `time.monotonic_ns`."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._libc: ctypes.CDLL | None = None
        self._fd = -1
        if sys.platform == "linux":
            self._open_timerfd()

    def set(self, at_ns: int) -> None:
        """Replaces whatever was set. An instant that has passed rings on the loop's next turn."""
        if self._libc is not None:
            when = _Itimerspec(value=_Timespec(*divmod(max(at_ns, 1), 10**9)))
            self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(when), None)
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at_ns / 1e9, self._ring)

    def close(self) -> None:
        """Nothing rings after this."""
        if self._timer is not None:
            self._timer.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd, self._libc = -1, None

    def _open_timerfd(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if fd >= 0:
            self._libc, self._fd = libc, fd
            self._loop.add_reader(fd, self._on_readable)

    def _on_readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
        self._ring()
