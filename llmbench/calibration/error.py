"""From pairs of reported and true times to what a figure may be off by.

For one request and one gap the error is plain: reported minus true, by the server's own log. What is wanted
is the error of a *statistic* (a percentile of a whole run) in *another* run, at the same load, against a
server whose times are spread otherwise than the null target's. Three things follow.

1. Adding an error D to a true value T moves a percentile by as much as the percentile of D where T is the
   same each time, and by less where T is spread. So both are taken, the difference of the two percentiles as
   found and the percentile of D, and the larger one counts.
2. Errors come in bouts (a busy core, a pause), so requests are no independent draws. They are cut into blocks
   in order of time, and blocks are drawn with replacement (H. R. Künsch, "The jackknife and the bootstrap for
   general stationary observations", Annals of Statistics 17, 1989). How far the 97.5 % quantile of the
   statistic's error is from that found is taken twofold, since the run is a draw too and may be a shorter
   one, and with Student's t in place of the normal quantile: few blocks show too little spread.
3. No draw exceeds what was seen, and the 99th percentile of a few hundred errors may. The largest of n is a
   97.5 % limit of a percentile where p^n <= 0.025: 368 for p99, and twice that since the run's percentile is
   a draw too. Where there are fewer, the largest is extended to so many along an exponential tail; its scale
   is the mean excess over the 90th percentile, at its upper limit. No limit is below the error of all blocks
   taken together.
4. A run may be later than its calibration was: another program had the core. It knows its own lags, and where
   their p99 is above that of the calibration, the difference is added to what it bears on (`widened`).

Floors stand below it all: what differs from one server to another. Gaps are between stamps of one kind, taken
alike; the TTFT is between two, and waking a server takes some time from the client that shares its cores. How
soon an event loop is woken, where it stamps, changes by half a millisecond with what else the machine does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FLOOR_NS: Final = {"ttft": 200_000.0, "itl": 20_000.0, "tpot": 20_000.0}
LOOP_FLOOR_NS: Final = 500_000.0
SHARED_SHARE: Final = 0.002  # of events read with later ones; below it no p99 of a run is moved
MOST_BLOCKS: Final = 16
FEWEST_IN_A_BLOCK: Final = 4
PERCENTS: Final = (50.0, 99.0)
_NUM_DRAWS: Final = 100
_CONFIDENCE: Final = 97.5
_SHORTER: Final = 2.0  # sqrt(1 + m) for a run with an m-th of the requests; m = 3
_TAIL: Final = 90.0
_Z975: Final = 1.959964
# Student's t, 97.5 %, by degrees of freedom from 1.
_T975: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145),
    2.131,
)
_DOUBT: Final = 2.0  # with too few requests for two blocks there is no spread to go by


@dataclass(frozen=True, slots=True)
class Pair:
    """One request, seen from both ends, ns: when it was sent or arrived, then each event."""

    reported: Sequence[int]
    true: Sequence[int]
    tokens_per_event: int = 1


@dataclass(frozen=True, slots=True)
class Both:
    """Reported and true values of one metric, in the same order."""

    reported: Floats
    true: Floats


def error_bounds(pairs: Sequence[Pair], *, timestamps: str = "kernel") -> dict[str, float | None]:
    """What each statistic may be off by, in seconds; None where there is nothing to go by.

    `pairs` may be in any order; those whose ends counted different numbers of events are left out.
    """
    usable = sorted(
        (pair for pair in pairs if len(pair.reported) == len(pair.true) > 1), key=lambda pair: pair.true[0]
    )
    blocks = _blocks(usable)
    found: dict[str, float | None] = {}
    for metric, values in _VALUES.items():
        cut = [both for block in blocks if len((both := values(block)).true)]
        bounds = _bounds(cut) if cut else [None] * len(PERCENTS)
        for percent, bound in zip(PERCENTS, bounds, strict=True):
            floor = LOOP_FLOOR_NS if metric == "ttft" and timestamps == "loop" else FLOOR_NS[metric]
            known = None if bound is None else max(floor, bound) / 1e9
            found[f"{metric}_p{percent:.0f}_s"] = known
    return found


def _blocks(pairs: Sequence[Pair]) -> list[Sequence[Pair]]:
    """Stretches of time of about as many requests each."""
    if not pairs:
        return []
    num = max(1, min(MOST_BLOCKS, len(pairs) // FEWEST_IN_A_BLOCK))
    edges = [round(number * len(pairs) / num) for number in range(num + 1)]
    return [pairs[start:end] for start, end in pairwise(edges)]


def _bounds(blocks: Sequence[Both]) -> list[float]:
    """For each of PERCENTS what another stretch would stay below, in ns."""
    whole, num = _joined(blocks), len(blocks)
    together = np.maximum(statistic_errors(whole), _tails(np.abs(whole.reported - whole.true))).tolist()
    if num < 2:
        return [_DOUBT * error for error in together]
    chance = np.random.default_rng(0)
    drawn = np.array(
        [
            statistic_errors(_joined([blocks[one] for one in chance.integers(num, size=num)]))
            for _ in range(_NUM_DRAWS)
        ]
    )
    few = _SHORTER * _T975[num - 2] / _Z975
    found = np.array(statistic_errors(whole))
    limits = found + few * (np.percentile(drawn, _CONFIDENCE, axis=0) - found)
    return [max(float(limit), error) for limit, error in zip(limits, together, strict=True)]


def _tails(errors: Floats) -> list[float]:
    """For each of PERCENTS how large an error must be reckoned with, where there are few; else 0."""
    threshold = np.percentile(errors, _TAIL)
    excesses = errors[errors >= threshold] - threshold
    scale = float(excesses.mean()) * (1 + _Z975 / math.sqrt(len(excesses)))
    needed = [2 * math.log(1 - _CONFIDENCE / 100) / math.log(percent / 100) for percent in PERCENTS]
    largest = float(errors.max())
    return [largest + scale * math.log(most / len(errors)) if len(errors) < most else 0.0 for most in needed]


def _joined(blocks: Sequence[Both]) -> Both:
    return Both(
        np.concatenate([block.reported for block in blocks]), np.concatenate([block.true for block in blocks])
    )


def statistic_errors(both: Both) -> list[float]:
    """How far each of PERCENTS is moved by these errors: as found, or were all true values the same."""
    reported, true, alone = (
        np.percentile(values, PERCENTS) for values in (both.reported, both.true, both.reported - both.true)
    )
    return [float(value) for value in np.maximum(np.abs(reported - true), np.abs(alone))]


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


def _ttft(pairs: Sequence[Pair]) -> Both:
    return _each(pairs, lambda instants, _: [instants[1] - instants[0]])


def _itl(pairs: Sequence[Pair]) -> Both:
    return _each(pairs, lambda instants, tokens: np.diff(instants[1:]) / tokens)


def _tpot(pairs: Sequence[Pair]) -> Both:
    def of(instants: Floats, tokens: int) -> Sequence[float]:
        num_gaps = (len(instants) - 1) * tokens - 1
        return [(instants[-1] - instants[1]) / num_gaps] if num_gaps > 0 else []

    return _each(pairs, of)


def _each(pairs: Sequence[Pair], of: Callable[[Floats, int], Floats | Sequence[float]]) -> Both:
    """One metric of every request, from its reported and from its true instants."""
    ends = []
    for name in ("reported", "true"):
        values: list[Floats] = []
        for pair in pairs:
            instants = getattr(pair, name)
            relative = np.array([instant - instants[0] for instant in instants], dtype=np.float64)
            values.append(np.asarray(of(relative, pair.tokens_per_event), dtype=np.float64))
        ends.append(np.concatenate(values) if values else np.empty(0))
    return Both(*ends)


_VALUES: Final[dict[str, Callable[[Sequence[Pair]], Both]]] = {"ttft": _ttft, "itl": _itl, "tpot": _tpot}
