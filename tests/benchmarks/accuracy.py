"""What `llmbench run` reports against what a ground-truth server wrote down, at several numbers of streams.

    python -m tests.benchmarks.accuracy TRUTHSERVER.cpp [--streams 64 --streams 256] [--repeats 5]

TTFT 200 ms, a token every 10 ms, 100 tokens an answer, closed loop; client and server each on a core. The
truth is the server's own log: arrival of the request in the kernel, and each event handed to `send(2)`.
Prints reported and true p50 and p99 of TTFT and ITL, and their difference, in ms.
"""

from __future__ import annotations

import argparse
import csv
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.transports import compiled, pinned

PORT = 9388
SCENARIO = """\
name: accuracy
target: {{url: "http://127.0.0.1:{port}", model: truth, ignore_eos: false}}
load: {{arrivals: closed, concurrency: {streams}, requests: {requests}}}
workload: {{kind: inline, prompts: [Hello there.], output_tokens: 100}}
"""


def truth_of(log: Path) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """TTFT and ITL samples, ms, from the server's log."""
    events = np.fromfile(log.with_name(log.name + ".ev"), dtype=np.int64)
    ttft, gaps = [], []
    with log.open(encoding="ascii") as rows:
        for row in csv.DictReader(rows):
            first, count = int(row["ev_off"]), int(row["ev_n"])
            stamps = events[first : first + count]
            if count > 1:
                ttft.append((stamps[0] - int(row["t_karr"] or row["t_arr"])) / 1e6)
                gaps.append(np.diff(stamps) / 1e6)
    return {"ttft": np.array(ttft), "itl": np.concatenate(gaps)}


def measure(server: Path, streams: int, folder: Path) -> list[str]:
    """One run; its lines of the table."""
    log = folder / "truth"
    flags = ["--port", str(PORT), "--ttft-ms", "200", "--itl-ms", "10", "--usage", "--log", str(log)]
    truth = subprocess.Popen(pinned(1, [str(server), *flags]), stderr=subprocess.PIPE, text=True)
    assert truth.stderr is not None
    truth.stderr.readline()
    scenario = folder / "accuracy.yaml"
    requests = max(4 * streams, 512)
    scenario.write_text(SCENARIO.format(port=PORT, streams=streams, requests=requests), encoding="utf-8")
    command = [sys.executable, "-m", "llmbench", "run", str(scenario), "--out", str(folder)]
    done = subprocess.run(
        pinned(0, [*command, "--json", "--quiet"]), capture_output=True, text=True, check=False
    )
    truth.send_signal(signal.SIGTERM)
    truth.communicate()
    reported, true = json.loads(done.stdout)["metrics"], truth_of(log)
    lines = []
    for name, samples in true.items():
        cells = []
        for percent in (50, 99):
            said, was = reported[name][f"p{percent}"] * 1e3, float(np.percentile(samples, percent))
            cells.append(f"p{percent} {said:8.2f} true {was:8.2f} error {said - was:+6.2f}")
        lines.append(f"{streams:5d} streams  {name:<5}{'   '.join(cells)}")
    return lines


def main() -> None:
    """Runs every number of streams, several times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("server", type=Path, help="C++ source of the ground-truth server")
    parser.add_argument("--streams", type=int, action="append")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        server = compiled(args.server, Path(scratch))
        for streams in args.streams or [64, 256]:
            for _ in range(args.repeats):
                sys.stdout.write("\n".join(measure(server, streams, Path(scratch))) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
