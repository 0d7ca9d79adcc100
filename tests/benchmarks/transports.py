"""The self-benchmark that chooses the transport: every client loop against the same server, in turn.

    python -m tests.benchmarks.transports [--truthserver FILE.cpp] [--ladder FOLDER] [--repeats 5]

Three loads, each a case of its own:

    paced     256 streams of 100 events a second, one event a read: the cost of a wake-up
    flooded   16 streams, events back to back: the cost of a byte
    one       one-token answers, 64 at a time: the cost of a request

The clients of a case run one after the other, round after round, so that a drift of the machine touches all
of them; medians over the rounds are printed, and ratios are taken within a round. The server is pinned to one
core and the client to another where the machine has two. Without --truthserver (a C++ source that is compiled
here), the bundled mock serves, which is slower than a client may be: then read ratios of CPU time only.
--ladder names a folder with other people's bare clients (ladder.py, ladder_c.cpp); then ratios are to its
aiohttp loop, else to ours.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOOP = Path(__file__).with_name("client_loop.py")
Figures = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One load. `rate` names the figure that is compared; `server`, `mock`: the two servers' flags."""

    name: str
    streams: int
    requests: int
    tokens: int
    rate: str
    unit: str
    clients: tuple[str, ...]
    server: tuple[str, ...]
    mock: tuple[str, ...]


CASES = (
    Case(
        name="paced",
        streams=256,
        requests=1024,
        tokens=100,
        rate="events_per_cpu_s",
        unit="events per CPU-second",
        clients=("fast", "fast+kernel", "fast+records", "aiohttp", "bare-aiohttp", "ladder:aiohttp-any", "c"),
        server=("--ttft-ms", "200", "--itl-ms", "10"),
        mock=("--ttft", "200ms", "--itl", "10ms"),
    ),
    Case(
        name="flooded",
        streams=16,
        requests=400,
        tokens=1000,
        rate="events_per_cpu_s",
        unit="events per CPU-second",
        clients=(
            "fast",
            "fast+kernel",
            "fast+records",
            "aiohttp",
            "bare-aiohttp",
            "bare-httpx",
            "ladder:aiohttp-any",
            "ladder:httpx-lines",
            "c",
        ),
        server=("--flood",),
        mock=("--ttft", "0ms", "--itl", "0ms", "--events-per-send", "64"),
    ),
    Case(
        name="one",
        streams=64,
        requests=20_000,
        tokens=1,
        rate="requests_per_s",
        unit="requests per second",
        clients=("fast", "fast+kernel", "fast+records", "aiohttp", "bare-aiohttp", "ladder:aiohttp-any", "c"),
        server=(),
        mock=("--ttft", "0ms", "--itl", "0ms"),
    ),
)
# bare httpx is two orders of magnitude slower: fewer requests give it the same time
FEWER = {"bare-httpx": 20, "ladder:httpx-lines": 20, "aiohttp": 2}


def pinned(core: int, command: list[str]) -> list[str]:
    """The command on one core, where there are two and taskset is installed."""
    if (os.cpu_count() or 1) < 2 or shutil.which("taskset") is None:
        return command
    return ["taskset", "-c", str(core), *command]


@contextmanager
def serving(command: list[str], port: int) -> Iterator[None]:
    """A server for the length of a case."""
    server = subprocess.Popen(pinned(1, command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=1).read()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        yield
    finally:
        server.terminate()
        server.wait()


def compiled(source: Path, folder: Path) -> Path:
    """A C++ source as a program."""
    program = folder / source.stem
    subprocess.run(["g++", "-O2", "-std=c++17", "-o", program, source], check=True)
    return program


@dataclass(frozen=True)
class Ladder:
    """Other people's bare clients, where they are at hand."""

    script: Path
    program: Path


def run_client(client: str, case: Case, port: int, ladder: Ladder | None) -> Figures | None:
    """One client's figures; None for a ladder client where there is no ladder."""
    requests = max(case.requests // FEWER.get(client, 1), case.streams)
    is_ladder = client == "c" or client.startswith("ladder:")
    if is_ladder and ladder is None:
        return None
    if client == "c":
        assert ladder is not None
        command = [str(ladder.program), str(port), str(case.streams), str(requests), str(case.tokens)]
    elif is_ladder:
        assert ladder is not None
        command = [sys.executable, str(ladder.script), client.removeprefix("ladder:"), "--port", str(port)]
        command += ["-c", str(case.streams), "-n", str(requests), "--tokens", str(case.tokens)]
    else:
        command = [sys.executable, str(LOOP), client, str(port), "--streams", str(case.streams)]
        command += ["--requests", str(requests), "--tokens", str(case.tokens)]
    done = subprocess.run(pinned(0, command), capture_output=True, text=True, check=True)
    said: Figures = json.loads(done.stdout)
    if not is_ladder:
        return said
    return {
        "events_per_cpu_s": said["ev_cpu"],
        "requests_per_s": said["req_s"],
        "ttft_p50_ms": said["ttft"][0],
        "ttft_p99_ms": said["ttft"][1],
    }


def measure(case: Case, port: int, ladder: Ladder | None, repeats: int) -> dict[str, list[Figures]]:
    """Every client's figures, a list entry a round."""
    rounds: dict[str, list[Figures]] = {}
    for number in range(repeats):
        for client in case.clients:
            figures = run_client(client, case, port, ladder)
            if figures is not None:
                rounds.setdefault(client, []).append(figures)
            sys.stderr.write(f"  {case.name}: round {number + 1} of {repeats}, {client}\n")
    return rounds


def show(case: Case, rounds: dict[str, list[Figures]]) -> None:
    """A table: each client's median rate, its range, its ratio to a bare aiohttp loop; TTFT in ms."""
    lines = [f"\n{case.name}: {case.streams} streams, {case.tokens} tokens, {case.unit}"]
    lines.append(
        f"  {'client':<20}{'median':>11}{'range':>24}{'x bare aiohttp':>16}{'ttft p50 / p99 ms':>20}"
    )
    base_client = "ladder:aiohttp-any" if "ladder:aiohttp-any" in rounds else "bare-aiohttp"
    base = [figures[case.rate] for figures in rounds[base_client]]
    for client, figures in rounds.items():
        values = [one[case.rate] for one in figures]
        ratio = statistics.median(value / other for value, other in zip(values, base, strict=True))
        spread = f"{min(values):,.0f} to {max(values):,.0f}"
        p50, p99 = (statistics.median(one[f"ttft_p{p}_ms"] for one in figures) for p in (50, 99))
        row = f"  {client:<20}{statistics.median(values):>11,.0f}{spread:>24}{ratio:>14.2f}"
        lines.append(f"{row}{f'{p50:.1f} / {p99:.1f}':>20}")
    sys.stdout.write("\n".join(lines) + "\n")


def main() -> None:
    """Runs the cases asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--truthserver", type=Path, help="C++ source of the ground-truth server")
    parser.add_argument("--ladder", type=Path, help="folder with ladder.py and ladder_c.cpp")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--case", choices=[case.name for case in CASES], action="append")
    parser.add_argument("--port", type=int, default=9377)
    parser.add_argument("--json", type=Path, help="write every figure here")
    args = parser.parse_args()
    results: dict[str, dict[str, list[Figures]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        truth = compiled(args.truthserver, Path(scratch)) if args.truthserver else None
        ladder = None
        if args.ladder:
            program = compiled(args.ladder / "ladder_c.cpp", Path(scratch))
            ladder = Ladder(args.ladder / "ladder.py", program)
        for case in CASES:
            if args.case and case.name not in args.case:
                continue
            if truth is not None:
                command = [str(truth), "--port", str(args.port), "--no-event-log", *case.server]
            else:
                command = [sys.executable, "-m", "llmbench.mock", "--port", str(args.port), *case.mock]
            with serving(command, args.port):
                results[case.name] = measure(case, args.port, ladder, args.repeats)
            show(case, results[case.name])
    if args.json is not None:
        args.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
