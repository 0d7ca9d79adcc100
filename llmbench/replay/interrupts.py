"""Ctrl-C and SIGTERM for the length of a run: the first ends it in order, the next leaves at once.

    before the first request   KeyboardInterrupt, where the program stands; from `check` while `polled`
    while requests are sent    what `on_loop` was given, on the event loop: drain; then leave
    while results are written  KeyboardInterrupt again

Two signals may come within a millisecond: only one of them ever interrupts the code that tidies up.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, NoReturn, Self

EXIT_INTERRUPTED: Final = 130
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def leaving_once_interrupted() -> Iterator[None]:
    """For a program that ends with its run: what comes after the interrupt that ended it changes nothing."""
    if not _can_listen():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        _restore(before)
        raise
    _restore(before)


def _can_listen() -> bool:
    """Only the main thread may; Windows knows neither signal as we do."""
    return threading.current_thread() is threading.main_thread() and sys.platform != "win32"


def _restore(before: Mapping[signal.Signals, Any]) -> None:
    for number, action in before.items():
        signal.signal(number, action)


class Interrupts:
    """A context for the length of a run, in the main thread; in any other, and on Windows, it does nothing.

    `leave` says what became of the run and tidies up what takes no time; the process ends after it.
    """

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._num_heard = 0
        self._is_polled = False
        self._on_loop: tuple[asyncio.AbstractEventLoop, Callable[[], None], Callable[[], None]] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if _can_listen():
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        _restore(self._before)

    @property
    def heard(self) -> bool:
        """Whether a signal has come in this part of the run, also one whose work the loop has yet to do."""
        return self._num_heard > 0

    def check(self) -> None:
        """Raises KeyboardInterrupt if a signal has come. Also where it was raised already: Python drops an
        exception that comes in a callback of its own.
        """
        if self.heard:
            raise KeyboardInterrupt

    def end(self) -> NoReturn:
        """Ends the run as a first signal does, for one whose work is done: the next leaves at once."""
        self._num_heard = 1
        raise KeyboardInterrupt

    @contextmanager
    def polled(self) -> Iterator[None]:
        """Within it a signal raises nothing by itself, as in the midst of a fork; `check` does."""
        self._is_polled = True
        try:
            yield
        finally:
            self._is_polled = False
        self.check()

    @contextmanager
    def on_loop(self, first: Callable[[], None], again: Callable[[], None]) -> Iterator[None]:
        """Within it the event loop is told, and nothing is raised. `again` should save what there is, and is
        followed by `leave`. Afterwards a signal raises KeyboardInterrupt once more.
        """
        self._on_loop = (asyncio.get_running_loop(), first, again)
        try:
            yield
        finally:
            self._on_loop = None
            self._num_heard = 0

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._num_heard += 1
        if self._on_loop is not None:
            loop, first, again = self._on_loop
            loop.call_soon_threadsafe(first if self._num_heard == 1 else lambda: self._go(again))
        elif self._num_heard == 1:
            if not self._is_polled:
                raise KeyboardInterrupt
        elif self._num_heard == 2:
            self._go(lambda: None)

    def _go(self, save: Callable[[], None]) -> None:
        try:
            save()
            self._leave()
        finally:
            os._exit(EXIT_INTERRUPTED)
