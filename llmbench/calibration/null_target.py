"""The null target: the bundled mock as a process of its own, whose true send times are known from its log.

It ends with us, by SIGTERM and on Linux by the kernel if we are killed. The log is whole once it has ended.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from llmbench.calibration.error import Pair
from llmbench.columns import RequestColumns
from llmbench.errors import CannotMeasure
from llmbench.records import Outcome
from llmbench.replay.engine_process import die_with_parent

READY: Final = "llmbench mock ready at "
_GRACE_S: Final = 10.0


@contextmanager
def null_target(flags: Sequence[str], log: Path | None = None) -> Iterator[str]:
    """A mock with these flags; its URL. Raises CannotMeasure where it does not start."""
    logging = [] if log is None else ["--log", str(log), "--arrivals", "kernel"]
    process = subprocess.Popen(
        [sys.executable, "-m", "llmbench.mock", "--port", "0", *flags, *logging],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        start_new_session=True,  # a Ctrl-C in the terminal is for us
        preexec_fn=die_with_parent() if sys.platform == "linux" else None,  # noqa: PLW1509 - one system call
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(READY):
            raise CannotMeasure("the null target (llmbench mock) did not start")
        yield line.removeprefix(READY).split()[0]
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        process.kill()
        process.communicate()


def read_truth(log: Path) -> dict[str, dict[str, Any]]:
    """The log's requests by their id; those without one are left out."""
    entries = [orjson.loads(line) for line in log.read_bytes().splitlines() if line.strip()]
    return {entry["id"]: entry for entry in entries if isinstance(entry.get("id"), str)}


def pairs_of(columns: RequestColumns, truth: dict[str, dict[str, Any]], tokens_per_event: int) -> list[Pair]:
    """What a run recorded and what its null target logged, for every measured request that succeeded."""
    rows = columns.labels["phase"].among("measure") & columns.labels["outcome"].among(Outcome.OK)
    sent = columns.integers["sent_ns"]
    pairs = []
    for row in np.flatnonzero(rows & sent.is_set):
        entry = truth.get(columns.texts["request_id"][row] or "")
        if entry is None:
            continue
        first, last = columns.event_offsets[row], columns.event_offsets[row + 1]
        reported = [int(sent.values[row]), *columns.event_ns[first:last].tolist()]
        pairs.append(Pair(reported, [entry["arrival_ns"], *entry["event_ns"]], tokens_per_event))
    return pairs
