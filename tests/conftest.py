"""What all tests share: reproducible property tests, and the programs as fixtures."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings

from tests.programs import LLMBENCH, SCENARIO, Bench

pytest_plugins = ["pytester"]

# A loaded machine must not fail a property by its clock; a failing example is printed as a line to paste.
settings.register_profile("llmbench", deadline=None, print_blob=True)
settings.load_profile("llmbench")

TRIED_AGAIN = pytest.StashKey[list[str]]()
TRIES = 3  # for what measures real time in milliseconds: a busy machine may spoil one measurement, not all


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """What is marked `alone` is tried again when it fails; the last try counts, and each other is told."""
    if item.get_closest_marker("alone") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for attempt in range(1, TRIES + 1):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if attempt == TRIES or not any(report.failed for report in reports):
            break
        again = item.config.stash.setdefault(TRIED_AGAIN, [])
        again.append(f"{item.nodeid}: try {attempt} of {TRIES} failed")
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for line in config.stash.get(TRIED_AGAIN, []):
        terminalreporter.write_line(line)


@pytest.fixture
def mock_server() -> Iterator[Callable[..., str]]:
    """Starts `llmbench mock` with the given flags and returns its URL; stops all that were started."""
    started: list[subprocess.Popen[str]] = []

    def start(*flags: str) -> str:
        process = subprocess.Popen(
            [*LLMBENCH, "mock", "--port", "0", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        started.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("llmbench mock ready at "), line
        return line.split()[-1]

    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=10)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """The command line without a server."""
    bench = Bench(tmp_path)
    bench.write(SCENARIO)
    return bench


@pytest.fixture
def bench_on(tmp_path: Path, mock_server: Callable[..., str]) -> Callable[..., Bench]:
    """The command line with a mock server of the given flags as the scenario's target."""

    def start(*flags: str) -> Bench:
        bench = Bench(tmp_path, mock_server(*flags))
        bench.write(SCENARIO)
        return bench

    return start
