"""The bundled engine as a child process, for scenarios that say `target.engine`.

The engine is another program: it is started as `python -m reference_engine` on a free port, known to be ready
by the line it prints, and spoken to over HTTP like any endpoint. Its output goes straight into a log file.
It ends with us in every case: by SIGTERM, then SIGKILL to its process group, and on Linux by the kernel if we
are killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

from llmbench.errors import CannotMeasure, TargetUnreachable

READY: Final = re.compile(
    r"^reference_engine ready at (?P<url>http://\S+) model=(?P<model>\S+)", re.MULTILINE
)
NEEDED: Final = ("torch", "tokenizers", "safetensors", "jinja2", "prometheus_client")
POLL_S: Final = 0.05
TELL_EVERY_S: Final = 5.0
TERM_GRACE_S: Final = 5.0
NUM_LOG_LINES: Final = 12  # enough for the end of a traceback
PR_SET_PDEATHSIG: Final = 1

OptionValue = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProcess:
    """An engine that answers. `url` is its base URL, `model` the name it serves."""

    url: str
    model: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; an engine that ends in mid-run has crashed or was killed."""
        return self.process.poll()

    def obituary(self) -> str:
        """How the engine ended and its last log lines, for a message to the user."""
        return f"The reference engine {how_it_ended(self.process.returncode)}.\n{last_lines(self.log)}"


def engine_arguments(options: Mapping[str, OptionValue]) -> list[str]:
    """The command line of the engine: `{max_num_seqs: 8}` is `--max-num-seqs 8`, `{x: true}` is `--x`,
    `{x: false}` is `--no-x`.
    """
    arguments: list[str] = []
    for key, value in options.items():
        name = key.replace("_", "-")
        match value:
            case True:
                arguments.append(f"--{name}")
            case False:
                arguments.append(f"--no-{name}")
            case _:
                arguments += [f"--{name}", str(value)]
    return arguments


@contextmanager
def running_engine(
    options: Mapping[str, OptionValue],
    *,
    log: Path,
    ready_timeout_s: float,
    waiting: Callable[[str], None] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[EngineProcess]:
    """Start an engine, yield it once it is ready, and stop it. `check`, called meanwhile, may raise.

    Call from the main thread: on Linux the engine is killed when the thread that started it ends.
    `ready_timeout_s` counts from the last sign of life in the log, so that a model's first download may take
    its time. Raises CannotMeasure when the engine is not installed or ends, TargetUnreachable when it stays
    silent.
    """
    require_engine()
    with log.open("wb") as output:
        process = _spawn(["--port", "0", *engine_arguments(options)], output)
    try:
        if waiting:
            waiting(f"starting the reference engine ({options.get('model', 'tiny')})")
        yield _await_ready(process, log, ready_timeout_s, waiting, check)
    finally:
        stop(process)


def require_engine() -> None:
    """Raise CannotMeasure, naming the remedy, when the engine's packages are not installed."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise CannotMeasure(
            f"The bundled engine needs {', '.join(missing)}, not installed here.\n"
            "Install it with  pip install 'llmbench[engine]'  or give --url of a running endpoint."
        )


def _spawn(arguments: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    """In a session of its own: a Ctrl-C in the terminal is for us, who still drain what is in flight."""
    return subprocess.Popen(
        [sys.executable, "-m", "reference_engine", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"},
        start_new_session=True,
        preexec_fn=_die_with_parent() if sys.platform == "linux" else None,  # noqa: PLW1509 - one system call
    )


def _die_with_parent() -> Callable[[], None]:
    """What the child runs between fork and exec: ask the kernel for SIGKILL when the parent is gone."""
    libc = ctypes.CDLL(None)  # loaded before the fork; the child makes one system call only
    parent = os.getpid()

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # gone already, between fork and here
            os._exit(1)

    return ask


def _await_ready(
    process: subprocess.Popen[bytes],
    log: Path,
    timeout_s: float,
    waiting: Callable[[str], None] | None,
    check: Callable[[], None],
) -> EngineProcess:
    size, quiet_since_s = 0, time.monotonic()
    told_s = quiet_since_s
    while True:
        check()
        text = read_log(log)
        if ready := READY.search(text):
            return EngineProcess(url=ready["url"], model=ready["model"], log=log, process=process)
        if process.poll() is not None:
            how = how_it_ended(process.returncode)
            raise CannotMeasure(f"The reference engine {how} before it was ready.\n{last_lines(log)}")
        now_s = time.monotonic()
        if len(text) != size:
            size, quiet_since_s = len(text), now_s
        if now_s - quiet_since_s > timeout_s:
            raise TargetUnreachable(
                f"The reference engine was not ready after {timeout_s:g} s without a sign of life.\n"
                f"{last_lines(log)}\nGive it longer with --set target.ready_timeout=5m"
            )
        if waiting and now_s - told_s > TELL_EVERY_S:
            told_s = now_s
            waiting(f"starting the reference engine: {(text.strip().splitlines() or ['no output yet'])[-1]}")
        time.sleep(POLL_S)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the engine and whatever it started: SIGTERM, five seconds, SIGKILL. Safe to call twice."""
    _signal_group(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(TERM_GRACE_S)
    _signal_group(process, signal.SIGKILL)  # also what outlived its parent
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)  # it leads its own session, so its group has its pid


def read_log(log: Path) -> str:
    """What the engine wrote so far; a progress bar's carriage returns count as line ends."""
    return log.read_bytes().decode("utf-8", errors="replace").replace("\r", "\n")


def last_lines(log: Path) -> str:
    lines = [line for line in read_log(log).splitlines() if line.strip()][-NUM_LOG_LINES:]
    return "\n".join(f"    {line}" for line in [*lines, f"(whole log: {log})"])


def how_it_ended(returncode: int | None) -> str:
    """What became of a child, as the end of a sentence."""
    if returncode is None:
        return "is still running"
    if returncode < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-returncode).name}"
    return f"ended with code {returncode}"
