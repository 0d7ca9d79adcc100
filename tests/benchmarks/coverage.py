"""In how many runs the calibrated error covers the true one, against a ground-truth server nobody here wrote.

    python -m tests.benchmarks.coverage TRUTHSERVER.cpp [--streams 64 …] [--repeats 20] [--timestamps kernel]

Each repeat is a run of the product with `instrument.calibrate: true`, the server's own log the truth: covered
means |reported - true| <= the error that the run printed, for p50 and p99 of TTFT and ITL. Asked for are 19
of 20. Client and server share the machine's cores, as they do in a calibration.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.accuracy import ground_truth, reported_by, truth_of
from tests.benchmarks.transports import compiled

WANTED = 0.95
ROUNDS = 7  # answers of 1.2 s, one after the other on each stream


def repeat(server: Path, streams: int, timestamps: str, folder: Path) -> dict[str, tuple[float, float]]:
    """(true error, calibrated error) of each statistic, ms."""
    log = folder / "truth"
    with ground_truth(server, log):
        summary = reported_by(folder, streams, timestamps, rounds=ROUNDS, calibrate=True)
    true, errors = truth_of(log), summary["instrument"]["calibrated_error"]
    found: dict[str, tuple[float, float]] = {}
    for name, samples in true.items():
        for percent in (50, 99):
            said, bound = summary["metrics"][name][f"p{percent}"], errors.get(f"{name}_p{percent}_s")
            if said is not None and bound is not None:
                found[f"{name} p{percent}"] = (
                    abs(said * 1e3 - float(np.percentile(samples, percent))),
                    bound * 1e3,
                )
    return found


def main() -> None:
    """Runs every number of streams with both kinds of stamps; exit code 1 where too few are covered."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("server", type=Path, help="C++ source of the ground-truth server")
    parser.add_argument("--streams", type=int, action="append")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--timestamps", choices=["kernel", "loop"], action="append")
    parser.add_argument("--out", type=Path, help="writes every repeat there, a JSON line each")
    args = parser.parse_args()
    all_covered = True
    with tempfile.TemporaryDirectory() as scratch:
        server = compiled(args.server, Path(scratch))
        for timestamps in args.timestamps or ["kernel", "loop"]:
            for streams in args.streams or [1, 16, 64, 256]:
                covered, asked = Counter[str](), Counter[str]()
                widest: dict[str, tuple[float, float]] = {}
                for _ in range(args.repeats):
                    found = repeat(server, streams, timestamps, Path(scratch))
                    keep(args.out, {"streams": streams, "timestamps": timestamps, "errors_ms": found})
                    for name, (error, bound) in found.items():
                        asked[name] += 1
                        covered[name] += error <= bound
                        widest[name] = max(widest.get(name, (0.0, 0.0)), (error, bound))
                for name, count in asked.items():
                    error, bound = widest[name]
                    all_covered &= covered[name] >= WANTED * count
                    said = f"largest error {error:.3f} ms, calibrated {bound:.3f} ms"
                    print(
                        f"{timestamps:<7}{streams:5d} streams  {name:<9} "
                        f"covered {covered[name]:3d} of {count:3d}   {said}",
                        flush=True,
                    )
    sys.exit(0 if all_covered else 1)


def keep(out: Path | None, row: dict[str, Any]) -> None:
    """Appends a line to the file, where there is one."""
    if out is not None:
        with out.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
