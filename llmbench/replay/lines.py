"""A pipe read line by line on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Lines(asyncio.Protocol):
    """Calls `on_line` for each whole line of a pipe, without its end, then `on_end`, once."""

    def __init__(self, on_line: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._on_line = on_line
        self._on_end = on_end
        self._rest: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        """More of the pipe; a long line comes in many pieces."""
        first, *more = data.split(b"\n")
        self._rest.append(first)
        for piece in more:
            line = b"".join(self._rest)
            self._rest = [piece]
            self._on_line(line)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side has closed it."""
        self._on_end()
