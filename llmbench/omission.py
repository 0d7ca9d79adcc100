"""What a run did not ask: arrivals delivered otherwise than planned, and what a closed loop never sent.

**Coordinated omission** (Gil Tene, "How NOT to Measure Latency", 2015): whoever waits for an answer before
asking again asks nothing while the server stands still, and the stall becomes one slow request instead of
the hundreds that would have met it. An open loop sends on time and counts from the due instant.

**Arrivals.** Of an open loop, send instants are held against due instants over the same requests. A delay
that all have alike does not count, nor one within the tolerance: the larger of 5 % of the mean gap and 1 ms,
which any event loop needs, and which is what lies between requests due at one instant.

    ks              Kolmogorov-Smirnov distance of the gaps' distributions, each edge moved by the tolerance
                    in its favour (as in Levy's metric): a constant rate has all its gaps at one value, and
                    the plain distance of 20.00 ms and 20.01 ms is 1
    dispersion      variance over mean of the counts in windows of ten mean gaps, 0.1 to 1 s long (Cox and
                    Lewis 1966): 1 for Poisson arrivals, 0 for a constant rate, more for bursts
    moved_share     of the sends, those moved by more than the tolerance against the median lag

**Stalls of a closed loop.** A stall is a time in which nothing was sent, no answer ended and no output came
while users waited. It is one of the server, and not its usual silence, where it is longer than 0.5 s and than
three times the median E2E, ten times where only one user waited. Where answers come in one piece (or nearly)
silence is what waiting looks like: at least eight users then, or five users and five times. A lognormal E2E
with a sigma of 1 leaves so many silent so long by chance in fewer than one of 100 runs of 500 requests.

Users who ask in step are silent together between their answers too: of the silence, the stall is at most what
its requests took longer than the median E2E, in the median. It withheld that times the rate of sends outside
of stalls. The corrected percentiles put
these requests in, as HdrHistogram's recordValueWithExpectedInterval does: due evenly over the stall, each
waits until its end, and then the median latency. The crowd at its end waits longer: they are a lower bound.

Pure; instants in nanoseconds, results in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmbench.context import RunContext
from llmbench.metrics import NS_PER_S, PLANNED, Requests, Window
from llmbench.stats import sample

Instants = NDArray[np.int64]
Values = NDArray[np.float64]

MIN_ARRIVALS = 20
TOLERANCE_SHARE = 0.05
TOLERANCE_NS = 1e6
COUNT_WINDOW_NS = (1e8, 1e9)

STALL_S = 0.5
# How many users must have waited for how many times the median E2E.
STREAMED = ((2, 3.0), (1, 10.0))
IN_ONE_PIECE = ((8, 3.0), (5, 5.0))
_BIN_NS = 1_000_000  # activity is looked at millisecond by millisecond
_MAX_BINS = 8_000_000
_CHUNK = 1 << 20
_NUM_STALLS_SHOWN = 20


# ---- arrivals


def gap_distance(planned: Values, delivered: Values, tolerance: float) -> float:
    """Largest difference of the distribution functions that moving values by `tolerance` does not explain.

    0 to 1; `planned` [n] and `delivered` [m] in the same unit, in any order.
    """
    points = np.unique(np.concatenate([planned - tolerance, planned + tolerance, delivered]))
    planned, delivered = np.sort(planned), np.sort(delivered)
    at_most = np.searchsorted(delivered, points, side="right") / len(delivered)
    highest = np.searchsorted(planned, points + tolerance * (1 + 1e-9), side="right") / len(planned)
    lowest = np.searchsorted(planned, points - tolerance * (1 + 1e-9), side="right") / len(planned)
    return float(max(0.0, (at_most - highest).max(), (lowest - at_most).max()))


def dispersion(instants: Instants, start: int, end: int, width: float) -> float | None:
    """Variance over mean of the counts in windows of `width` from start to end; None with fewer than two."""
    num = int((end - start) // width)
    if num < 2:
        return None
    numbers = np.clip((instants - start) // width, 0, num).astype(np.int64)
    counts = np.bincount(numbers, minlength=num + 1)[:num]
    mean = float(counts.mean())
    return float(counts.var(ddof=1)) / mean if mean else None


def arrivals(requests: Requests, context: RunContext) -> dict[str, Any] | None:
    """`arrivals` of summary.json; None in a closed loop, and where too little was sent to say."""
    due, sent = (requests.columns.integers[name] for name in ("due_ns", "sent_ns"))
    rows = requests.measured & due.is_set & sent.is_set
    if not context.open_loop or int(rows.sum()) < MIN_ARRIVALS:
        return None
    planned, lag = due.values[rows], sent.values[rows] - due.values[rows]
    shifted = planned + (lag - int(np.median(lag)))
    planned_sorted, delivered = np.sort(planned), np.sort(shifted)
    start, end = int(planned_sorted[0]), int(planned_sorted[-1])
    mean_gap = (end - start) / (len(planned) - 1)
    tolerance = max(TOLERANCE_SHARE * mean_gap, TOLERANCE_NS)
    width = float(np.clip(10 * mean_gap, *COUNT_WINDOW_NS))
    moved = np.abs(shifted - planned) > tolerance
    # Edges of the windows lie between the arrivals of a constant rate, where no lag carries one across.
    start -= int(mean_gap / 2)
    gaps = [np.diff(instants).astype(np.float64) for instants in (planned_sorted, delivered)]
    return {
        "count": len(planned),
        "mean_gap_s": mean_gap / NS_PER_S,
        "tolerance_s": tolerance / NS_PER_S,
        "ks": gap_distance(gaps[0], gaps[1], tolerance),
        "count_window_s": width / NS_PER_S,
        "dispersion_planned": dispersion(planned_sorted, start, end, width),
        "dispersion_sent": dispersion(delivered, start, end, width),
        "moved_share": float(moved.mean()),
    }


# ---- stalls


@dataclass(frozen=True, slots=True)
class Stall:
    """A silence: from, to (ns), how many users had asked before it and were answered after it, and how much
    longer than usual they waited, at most its length.
    """

    start_ns: int
    end_ns: int
    waiting: int
    excess_s: float

    @property
    def duration_s(self) -> float:
        """Its length."""
        return (self.end_ns - self.start_ns) / NS_PER_S


def silences(pieces: list[Instants], start_ns: int, end_ns: int, least_ns: float) -> list[tuple[int, int]]:
    """Times of at least `least_ns` within [start, end] that hold none of the instants; to a millisecond.

    What borders on no instant, at either end, is no silence of which anything is known, and left out.
    """
    if end_ns <= start_ns:
        return []
    width = max(_BIN_NS, -(-(end_ns - start_ns) // _MAX_BINS))
    busy = np.zeros((end_ns - start_ns) // width + 1, dtype=np.bool_)
    for piece in pieces:
        for first in range(0, len(piece), _CHUNK):
            part = piece[first : first + _CHUNK]
            inside = part[(part >= start_ns) & (part <= end_ns)]
            busy[(inside - start_ns) // width] = True
    bins = np.flatnonzero(busy)
    gaps = np.diff(bins)
    long = np.flatnonzero((gaps - 1) * width >= least_ns)
    return [
        (start_ns + (int(bins[at]) + 1) * width, start_ns + int(bins[at + 1]) * width) for at in long.tolist()
    ]


def stalls(requests: Requests, window: Window) -> list[Stall]:
    """The stalls of a closed loop within its measured time, in order."""
    columns = requests.columns
    sent, end = columns.integers["sent_ns"], columns.integers["end_ns"]
    e2e = requests.measures["e2e"].of(requests.succeeded) / NS_PER_S
    sends = sent.values[sent.is_set & requests.measured]
    if not len(e2e) or not len(sends):
        return []
    usual, ttft = float(np.median(e2e)), requests.measures["ttft"].of(requests.succeeded) / NS_PER_S
    streamed = 2 * len(ttft) >= len(e2e) and float(np.median(ttft)) <= usual / 2
    limits = STREAMED if streamed else IN_ONE_PIECE
    until = window.end_ns if window.kind == PLANNED else int(sends.max())
    pieces = [sent.values[sent.is_set], end.values[end.is_set], columns.event_ns]
    # What comes after the end of the sends only says when the last silence ended.
    last = max(until, int(end.values[end.is_set].max(initial=until)))
    found = []
    for first, after in silences(
        pieces, int(sends.min()), last, max(STALL_S, limits[0][1] * usual) * NS_PER_S
    ):
        waited = sent.is_set & (sent.values <= first) & (~end.is_set | (end.values >= after))
        longest_s = (min(after, until) - first) / NS_PER_S
        ends = np.where(end.is_set, end.values, after)[waited]
        took_s = float(np.median(ends - sent.values[waited])) / NS_PER_S if len(ends) else 0.0
        excess_s = min(longest_s, max(0.0, took_s - usual))
        stall = Stall(first, min(after, until), len(ends), excess_s)
        factor = next((times for users, times in limits if stall.waiting >= users), math.inf)
        if stall.duration_s >= max(STALL_S, factor * usual):
            found.append(stall)
    return found


def closed_loop(requests: Requests, window: Window, context: RunContext) -> dict[str, Any] | None:
    """`closed_loop` of summary.json: what stalls withheld; None in an open loop, which withholds nothing."""
    if context.open_loop:
        return None
    found = stalls(requests, window)
    sent = requests.columns.integers["sent_ns"]
    sends = sent.values[sent.is_set & requests.measured]
    excess_s = math.fsum(stall.excess_s for stall in found)
    until = window.end_ns if window.kind == PLANNED else int(sends.max(initial=0))
    sending_s = (until - int(sends.min())) / NS_PER_S - excess_s if len(sends) else 0.0
    rate = len(sends) / sending_s if sending_s > 0 else None
    facts: dict[str, Any] = {
        "stalls": [
            {
                "start_s": stall.start_ns / NS_PER_S,
                "duration_s": stall.duration_s,
                "waiting": stall.waiting,
            }
            for stall in sorted(found, key=lambda stall: -stall.duration_s)[:_NUM_STALLS_SHOWN]
        ],
        "stalled_s": math.fsum(stall.duration_s for stall in found),
        "rate_per_s": rate,
        "withheld_requests": round(rate * excess_s) if rate is not None else 0,
    }
    for name in ("ttft", "e2e"):
        values = requests.measures[name].of(requests.succeeded) / NS_PER_S
        facts[f"{name}_p99_corrected_s"] = corrected_p99(values, found, rate)
    return facts


def corrected_p99(values_s: Values, found: list[Stall], rate: float | None) -> float | None:
    """p99 with the withheld requests in; None where nothing was withheld or nothing measured."""
    if not found or not rate or not len(values_s):
        return None
    usual = float(np.median(values_s))
    waits = [stall.excess_s - np.arange(1, round(rate * stall.excess_s) + 1) / rate for stall in found]
    withheld = np.maximum(np.concatenate(waits), 0) + usual
    return sample(np.concatenate([values_s, withheld])).percentile(99)
