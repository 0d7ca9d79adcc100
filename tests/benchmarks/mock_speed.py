"""How much the mock can carry for a second of its CPU: `python -m tests.benchmarks.mock_speed [--repeats N]`.

Only ratios to its own CPU time are printed, so that the machine may be shared; the clients are bare streams
that read and throw away. The goals: 20,000 paced events and 8,000 one-token requests a CPU-second.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass

from tests.llmbench.mock_load import load

MOCK = (sys.executable, "-m", "llmbench.mock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One load: the mock's flags, and how many streams take how many turns of how many tokens."""

    flags: tuple[str, ...] = ()
    streams: int
    turns: int
    tokens: int
    unit: str
    goal: int | None = None


SHAPES = {
    "paced": Shape(
        flags=("--ttft", "100ms", "--itl", "10ms"),
        streams=200,
        turns=3,
        tokens=300,
        unit="events",
        goal=20_000,
    ),
    "one token": Shape(streams=64, turns=500, tokens=1, unit="requests", goal=8_000),
    "flood": Shape(streams=16, turns=50, tokens=1000, unit="events"),
}


def per_cpu_second(shape: Shape) -> tuple[float, float | None]:
    """(events or requests a CPU-second of the mock, its p99 lateness in ms)."""
    with subprocess.Popen(
        [*MOCK, *shape.flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    ) as mock:
        assert mock.stdout is not None
        assert mock.stderr is not None
        url = mock.stdout.readline().split()[-1]
        load(url, streams=shape.streams, turns=shape.turns, tokens=shape.tokens)
        mock.send_signal(signal.SIGTERM)
        summary = json.loads(mock.stderr.read())
    late_s = summary["lateness_p99_s"]
    return summary["output_tokens"] / summary["cpu_s"], None if late_s is None else late_s * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    for name, shape in SHAPES.items():
        rates, lates = zip(*(per_cpu_second(shape) for _ in range(repeats)), strict=True)
        goal = f"  goal {shape.goal:,}" if shape.goal else ""
        late = f"  p99 late {statistics.median(lates):.2f} ms" if None not in lates else ""
        print(
            f"{name:<10} {statistics.median(rates):>9,.0f} {shape.unit} a CPU-second "
            f"({min(rates):,.0f} to {max(rates):,.0f}){goal}{late}"
        )


if __name__ == "__main__":
    main()
