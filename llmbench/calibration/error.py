"""From pairs of reported and true times to what a figure may be off by.

For one request and one gap the error is plain: reported minus true, by the server's own log. What is wanted
is the error of a *statistic* (a percentile of a whole run) in *another* run, at the same load, against a
server whose times are spread otherwise than the null target's. Three things follow.

1. Adding an error D to a true value T moves a percentile by as much as the percentile of D where T is the
   same each time, and by less where T is spread. So both are taken, the difference of the two percentiles as
   found and the percentile of D, and the larger one counts.
2. Errors come in bouts (a busy core, a pause), so requests are no independent draws. They are cut into blocks
   in order of time, each of which gives a figure of its own, and the spread between blocks is what one more
   stretch of the same length would show: mean + t · s · sqrt(1 + 1/B) is the upper 97.5 % prediction limit
   for one more block (G. J. Hahn, "Factors for calculating two-sided prediction intervals for samples from a
   normal distribution", JASA 64, 1969). A block is shorter than a run, so its percentiles vary more.
3. That limit knows nothing of heavier tails, so it is never below the error of all blocks taken together.

4. A run may be later than its calibration was: another program had the core. It knows its own lags, and where
   their p99 is above that of the calibration, the difference is added to what it bears on (`widened`).

Floors stand below it all: what differs from one server to another. Gaps are between stamps of one kind, taken
alike; the TTFT is between two, and waking a server takes some time from the client that shares its cores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FLOOR_NS: Final = {"ttft": 200_000.0, "itl": 20_000.0, "tpot": 20_000.0}
SHARED_SHARE: Final = 0.002  # of events read with later ones; below it no p99 of a run is moved
MOST_BLOCKS: Final = 8
FEWEST_IN_A_BLOCK: Final = 4
# Student's t, 97.5 %, by degrees of freedom 1 to 7.
_T975: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365)
_DOUBT: Final = 2.0  # with too few requests for two blocks there is no spread to go by

STATISTICS: Final = (
    ("ttft_p50_s", "ttft", 50.0),
    ("ttft_p99_s", "ttft", 99.0),
    ("itl_p50_s", "itl", 50.0),
    ("itl_p99_s", "itl", 99.0),
    ("tpot_p50_s", "tpot", 50.0),
    ("tpot_p99_s", "tpot", 99.0),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """One request, seen from both ends, ns: when it was sent or arrived, then each event."""

    reported: Sequence[int]
    true: Sequence[int]
    tokens_per_event: int = 1


@dataclass(frozen=True, slots=True)
class _Both:
    """Reported and true values of one metric, in the same order."""

    reported: Floats
    true: Floats


def error_bounds(pairs: Sequence[Pair]) -> dict[str, float | None]:
    """What each statistic may be off by, in seconds; None where there is nothing to go by.

    `pairs` may be in any order; those whose ends counted different numbers of events are left out.
    """
    usable = sorted(
        (pair for pair in pairs if len(pair.reported) == len(pair.true) > 1), key=lambda pair: pair.true[0]
    )
    blocks = _blocks(usable)
    found: dict[str, float | None] = {}
    for name, metric, percent in STATISTICS:
        cut = [both for block in blocks if len((both := _VALUES[metric](block)).true)]
        found[name] = max(FLOOR_NS[metric], _bound(cut, percent)) / 1e9 if cut else None
    return found


def _blocks(pairs: Sequence[Pair]) -> list[Sequence[Pair]]:
    """Stretches of time of about as many requests each."""
    if not pairs:
        return []
    num = max(1, min(MOST_BLOCKS, len(pairs) // FEWEST_IN_A_BLOCK))
    edges = [round(number * len(pairs) / num) for number in range(num + 1)]
    return [pairs[start:end] for start, end in pairwise(edges)]


def _bound(blocks: Sequence[_Both], percent: float) -> float:
    """The upper prediction limit for one more block, in ns."""
    whole = _Both(
        np.concatenate([block.reported for block in blocks]), np.concatenate([block.true for block in blocks])
    )
    found = np.array([statistic_error(block.reported, block.true, percent) for block in blocks])
    together = statistic_error(whole.reported, whole.true, percent)
    if len(found) < 2:
        return _DOUBT * together
    t = _T975[len(found) - 2]
    limit = float(found.mean() + t * found.std(ddof=1) * np.sqrt(1 + 1 / len(found)))
    return max(together, limit)


def statistic_error(reported: Floats, true: Floats, percent: float) -> float:
    """How far a percentile is moved by these errors: as found, or were all true values the same."""
    direct = np.percentile(reported, percent) - np.percentile(true, percent)
    alone = np.percentile(reported - true, percent)
    return float(max(abs(direct), abs(alone)))


def lag_of(instrument: Mapping[str, Any]) -> float | None:
    """The lag that bears on the stamps, s: of reads where the kernel stamps, else of the loop that does."""
    name = "read_lag_p99_s" if instrument.get("timestamps") == "kernel" else "loop_lag_p99_s"
    lag = instrument.get(name)
    return None if lag is None else float(lag)


def widened(
    errors: Mapping[str, float | None], instrument: Mapping[str, Any], calibrated_lag_s: float | None
) -> dict[str, float | None]:
    """The errors of a run that was later than its calibration. Where the kernel stamps, a late read moves
    no stamp but those of events read together.
    """
    lag, stamps = lag_of(instrument), instrument.get("stamps") or {}
    excess = max(0.0, lag - calibrated_lag_s) if lag is not None and calibrated_lag_s is not None else 0.0
    if instrument.get("timestamps") == "kernel" and (stamps.get("shared_share") or 0.0) <= SHARED_SHARE:
        excess = 0.0
    touched = ("ttft_p99_s", "itl_p99_s")
    return {
        name: error + excess if error is not None and name in touched else error
        for name, error in errors.items()
    }


# ---- the metrics, from the instants of both ends


def _ttft(pairs: Sequence[Pair]) -> _Both:
    return _each(pairs, lambda instants, _: [instants[1] - instants[0]])


def _itl(pairs: Sequence[Pair]) -> _Both:
    return _each(pairs, lambda instants, tokens: np.diff(instants[1:]) / tokens)


def _tpot(pairs: Sequence[Pair]) -> _Both:
    def of(instants: Floats, tokens: int) -> Sequence[float]:
        num_gaps = (len(instants) - 1) * tokens - 1
        return [(instants[-1] - instants[1]) / num_gaps] if num_gaps > 0 else []

    return _each(pairs, of)


def _each(pairs: Sequence[Pair], of: Callable[[Floats, int], Floats | Sequence[float]]) -> _Both:
    """One metric of every request, from its reported and from its true instants."""
    ends = []
    for name in ("reported", "true"):
        values: list[Floats] = []
        for pair in pairs:
            instants = getattr(pair, name)
            relative = np.array([instant - instants[0] for instant in instants], dtype=np.float64)
            values.append(np.asarray(of(relative, pair.tokens_per_event), dtype=np.float64))
        ends.append(np.concatenate(values) if values else np.empty(0))
    return _Both(*ends)


_VALUES: Final[dict[str, Callable[[Sequence[Pair]], _Both]]] = {"ttft": _ttft, "itl": _itl, "tpot": _tpot}
