"""One clock for all streams: a heap of absolute instants behind one timer of the kernel.

Instants are nanoseconds of CLOCK_MONOTONIC less the time the server was frozen, so that a freeze moves
everything that was still to come by its length. On Linux a timerfd wakes the loop to the microsecond
(event loops round their own timers to milliseconds); elsewhere the loop's own timer is used.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from heapq import heappop, heappush
from time import monotonic_ns

_NS_PER_S = 1_000_000_000
# So many due instants are served before the loop looks at its sockets again: arrivals stay punctual.
_TURN = 32
_CLOCK_MONOTONIC, _ABSOLUTE = 1, 1
_FLAGS = 0o4000 | 0o2000000  # TFD_NONBLOCK | TFD_CLOEXEC


class _KernelTimer:
    """A timerfd armed at absolute instants. Arming again also clears an expiry, so nobody has to read it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> None:
        # PyDLL: setting a timer takes less than a microsecond, not worth giving the interpreter lock away.
        libc = ctypes.PyDLL(None, use_errno=True)
        self._fd: int = libc.timerfd_create(_CLOCK_MONOTONIC, _FLAGS)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._spec = (ctypes.c_long * 4)()  # interval s, ns; value s, ns
        self._set = libc.timerfd_settime
        self._pointer = ctypes.byref(self._spec)
        self._loop = loop
        loop.add_reader(self._fd, expired)

    def arm(self, at_ns: int) -> None:
        """Expire at `at_ns` of CLOCK_MONOTONIC (at once if that has passed); 0 disarms."""
        self._spec[2], self._spec[3] = divmod(at_ns, _NS_PER_S)
        self._set(self._fd, _ABSOLUTE, self._pointer, None)

    def close(self) -> None:
        """Give the descriptor back."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


class _LoopTimer:
    """The same with the event loop's own timers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, expired: Callable[[], None]) -> None:
        self._loop = loop
        self._expired = expired
        self._timer: asyncio.TimerHandle | None = None

    def arm(self, at_ns: int) -> None:
        """Expire at `at_ns`; 0 disarms."""
        self.close()
        if at_ns:
            self._timer = self._loop.call_later(max(0, at_ns - monotonic_ns()) / _NS_PER_S, self._expired)

    def close(self) -> None:
        """Disarm."""
        if self._timer is not None:
            self._timer.cancel()


class Clock:
    """Calls back at absolute instants, in their order; within one instant in the order of asking."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._armed_ns = 0
        self._frozen_until_ns = 0
        self._ticking = False
        self._thaw: Callable[[], None] | None = None
        self.frozen_ns = 0
        kind = _KernelTimer if sys.platform == "linux" else _LoopTimer
        self._timer: _KernelTimer | _LoopTimer = kind(loop, self._tick)

    @property
    def frozen(self) -> bool:
        """Whether a freeze is in force."""
        return self._frozen_until_ns > 0

    def at(self, due_ns: int, callback: Callable[[], None]) -> None:
        """Call `callback` once the clock shows `due_ns` (monotonic less frozen time)."""
        self._number += 1
        heappush(self._due, (due_ns, self._number, callback))
        if not self._ticking and (self._armed_ns == 0 or due_ns + self.frozen_ns < self._armed_ns):
            self._rearm()

    def freeze(self, for_ns: int, thaw: Callable[[], None]) -> None:
        """Let nothing be due for `for_ns` from now, then call `thaw`; what was to come is put off by it."""
        self._frozen_until_ns = monotonic_ns() + for_ns
        self._freeze_ns = for_ns
        self._thaw = thaw
        self._rearm()

    def clear(self) -> None:
        """Forget everything that was to come."""
        self._due.clear()
        self._rearm()

    def close(self) -> None:
        """Stop for good."""
        self._due.clear()
        self._timer.close()

    def _rearm(self) -> None:
        if self._frozen_until_ns:
            self._armed_ns = self._frozen_until_ns
        else:
            self._armed_ns = self._due[0][0] + self.frozen_ns if self._due else 0
        self._timer.arm(self._armed_ns)

    def _tick(self) -> None:
        now_ns = monotonic_ns()
        if self._frozen_until_ns:
            if now_ns < self._frozen_until_ns:
                self._rearm()
                return
            self._frozen_until_ns = 0
            self.frozen_ns += self._freeze_ns
            if self._thaw is not None:
                self._thaw()
        self._ticking = True
        try:
            self._call_due(now_ns - self.frozen_ns)
        finally:
            self._ticking = False
            self._rearm()

    def _call_due(self, limit_ns: int) -> None:
        due = self._due
        for _ in range(_TURN):
            if self._frozen_until_ns or not due:
                return
            if due[0][0] > limit_ns:
                limit_ns = monotonic_ns() - self.frozen_ns
                if due[0][0] > limit_ns:
                    return
            heappop(due)[2]()
