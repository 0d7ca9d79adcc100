"""The journal: one JSON line for each request, on disk within a fraction of a second of its end.

Lines are handed to a writer thread, so that a slow disk never holds the event loop. What `write(2)` has
taken survives a kill of the process; only lines younger than `FLUSH_S` can be lost.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FLUSH_S = 0.25


class Journal:
    """Appends lines to one file. `on_error` is called, once, on the loop, when the disk refuses."""

    def __init__(self, path: Path, on_error: Callable[[OSError], None]) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._on_error = on_error
        self._loop = asyncio.get_running_loop()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._lines: list[bytes] = []
        self._failed: OSError | None = None
        self._left = b""  # what the disk refused, to be tried again with the next block
        self._timer = self._loop.call_later(FLUSH_S, self._tick)

    def add(self, line: bytes) -> None:
        """Queues a line, newline included."""
        self._lines.append(line)

    def flush(self) -> None:
        """Writes what is queued, now, in this thread: for leaving at once."""
        self._writer.shutdown(wait=True)
        self._write(self._take())

    async def close(self) -> None:
        """Writes the rest and closes the file. Raises OSError when the disk has refused lines."""
        self._timer.cancel()
        await self._loop.run_in_executor(self._writer, self._write, self._take())
        self._writer.shutdown(wait=True)
        os.close(self._file)
        if self._failed is not None:
            raise self._failed

    def _take(self) -> bytes:
        block = b"".join(self._lines)
        self._lines.clear()
        return block

    def _tick(self) -> None:
        if self._lines:
            self._writer.submit(self._write, self._take())
        self._timer = self._loop.call_later(FLUSH_S, self._tick)

    def _write(self, block: bytes) -> None:
        view = memoryview(self._left + block)
        self._left = b""
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            self._left = bytes(view)
            if self._failed is None:
                self._failed = error
                self._loop.call_soon_threadsafe(self._on_error, error)
