"""What all tests share: reproducible property tests, and the programs as fixtures."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.programs import LLMBENCH, SCENARIO, Bench

pytest_plugins = ["pytester"]

# A loaded machine must not fail a property by its clock; a failing example is printed as a line to paste.
settings.register_profile("llmbench", deadline=None, print_blob=True)
settings.load_profile("llmbench")


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
