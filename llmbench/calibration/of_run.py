"""Calibrating a run that has ended: from the cache, or by a few seconds of the same shape.

It comes after the run and not before, because what a load amounts to (streams in flight, events a second)
depends on the server as much as on the scenario. A calibration that fails never fails its run: it says why.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from llmbench.calibration.cache import load_calibration, store_calibration
from llmbench.calibration.error import error_bounds, lag_of, widened
from llmbench.calibration.known import Known
from llmbench.calibration.null_target import null_target, pairs_of, read_truth
from llmbench.calibration.shape import MEASURED_S, WARMUP_S, Replay, Shape, replay_of
from llmbench.errors import CannotMeasure, LlmbenchError
from llmbench.parquet import read_requests
from llmbench.scenario.load import parse_scenario
from llmbench.scenario.model import Scenario

LONG_RUN_S: Final = 30.0  # a shorter one would spend a good part of its time on its own calibration
ABOUT_S: Final = WARMUP_S + MEASURED_S + 2.0
_CARRIED: Final = 0.9  # of the events a second that were planned
FEWEST: Final = 8  # requests, below which nothing can be said


class _Result(Protocol):
    """What a run gives back, as far as it matters here."""

    @property
    def folder(self) -> Path: ...
    @property
    def summary(self) -> Mapping[str, Any]: ...


Run = Callable[[Scenario, Path], _Result]
"""Runs a scenario and writes its folder below the path: the product's own way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What is known of a run's error. `source`: cache, this run, or none, which `note` then explains."""

    source: str
    errors: Mapping[str, float | None] = field(default_factory=dict)
    known: Known | None = None
    age_s: float | None = None
    note: str | None = None

    def instrument(self) -> dict[str, Any]:
        """As it stands in summary.json under `instrument`."""
        known = self.known
        return {
            "calibrated_error": {"ttft_p99_s": None, "itl_p99_s": None, **self.errors},
            "calibration": {
                "source": self.source,
                "age_s": self.age_s,
                "lag_p99_s": None if known is None else known.lag_s,
                "shape": None if known is None else known.shape.to_json(),
                "note": self.note if known is None else known.note,
            },
        }


def calibrate(
    shape: Shape | None,
    run: Run,
    *,
    asked: str | bool,
    summary: Mapping[str, Any],
    tell: Callable[[str], None] = lambda _: None,
) -> Calibrated:
    """The error of a run of this shape and with this summary. `asked` is the scenario's
    `instrument.calibrate`. Never raises for what may go wrong with a calibration.
    """
    if asked is False:
        return Calibrated(source="none", note="instrument.calibrate: false")
    if shape is None:
        return Calibrated(source="none", note="nothing was streamed")
    if asked == "auto" and (cached := load_calibration(shape)) is not None:
        return _of_this_run(cached[0], summary, "cache", cached[1])
    if asked == "auto" and summary["window"]["duration_s"] < LONG_RUN_S:
        why = f"a run of less than {LONG_RUN_S:g} s is not calibrated unasked (instrument.calibrate: true)"
        return Calibrated(source="none", note=why)
    tell(f"calibrating the instrument at this load: about {ABOUT_S:.0f} s")
    try:
        known = measure_error(shape, run)
    except (LlmbenchError, OSError) as error:
        return Calibrated(source="none", note=f"could not be calibrated: {_first_line(error)}")
    except KeyboardInterrupt:
        return Calibrated(source="none", note="the calibration was interrupted")
    store_calibration(known)
    return _of_this_run(known, summary, "this run", 0.0)


def _of_this_run(known: Known, summary: Mapping[str, Any], source: str, age_s: float) -> Calibrated:
    """What is known of the load, for a run that may have been later than its calibration."""
    errors = widened(known.errors, summary["instrument"], known.lag_s)
    return Calibrated(source=source, errors=errors, known=known, age_s=age_s)


def measure_error(shape: Shape, run: Run) -> Known:
    """Replays the shape against the null target and compares. Raises as `run` does, and CannotMeasure."""
    replay = replay_of(shape)
    scratch = Path(tempfile.mkdtemp(prefix="llmbench-calibration-"))
    try:
        log = scratch / "truth.jsonl"
        with null_target(replay.mock_flags(), log) as url:
            result = run(parse_scenario(replay.scenario(url, shape)), scratch)
        columns = read_requests(result.folder / "requests.parquet")
        pairs = pairs_of(columns, read_truth(log), shape.tokens_per_event)
        if result.summary["run"]["interrupted"]:
            raise KeyboardInterrupt
        if len(pairs) < FEWEST:
            raise CannotMeasure(f"only {len(pairs)} of its requests succeeded")
        return Known(
            errors=error_bounds(pairs, timestamps=shape.timestamps),
            shape=shape,
            lag_s=lag_of(result.summary["instrument"]),
            note=_carried_note(replay, shape, result.summary),
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _carried_note(replay: Replay, shape: Shape, summary: Mapping[str, Any]) -> str | None:
    """What is to be known where the null target carried less than the run's load."""
    done = (summary["throughput"]["output_tokens_per_s"] or 0.0) / replay.tokens_per_event
    if replay.share >= 1.0 and done >= _CARRIED * min(shape.events_per_s, replay.events_per_s):
        return None
    return (
        f"calibrated at {done:,.0f} of {shape.events_per_s:,.0f} events a second and {replay.streams} of "
        f"{shape.concurrency} streams, which is what the null target carried: a lower bound"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
