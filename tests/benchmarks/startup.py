"""From the shell to the first request: what `llmbench run` of 100 requests of 20 tokens costs.

    python -m tests.benchmarks.startup [--repeats 6]

Prompts are made to length, so that the probes that learn how the server counts are part of it. The server is
the bundled mock, which writes down when each request arrived. Prints seconds from the start of the process to
the first probe, to the first request of the plan and to the end, and the peak resident set size in MB.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCENARIO = """\
name: startup
target: {{url: "{url}"}}
load: {{arrivals: closed, concurrency: 10, requests: 100}}
workload: {{kind: synthetic, input_tokens: 64, output_tokens: 20}}
"""


def measure(folder: Path) -> tuple[float, float, float, float]:
    """One run's four figures."""
    log = folder / "mock.log"
    flags = ["--port", "0", "--ttft", "40ms", "--itl", "1ms", "--log", str(log)]
    server = subprocess.Popen(
        [sys.executable, "-m", "llmbench.mock", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    url = server.stdout.readline().split()[-1]
    scenario = folder / "startup.yaml"
    scenario.write_text(SCENARIO.format(url=url), encoding="utf-8")
    start = time.monotonic_ns()
    run = subprocess.Popen(
        [sys.executable, "-m", "llmbench", "run", str(scenario), "--out", str(folder), "--quiet"],
        stdout=subprocess.DEVNULL,
    )
    _, _, usage = os.wait4(run.pid, 0)
    end = time.monotonic_ns()
    server.terminate()
    server.communicate()
    arrivals = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    requests = [one for one in arrivals if "arrival_ns" in one]
    first = min(one["arrival_ns"] for one in requests)
    planned = min(one["arrival_ns"] for one in requests if one["num_tokens"] == 20)
    return (first - start) / 1e9, (planned - start) / 1e9, (end - start) / 1e9, usage.ru_maxrss / 1024


def main() -> None:
    """Several runs; the first warms the file cache and is left out of the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=6)
    args = parser.parse_args()
    rows = []
    for _ in range(args.repeats):
        with tempfile.TemporaryDirectory() as scratch:
            rows.append(measure(Path(scratch)))
    names = ("first probe s", "first request s", "whole command s", "peak MB")
    for name, values in zip(names, zip(*rows[1:], strict=True), strict=True):
        spread = f"{min(values):.2f} to {max(values):.2f}"
        sys.stdout.write(f"{name:<16} median {statistics.median(values):7.2f}   {spread}\n")


if __name__ == "__main__":
    main()
