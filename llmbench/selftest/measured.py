"""A run of the product against a known server, and everything that is known of it afterwards."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmbench.bench import run_scenario
from llmbench.calibration.error import Pair
from llmbench.calibration.null_target import null_target, pairs_of, read_truth
from llmbench.columns import RequestColumns
from llmbench.parquet import read_requests
from llmbench.replay.interrupts import EXIT_INTERRUPTED
from llmbench.scenario.load import parse_scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """`pairs` are what was reported and what the server logged; empty where nobody logged."""

    summary: Mapping[str, Any]
    columns: RequestColumns
    pairs: Sequence[Pair] = field(default=())

    def metric_ms(self, name: str, stat: str) -> float | None:
        """A latency of the summary, in ms."""
        value = self.summary["metrics"][name][stat]
        return None if value is None else float(value) * 1e3

    @property
    def reasons(self) -> list[str]:
        """The codes of the verdict's reasons."""
        return [reason["code"] for reason in self.summary["verdict"]["reasons"]]


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="llmbench-selftest-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_against(url: str, parts: Mapping[str, Any]) -> Measured:
    """A run against a server that is there; `parts` are those of a scenario, its target's without a URL."""
    tree = {
        "name": "selftest",
        "workload": {"kind": "inline", "prompts": ["Tell me more."], "output_tokens": 8},
        **parts,
        "target": {"url": url, "model": "mock", "ignore_eos": False, **parts.get("target", {})},
        "instrument": {"calibrate": False, **parts.get("instrument", {})},
    }
    with scratch_folder() as out:
        result = run_scenario(parse_scenario(tree), out=out, save_text=True)
        if result.exit_code == EXIT_INTERRUPTED:  # the whole self-test is meant, not this run
            raise KeyboardInterrupt
        return Measured(summary=result.summary, columns=read_requests(result.folder / "requests.parquet"))


def run_logged(flags: Sequence[str], parts: Mapping[str, Any]) -> Measured:
    """A run against a null target of its own, with the pairs of its log."""
    with scratch_folder() as folder:
        log = folder / "truth.jsonl"
        with null_target(flags, log) as url:
            seen = run_against(url, parts)
        pairs = pairs_of(seen.columns, read_truth(log), 1)
    return Measured(summary=seen.summary, columns=seen.columns, pairs=pairs)
