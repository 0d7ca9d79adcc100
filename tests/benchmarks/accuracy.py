"""What `llmbench run` reports against what a ground-truth server wrote down, at several numbers of streams.

    python -m tests.benchmarks.accuracy TRUTHSERVER.cpp [--streams 64 …] [--repeats 5] [--timestamps kernel]

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
from collections.abc import Iterator
from contextlib import contextmanager
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
instrument: {{timestamps: {timestamps}, calibrate: {calibrate}}}
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


@contextmanager
def ground_truth(server: Path, log: Path, *, pin: bool = False) -> Iterator[None]:
    """The server, until it is no longer needed; its log is whole then."""
    flags = ["--port", str(PORT), "--ttft-ms", "200", "--itl-ms", "10", "--usage", "--log", str(log)]
    command = [str(server), *flags]
    truth = subprocess.Popen(pinned(1, command) if pin else command, stderr=subprocess.PIPE, text=True)
    assert truth.stderr is not None
    truth.stderr.readline()
    try:
        yield
    finally:
        truth.send_signal(signal.SIGTERM)
        truth.communicate()


def reported_by(
    folder: Path, streams: int, timestamps: str, *, rounds: int, calibrate: bool = False, pin: bool = False
) -> dict[str, Any]:
    """summary.json of a run against it; every stream is used for so many answers, one after the other."""
    scenario = folder / "accuracy.yaml"
    settings = {
        "streams": streams,
        "requests": rounds * streams,
        "timestamps": timestamps,
        "calibrate": str(calibrate).lower(),
    }
    scenario.write_text(SCENARIO.format(port=PORT, **settings), encoding="utf-8")
    command = [sys.executable, "-m", "llmbench", "run", str(scenario), "--out", str(folder)]
    command += ["--json", "--quiet"]
    done = subprocess.run(pinned(0, command) if pin else command, capture_output=True, text=True, check=False)
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def measure(server: Path, streams: int, timestamps: str, folder: Path) -> list[str]:
    """One run; its lines of the table."""
    log = folder / "truth"
    with ground_truth(server, log, pin=True):
        summary = reported_by(folder, streams, timestamps, rounds=max(4, min(25, 512 // streams)), pin=True)
    reported, true = summary["metrics"], truth_of(log)
    lines = []
    for name, samples in true.items():
        cells = []
        for percent in (50, 99):
            said, was = reported[name][f"p{percent}"], float(np.percentile(samples, percent))
            cells.append(
                f"p{percent} too few"
                if said is None
                else f"p{percent} {said * 1e3:8.2f} true {was:8.2f} error {said * 1e3 - was:+6.2f}"
            )
        lines.append(f"{timestamps:<7}{streams:5d} streams  {name:<5}{'   '.join(cells)}")
    return [f"{summary['verdict']['status']}", *lines]


def main() -> None:
    """Runs every number of streams with both kinds of stamps, several times."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("server", type=Path, help="C++ source of the ground-truth server")
    parser.add_argument("--streams", type=int, action="append")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--timestamps", choices=["kernel", "loop"], action="append")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        server = compiled(args.server, Path(scratch))
        for streams in args.streams or [1, 16, 64, 256, 1000]:
            for timestamps in args.timestamps or ["kernel", "loop"]:
                for _ in range(args.repeats):
                    sys.stdout.write("\n".join(measure(server, streams, timestamps, Path(scratch))) + "\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
