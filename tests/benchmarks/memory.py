"""The memory of a run over time: resident set size of `llmbench run`, sampled while it streams.

    python -m tests.benchmarks.memory URL [--streams 200] [--duration 300s] [--tokens 200]

Against a server that sends 100 events a second to each stream, 200 streams are 20,000 events a second.
Prints a line every few seconds, and the growth between the first and the last third of the run. What is kept
of an event lies in the journal, so that the curve should be flat until the results are made at the end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SAMPLE_EVERY_S = 5.0

SCENARIO = """\
name: memory
target: {{url: "{url}", ignore_eos: false}}
load: {{arrivals: closed, concurrency: {streams}, duration: {duration}}}
workload: {{kind: inline, prompts: [Say something long.], output_tokens: {tokens}}}
"""


def resident_mb(pid: int) -> float:
    """Resident set size of a process, MB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> None:
    """Runs, samples, prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--duration", default="300s")
    parser.add_argument("--tokens", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        scenario = Path(scratch) / "memory.yaml"
        scenario.write_text(SCENARIO.format(**vars(args)), encoding="utf-8")
        command = [sys.executable, "-m", "llmbench", "run", str(scenario), "--out", scratch, "--quiet"]
        run = subprocess.Popen(command)
        start, samples = time.monotonic(), []
        while run.poll() is None:
            now = time.monotonic() - start
            samples.append((now, resident_mb(run.pid)))
            sys.stdout.write(f"{now:6.0f} s  {samples[-1][1]:7.1f} MB\n")
            sys.stdout.flush()
            time.sleep(SAMPLE_EVERY_S)
    third = max(1, len(samples) // 3)
    early = sum(size for _, size in samples[1 : third + 1]) / third
    late = sum(size for _, size in samples[-third - 1 : -1]) / third
    sys.stdout.write(f"mean of the first third {early:.1f} MB, of the last third {late:.1f} MB\n")


if __name__ == "__main__":
    main()
