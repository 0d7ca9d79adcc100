"""What several client processes carry that one does not: `llmbench run` against a ground-truth server.

    python -m tests.benchmarks.workers TRUTHSERVER [--workers 1 --workers 2 --workers 4] [--repeats 3]

TRUTHSERVER is its program or its C++ source, which is compiled here. Three loads for each number of workers:

    flood    64 streams of 1,000 events back to back: events a second, the cost of a byte
    one      256 streams of one-token answers: requests a second, the cost of a request
    paced    streams of 100 events a second, one event a read, more and more of them: the most at which no
             worker uses more than 90 % of a core, nor wakes more than 10 ms late (p99)

Server and workers share the machine's cores: with fewer than one for each, the ratios say less than 1, 2, 4.
The numbers of workers take turns, round after round; medians over the rounds are printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from time import sleep
from typing import Any

from tests.benchmarks.transports import compiled

PORT = 9389
SCENARIO = """\
name: workers
target: {{url: "http://127.0.0.1:{port}", model: truth, ignore_eos: false, usage: false}}
load: {{arrivals: closed, concurrency: {streams}, duration: {duration}s, warmup: 1s}}
workload: {{kind: inline, prompts: [Hello there.], output_tokens: {tokens}}}
instrument: {{workers: {workers}}}
"""
FLOOD, PACED, ONE = ["--flood"], ["--ttft-ms", "200", "--itl-ms", "10"], ["--ttft-ms", "0", "--itl-ms", "0"]
LADDER = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
BUSY_SHARE, LATE_S = 0.90, 0.010


class Bench:
    """A server program and a folder to run in."""

    def __init__(self, server: Path, folder: Path, duration_s: float) -> None:
        self._server = server
        self._folder = folder
        self._duration_s = duration_s

    def run(self, flags: list[str], workers: int, streams: int, tokens: int) -> dict[str, Any]:
        """One run; its summary."""
        command = [str(self._server), "--port", str(PORT), "--no-event-log", *flags]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _await_answer()
            scenario = self._folder / "workers.yaml"
            scenario.write_text(
                SCENARIO.format(
                    port=PORT, streams=streams, tokens=tokens, workers=workers, duration=self._duration_s
                ),
                encoding="utf-8",
            )
            command = [sys.executable, "-m", "llmbench", "run", str(scenario), "--out", str(self._folder)]
            done = subprocess.run(
                [*command, "--json", "--quiet"], capture_output=True, text=True, check=False
            )
        finally:
            server.terminate()
            server.wait()
        if not done.stdout:
            raise SystemExit(done.stderr)
        summary: dict[str, Any] = json.loads(done.stdout)
        return summary

    def flood(self, workers: int) -> float:
        """Events a second."""
        return float(self.run(FLOOD, workers, 64, 1000)["throughput"]["output_tokens_per_s"])

    def one(self, workers: int) -> float:
        """Requests a second."""
        return float(self.run(ONE, workers, 256, 1)["throughput"]["requests_per_s"])

    def paced(self, workers: int) -> tuple[int, float]:
        """The most streams that are carried without falling behind, and their events a second."""
        best = (0, 0.0)
        for streams in LADDER:
            summary = self.run(PACED, workers, streams, 100)
            instrument = summary["instrument"]
            if instrument["cpu_share"] > BUSY_SHARE or instrument["loop_lag_p99_s"] > LATE_S:
                break
            best = (streams, summary["throughput"]["output_tokens_per_s"])
        return best


def _await_answer() -> None:
    for _ in range(200):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/v1/models", timeout=1).read()
            return
        except (urllib.error.URLError, OSError):
            sleep(0.05)


def main() -> None:
    """Every load with every number of workers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("server", type=Path, help="the ground-truth server: its program, or its C++ source")
    parser.add_argument("--workers", type=int, action="append")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--duration", type=float, default=5.0, help="seconds measured in each run")
    parser.add_argument("--only", choices=("flood", "one", "paced"), action="append")
    args = parser.parse_args()
    counts, loads = args.workers or [1, 2, 4], args.only or ["flood", "one", "paced"]
    found: dict[tuple[str, int], list[Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        server = compiled(args.server, folder) if args.server.suffix == ".cpp" else args.server.absolute()
        bench = Bench(server, folder, args.duration)
        for number in range(args.repeats):
            for load in loads:
                for count in counts:
                    found.setdefault((load, count), []).append(getattr(bench, load)(count))
                    sys.stderr.write(f"  round {number + 1} of {args.repeats}: {load}, {count} workers\n")
    _show(counts, loads, found)


def _show(counts: list[int], loads: list[str], found: dict[tuple[str, int], list[Any]]) -> None:
    units = {"flood": "events/s", "one": "requests/s", "paced": "events/s without falling behind"}
    for load in loads:
        sys.stdout.write(
            f"\n{load}: {units[load]}\n  workers      median                     range   x fewest\n"
        )
        base = None
        for count in counts:
            values = [value[1] if load == "paced" else value for value in found[load, count]]
            median = statistics.median(values)
            base = base or median
            spread = f"{min(values):,.0f} to {max(values):,.0f}"
            ratio = f"{median / base:11.2f}" if base else f"{'-':>11}"
            sys.stdout.write(f"  {count:>7}{median:>12,.0f}{spread:>26}{ratio}\n")


if __name__ == "__main__":
    main()
