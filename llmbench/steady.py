"""Whether a run was steady: when its warm-up really ended, and whether it drifted from there to its end.

**Warm-up.** MSER-5 (White 1997, "An effective truncation heuristic for bias reduction in simulation output",
Simulation 69): latencies in order of start, warm-up and measured, in batches of five; the point d that
leaves the smallest squared standard error of what remains, sum (y - mean)^2 / (m - d)^2, is where the
transient ended. Looked for in the first half only: later than that the rest is too short to say. The batches
are means of logarithms, because latencies differ by factors and have long tails. MSER alone is no verdict: it
also cuts chance outliers off a run that was steady all along, and a stall that passed. So a transient is
believed only where what it would cut from the measured window

    is apart from the rest    of all pairs of a batch before and one after, at least SEPARATION have the same
                              sign: chance gives a half, a stall in a fifth of the part six tenths, a warm-up
                              that fades nine tenths
    is no accident            Mann and Whitney's (1947) z of these pairs is MIN_Z or more: the point was
                              chosen for its contrast and neighbours are alike, so 2 would mean nothing. Six
                              batches of thirty reach it
    matters                   without it p50 or p95 are off by more than MATERIAL and FLOOR_S
    lies well inside          it is more than WELL_INSIDE of the window

**Drift.** Medians of up to 20 blocks of equal numbers of requests, so that neither outliers nor the likeness
of neighbours count; Kendall's tau of the blocks over time (Mann 1945), and Sen's slope with its interval (Sen
1968; Gilbert 1987). It is called a drift where it is all of

    significant    Mann-Kendall p < DRIFT_P, two-sided, normal approximation
    a trend        |tau| >= DRIFT_TAU: the run goes one way to its end. A queue near saturation wanders for
                   many blocks and would be significant as well; a warm-up in the first third has 0.55
    material       the slope over the whole window is >= DRIFT_SHARE of the p50, and above FLOOR_S

A quarter is far more than what the interval of a p50 from a few hundred requests admits, and less than what
any queue that grows shows within seconds. Of simulated steady runs (independent normal, lognormal, and first-
order autoregressive of coefficient 0.7) fewer than one in a hundred are flagged by either (tests/llmbench/
test_steady.py). A queue at nine tenths of its capacity (M/M/1) is flagged by one of the two in some 18 % of
runs with 200 requests, and 7 % with 1,000: so short a run of it has no one level.

Neither is asked of a load that changes by intent (stages, a trace), nor of a closed loop whose users had not
gone round a few times. Pure; instants in nanoseconds, results in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmbench.context import RunContext
from llmbench.metrics import NS_PER_S, BoolRows, Requests, Window, unfinished
from llmbench.stats import Z95, sample

Values = NDArray[np.float64]

EXPECTED, NOT_EXPECTED = "expected", "not expected"
TOO_FEW, TOO_SHORT = "too few requests", "too short"

BATCH = 5
MIN_Z = 3.5
SEPARATION = 0.85
MATERIAL = 0.10
WELL_INSIDE = 0.05

MAX_BLOCKS = 20
MIN_BLOCKS = 8
MIN_BLOCK = 5
DRIFT_P = 0.001
DRIFT_TAU = 0.7
DRIFT_SHARE = 0.25

FLOOR_S = {
    "ttft": 0.005,
    "e2e": 0.005,
    "tpot": 0.001,
}  # below it a difference is the machine's, not the load's
MIN_SPAN_S = 1.0
MIN_CYCLES = 3.0  # of a closed loop: in the first one all its users start together


@dataclass(frozen=True, slots=True)
class Series:
    """Latencies in order of start: instants in nanoseconds, values in seconds, and which are measured."""

    starts_ns: NDArray[np.int64]
    values_s: Values
    measured: BoolRows


# ---- the warm-up


def mser(values: Values, batch: int = BATCH) -> int:
    """How many values MSER cuts off: a multiple of `batch`, up to half of them; 0 for a short series.

    `values` [n] in order. The smallest of equally good points is taken, so that a constant series is whole.
    """
    num_batches = len(values) // batch
    if num_batches < 2:
        return 0
    means = values[: num_batches * batch].reshape(num_batches, batch).mean(axis=1)
    means = means - means.mean()
    # Sums over means[d:] for every d at once.
    sums, squares = np.cumsum(means[::-1])[::-1], np.cumsum((means**2)[::-1])[::-1]
    lengths = np.arange(num_batches, 0, -1)
    errors = np.maximum(squares - sums**2 / lengths, 0) / lengths.astype(np.float64) ** 2
    candidates = errors[: num_batches // 2 + 1]
    # The sums carry rounding errors: what differs by those alone is equally good.
    return int(np.flatnonzero(candidates <= candidates.min() + 1e-12 * candidates[0])[0]) * batch


def separation(before: Values, after: Values) -> float:
    """Share of pairs (one of each) that have the more frequent order, 0.5 to 1; ties count half."""
    ordered = np.sort(after)
    below = np.searchsorted(ordered, before, side="left") + np.searchsorted(ordered, before, side="right")
    share = float(below.sum()) / (2 * len(before) * len(after))
    return max(share, 1 - share)


def settling(series: Series, warmup_ns: int, metric: str) -> dict[str, Any]:
    """When the series settled, and what the measured part up to there does to p50 and p95.

    `settled_s` counts from the start of the run; None where that was not within the first half.
    """
    values, measured = series.values_s, series.measured
    cut = mser(np.log(np.maximum(values, 1e-9)))
    within_half = cut < len(values) // BATCH // 2 * BATCH
    early, late = values[:cut][measured[:cut]], values[cut:][measured[cut:]]
    num_early, num_late = len(early) // BATCH, len(late) // BATCH
    facts: dict[str, Any] = {
        "metric": metric,
        "warmup_s": warmup_ns / NS_PER_S,
        "settled_s": int(series.starts_ns[cut]) / NS_PER_S if within_half else None,
        "transient_share": len(early) / max(1, int(measured.sum())),
        "separation": None,
        "settled_p50_s": None,
        "settled_p95_s": None,
        "transient": False,
    }
    if not within_half or not num_early or not num_late:
        return facts
    apart = separation(*(_batch_medians(part) for part in (early, late)))
    # Of the normal approximation of U: its mean is half of the pairs, its variance m n (m + n + 1) / 12.
    z = (apart - 0.5) / math.sqrt((num_early + num_late + 1) / (12 * num_early * num_late))
    whole, kept = sample(values[measured]), sample(late)
    pairs = [(whole.percentile(percent), kept.percentile(percent)) for percent in (50, 95)]
    matters = any(abs(all_s - kept_s) > max(MATERIAL * kept_s, FLOOR_S[metric]) for all_s, kept_s in pairs)
    return facts | {
        "separation": apart,
        "settled_p50_s": pairs[0][1],
        "settled_p95_s": pairs[1][1],
        "transient": apart >= SEPARATION and z >= MIN_Z and matters,
    }


def _batch_medians(values: Values) -> Values:
    num = len(values) // BATCH
    return np.asarray(np.median(values[: num * BATCH].reshape(num, BATCH), axis=1))


# ---- the drift


def drift(series: Series, metric: str) -> dict[str, Any] | None:
    """The trend of the measured values over their own time; None where there are too few, or no time passes.

    `change_s` is Sen's slope times that time, with the 95 % interval of the slope; `share` is of the p50.
    """
    starts, values = series.starts_ns[series.measured], series.values_s[series.measured]
    num_blocks = min(MAX_BLOCKS, len(values) // MIN_BLOCK)
    if num_blocks < MIN_BLOCKS or starts[-1] == starts[0]:
        return None
    edges = np.linspace(0, len(values), num_blocks + 1).round().astype(int)
    spans = list(pairwise(edges.tolist()))
    medians = np.array([np.median(values[first:last]) for first, last in spans])
    at = np.array([(starts[first:last] - starts[0]).mean() for first, last in spans])
    i, j = np.triu_indices(num_blocks, 1)
    kendall = float(np.sign(medians[j] - medians[i]).sum())
    variance = num_blocks * (num_blocks - 1) * (2 * num_blocks + 5) / 18
    p_value = math.erfc(max(0.0, abs(kendall) - 1) / math.sqrt(2 * variance))
    apart = at[j] > at[i]
    slopes = np.sort((medians[j] - medians[i])[apart] / (at[j] - at[i])[apart])
    reach = Z95 * math.sqrt(variance)
    low, high = math.floor((len(slopes) - reach) / 2), math.ceil((len(slopes) + reach) / 2)
    span = float(starts[-1] - starts[0])
    change, p50, tau = float(np.median(slopes)) * span, float(np.median(values)), kendall / len(i)
    ends = [float(slopes[max(0, low)]) * span, float(slopes[min(len(slopes) - 1, high)]) * span]
    share = change / p50 if p50 > 0 else None
    return {
        "change_s": change,
        "ci95_s": ends,
        "share": share,
        "tau": tau,
        "p_value": p_value,
        "blocks": num_blocks,
        "drifting": p_value < DRIFT_P
        and abs(tau) >= DRIFT_TAU
        and share is not None
        and abs(share) >= DRIFT_SHARE
        and abs(change) >= FLOOR_S[metric],
    }


# ---- both, of a run


def steadiness(requests: Requests, window: Window, context: RunContext) -> dict[str, Any]:
    """`steady` and `drift` of summary.json."""
    has_first = requests.measures["ttft"].of(requests.succeeded)
    main = "ttft" if 2 * len(has_first) >= int(requests.succeeded.sum()) and len(has_first) else "e2e"
    series = series_of(requests, main)
    kind = _kind(requests, series, context)
    names = ("ttft", "tpot") if main == "ttft" else ("e2e",)
    if kind != EXPECTED:
        return {"steady": {"kind": kind}, "drift": {"kind": kind}}
    warmup_ns = window.start_ns if requests.warmup.any() else 0
    if context.window_ns is not None:
        warmup_ns = context.window_ns[0]
    drifts: Mapping[str, Any] = {name: drift(series_of(requests, name), name) for name in names}
    return {
        "steady": {"kind": kind, **settling(series, warmup_ns, main)},
        "drift": {"kind": kind, **drifts},
    }


def series_of(requests: Requests, metric: str) -> Series:
    """A metric of all requests, warm-up too, that came far enough to have it, in order of start."""
    measure = requests.measures[metric]
    # A first token that came counts, though the rest was cut off; other metrics need the whole answer.
    whole = requests.ok if metric != "ttft" else requests.ok | unfinished(requests)
    rows = np.flatnonzero(measure.defined & whole & requests.starts.is_set)
    order = rows[np.argsort(requests.starts.values[rows], kind="stable")]
    return Series(
        starts_ns=requests.starts.values[order],
        values_s=measure.values[order] / NS_PER_S,
        measured=requests.measured[order],
    )


def _kind(requests: Requests, series: Series, context: RunContext) -> str:
    """Whether this run can be asked to be steady, or why not."""
    if not context.level_load:
        return NOT_EXPECTED
    starts = series.starts_ns[series.measured]
    if len(starts) < MIN_BLOCKS * MIN_BLOCK:
        return TOO_FEW
    span_s = float(starts[-1] - starts[0]) / NS_PER_S
    e2e = requests.measures["e2e"].of(requests.succeeded) / NS_PER_S
    cycle_s = float(np.median(e2e)) if len(e2e) else 0.0
    if span_s < MIN_SPAN_S or (not context.open_loop and span_s < MIN_CYCLES * cycle_s):
        return TOO_SHORT
    return EXPECTED
