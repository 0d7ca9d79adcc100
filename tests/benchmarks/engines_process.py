"""Processes of an engine: started in a session of their own, held, let go, weighed, and ended together."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

SAMPLE_EVERY_S = 1.0
GRACE_S = 20.0
SHOWN_LINES = 20


class Program:
    """One command and all that it starts. `talks`: its standard input and output are pipes."""

    def __init__(
        self, command: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None, talks: bool = False
    ) -> None:
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else out,
                stderr=out,
                text=talks,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )

    def members(self) -> list[int]:
        """Ids of its living processes."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    state, _, _, session = _stat(entry)[:4]
                    if int(session) == self.process.pid and state not in "ZX":
                        found.append(int(entry.name))
        return found

    def signal(self, number: signal.Signals) -> None:
        """To each of its processes."""
        for pid in self.members():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def hold(self) -> None:
        """It keeps its memory and gets no time until `let_go`."""
        self.signal(signal.SIGSTOP)

    def let_go(self) -> None:
        self.signal(signal.SIGCONT)

    def end(self) -> None:
        """Asks, waits, then makes sure."""
        self.let_go()
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and self.members():
            self.process.poll()
            time.sleep(0.1)
        self.signal(signal.SIGKILL)
        self.process.wait()

    def memory_bytes(self) -> int:
        """Proportional set size: what is shared among them counts once."""
        total = 0
        for pid in self.members():
            with suppress(OSError):
                text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
                if found := re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE):
                    total += int(found[1]) * 1024
        return total

    @contextmanager
    def weighed(self) -> Iterator[list[int]]:
        """Its memory every second, and once at the end, in a list that grows."""
        sizes: list[int] = []
        is_over = threading.Event()

        def sample() -> None:
            while not is_over.wait(SAMPLE_EVERY_S):
                sizes.append(self.memory_bytes())

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield sizes
        finally:
            is_over.set()
            thread.join()
            sizes.append(self.memory_bytes())

    def wait_for(self, pattern: str, timeout_s: float) -> str:
        """What it printed that matches; ends the program when it does not in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if found := re.search(pattern, self.printed()):
                return found[0]
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit(f"{self.process.args}: not ready after {timeout_s:.0f} s\n{self.last_lines()}")

    def printed(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def last_lines(self) -> str:
        return "\n".join(self.printed().splitlines()[-SHOWN_LINES:])


def _stat(process: Path) -> list[str]:
    """State, parent, group, session and more of /proc/PID/stat; the name before them may hold anything."""
    return (process / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
