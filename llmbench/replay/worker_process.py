"""One worker as its parent sees it: the child process, its pipes, what it said last, how it ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import orjson

from llmbench.replay.engine_process import how_it_ended
from llmbench.replay.lines import Lines

COMMAND: Final = (sys.executable, "-P", "-m", "llmbench.replay.worker")
POLL_S: Final = 0.01
NUM_LINES: Final = 20
EXIT_S: Final = 5.0
STDERR_S: Final = 1.0
LONGEST_QUOTE: Final = 300
# What Python, its libraries, TLS and proxies go by.
KEPT: Final = frozenset({"PATH", "HOME", "LANG", "TMPDIR", "TZ"})
KEPT_PREFIXES: Final = ("PYTHON", "LC_", "LD_", "DYLD_", "SSL_", "OPENSSL_", "UV_")


class WorkerProcess:
    """A worker. `on_word` is called with everything it says, `on_end` when it says no more.

    `standing` and `started` are those of its last beat; `done` what it said at its end, None before.
    """

    def __init__(
        self,
        number: int,
        on_word: Callable[[WorkerProcess, dict[str, Any]], None],
        on_end: Callable[[WorkerProcess], None],
    ) -> None:
        self.number = number
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.standing: dict[str, Any] = {}
        self.done: dict[str, Any] | None = None
        self.seconds_silent = 0
        self._on_word = on_word
        self._on_end = on_end
        self._killed_for = ""
        self._last_lines: deque[str] = deque(maxlen=NUM_LINES)
        self._all_noted = asyncio.Event()
        self._pipes: list[asyncio.BaseTransport] = []
        # a session of its own: a Ctrl-C in the terminal is for the parent, who tells its workers
        self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment_of_a_worker(os.environ, sys.path),
            start_new_session=True,
        )

    async def connect(self) -> None:
        """Listens to it."""
        loop, process = asyncio.get_running_loop(), self._process
        for pipe, lines in (
            (process.stdout, Lines(self._hear, self._hear_no_more)),
            (process.stderr, Lines(self._note, self._all_noted.set)),
        ):
            transport, _ = await loop.connect_read_pipe(partial(_itself, lines), pipe)
            self._pipes.append(transport)

    def give(self, assignment: bytes) -> None:
        """Writes its assignment; blocks until it has taken it all, or has gone."""
        assert self._process.stdin is not None
        view = memoryview(assignment)
        with contextlib.suppress(BrokenPipeError):
            while view:
                view = view[os.write(self._process.stdin.fileno(), view) :]

    def say(self, command: str) -> None:
        """One command. To one that has gone nothing is said."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            os.write(self._process.stdin.fileno(), f"{command}\n".encode("ascii"))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it says no more."""
        return self.ended.is_set()

    @property
    def started(self) -> int:
        """Requests of its share that have had their turn."""
        return int(self.standing.get("started", 0))

    async def obituary(self) -> str:
        """How it ended, with the last line of its stderr, as the end of a sentence."""
        await self._wait(EXIT_S)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_noted.wait(), STDERR_S)
        how = self._killed_for or how_it_ended(self._process.returncode)
        said = next((line for line in reversed(self._last_lines) if line.strip()), "")
        return f"{how}: {said.strip()[:LONGEST_QUOTE]}" if said else how

    def end_silent(self, seconds: float) -> None:
        """Kills one that hangs."""
        self._killed_for = f"gave no sign of life for {seconds:g} s and was ended"
        self._kill()

    async def end(self, within_s: float) -> None:
        """Sees to it that it is gone: it leaves when its stdin ends, or is killed."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._wait(within_s)
        for pipe in self._pipes:
            pipe.close()
        if not self._pipes:
            for raw in (self._process.stdout, self._process.stderr):
                if raw is not None:
                    raw.close()

    def wait_until(self, until_s: float) -> None:
        """Waits in this thread until it is gone; kills it at that instant of `time.monotonic`."""
        while self._process.poll() is None and time.monotonic() < until_s:
            time.sleep(POLL_S)
        self._kill()

    async def _wait(self, within_s: float) -> None:
        until_s = time.monotonic() + within_s
        # asyncio's own way to wait for a child differs between loops and threads
        while self._process.poll() is None and time.monotonic() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        self._kill()

    def _kill(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)  # it leads its own session
            self._process.wait()

    def _hear(self, line: bytes) -> None:
        word = orjson.loads(line)
        self.seconds_silent = 0
        if word["kind"] == "ready":
            self.ready.set()
        elif word["kind"] == "beat":
            self.standing = word["standing"]
        elif word["kind"] == "done":
            self.done = word
        self._on_word(self, word)

    def _hear_no_more(self) -> None:
        self.ended.set()
        self.ready.set()
        self._on_end(self)

    def _note(self, line: bytes) -> None:
        self._last_lines.append(line.decode("utf-8", errors="replace"))


def _itself(lines: Lines) -> Lines:
    return lines


def environment_of_a_worker(environment: Mapping[str, str], path: Sequence[str]) -> dict[str, str]:
    """What a worker is given of this process's environment: no secret that a variable may hold. With this
    process's import path, it imports what its parent does, and nothing from where it happens to stand.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name in KEPT or name.startswith(KEPT_PREFIXES) or name.lower().endswith("_proxy")
    }
    places = [os.path.abspath(place) for place in path]  # noqa: PTH100 - "" is the working directory
    return {**kept, "PYTHONPATH": os.pathsep.join(places), "PYTHONUTF8": "1"}
