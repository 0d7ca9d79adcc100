"""Order statistics of kept samples: percentiles, their exact intervals, shares, histograms.

Samples in, plain numbers out; knows nothing of requests. Percentiles are exact order statistics with linear
interpolation (Hyndman and Fan's definition 7, numpy's `linear`): nothing is binned or sketched. A value that
counts k times (a gap that k tokens share) is kept once with its weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

PERCENTILE_METHOD = "exact order statistics, linear interpolation (Hyndman-Fan 7)"
CONFIDENCE = 0.95
Z95 = 1.959963984540054  # two-sided 95 % of the normal distribution
# Weights kept as groups of their own; rarer ones are repeated, which costs memory but no further searches.
_MAX_GROUPS = 24
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Sample:
    """Sorted values in groups of equal weight: each value of `groups[i]` counts `weights[i]` times."""

    weights: tuple[int, ...]
    groups: tuple[NDArray[Any], ...]

    @property
    def count(self) -> int:
        """How many values, each counted as often as it weighs."""
        return sum(weight * len(group) for weight, group in zip(self.weights, self.groups, strict=True))

    def at(self, rank: int) -> float:
        """The value at a rank, 0 the smallest. Raises IndexError outside 0 to count - 1."""
        if not 0 <= rank < self.count:
            raise IndexError(rank)
        if len(self.groups) == 1:
            return float(self.groups[0][rank // self.weights[0]])
        # The smallest value with more than `rank` values at or below it. Each group's candidate is found by
        # bisection; the smallest candidate is it.
        candidates = []
        for group in self.groups:
            low, high = 0, len(group)
            while low < high:
                middle = (low + high) // 2
                if self.num_at_most(group[middle]) > rank:
                    high = middle
                else:
                    low = middle + 1
            if low < len(group):
                candidates.append(float(group[low]))
        return min(candidates)

    def num_at_most(self, value: float) -> int:
        """How many values are at or below this one."""
        return sum(
            weight * int(np.searchsorted(group, value, side="right"))
            for weight, group in zip(self.weights, self.groups, strict=True)
        )

    def percentile(self, percent: float) -> float:
        """Interpolated between the two nearest ranks, to the last bit as numpy does it. NaN when empty."""
        count = self.count
        if count == 0:
            return math.nan
        position = (count - 1) * (percent / 100)
        lower = min(math.floor(position), count - 1)
        part = position - lower
        low = self.at(lower)
        if part == 0:
            return low
        high = self.at(min(lower + 1, count - 1))
        if low == high or math.isinf(high):
            return high
        return high - (high - low) * (1 - part) if part >= 0.5 else low + (high - low) * part

    def mean(self) -> float:
        """NaN when empty."""
        if self.count == 0:
            return math.nan
        totals = (
            float(weight * _sum(group)) for weight, group in zip(self.weights, self.groups, strict=True)
        )
        return math.fsum(totals) / self.count

    def std(self) -> float:
        """Standard deviation of the sample (divisor count - 1). NaN below two values."""
        if self.count < 2:
            return math.nan
        mean = self.mean()
        squares = math.fsum(
            weight * _sum_of_squares(group, mean)
            for weight, group in zip(self.weights, self.groups, strict=True)
        )
        return math.sqrt(squares / (self.count - 1))

    def min(self) -> float:
        """NaN when empty."""
        return float(min(group[0] for group in self.groups)) if self.count else math.nan

    def max(self) -> float:
        """NaN when empty."""
        return float(max(group[-1] for group in self.groups)) if self.count else math.nan


def sample(values: NDArray[Any]) -> Sample:
    """A sample of values that count once each."""
    return Sample((1,), (np.sort(values),))


@dataclass(slots=True)
class WeightedValues:
    """Values that come in pieces, each value with a weight; they become one sample."""

    _pieces: dict[int, list[NDArray[Any]]] = field(default_factory=dict)

    def add(self, values: NDArray[Any], weights: NDArray[np.integer[Any]]) -> None:
        """Append values, each counting as often as its weight says (0: not at all)."""
        for weight in np.unique(weights):
            if weight > 0:
                self._pieces.setdefault(int(weight), []).append(values[weights == weight])

    def finish(self) -> Sample:
        """The sample; the pieces are let go of one weight at a time, so that memory holds them once."""
        by_size = sorted(self._pieces, key=lambda weight: -sum(map(len, self._pieces[weight])))
        for weight in by_size[_MAX_GROUPS:]:
            repeated = [np.repeat(piece, weight) for piece in self._pieces.pop(weight)]
            self._pieces.setdefault(1, []).extend(repeated)
        groups: dict[int, NDArray[Any]] = {}
        while self._pieces:
            weight, pieces = self._pieces.popitem()
            groups[weight] = np.concatenate(pieces)
            del pieces
            groups[weight].sort()
        return Sample(tuple(groups), tuple(groups.values())) if groups else sample(np.empty(0))


def weighted_sample(values: NDArray[Any], weights: NDArray[np.integer[Any]]) -> Sample:
    """A sample in which each value counts as often as its weight says."""
    pieces = WeightedValues()
    pieces.add(values, weights)
    return pieces.finish()


def _sum(values: NDArray[Any]) -> float:
    return math.fsum(
        float(values[first : first + _CHUNK].sum(dtype=np.float64)) for first in range(0, len(values), _CHUNK)
    )


def _sum_of_squares(values: NDArray[Any], mean: float) -> float:
    chunks = (values[first : first + _CHUNK] - mean for first in range(0, len(values), _CHUNK))
    return math.fsum(float(np.dot(chunk, chunk)) for chunk in chunks)


def samples_needed(percent: float) -> int:
    """The fewest values that support a percentile as a point estimate: one is expected to lie beyond it.

    p90 needs 10, p95 20, p99 100, p99.9 1,000; p50 and below need one. Below that a "p99" is the maximum
    under another name. An interval needs more (see `percentile_ranks`).
    """
    if percent <= 50:
        return 1
    return 1 if percent >= 100 else math.ceil(round(100 / (100 - percent), 6))


def percentile_ranks(count: int, percent: float, confidence: float = CONFIDENCE) -> tuple[int, int] | None:
    """Ranks (0 the smallest) whose values enclose the true percentile with at least this confidence.

    Exact for independent values of any distribution (Hahn and Meeker, Statistical Intervals, 5.2): the number
    of values below the percentile is binomial. Each tail holds at most half of what is left. None where the
    sample is too small for both ends: p50 needs 6 values, p90 36, p95 72, p99 368, p99.9 3,688 at 95 %.
    """
    share = percent / 100
    if count < 1 or not 0 < share < 1:
        return None
    first, cumulative = _binomial_cdf(count, share)
    tail = (1 - confidence) / 2
    # Lower end: the highest rank l (1 the smallest) with P(B <= l - 1) <= tail.
    lower = first + int(np.searchsorted(cumulative, tail, side="right"))
    # Upper end: the lowest rank u with P(B >= u) = 1 - P(B <= u - 1) <= tail.
    upper = first + int(np.searchsorted(cumulative, 1 - tail, side="left")) + 1
    return (lower - 1, upper - 1) if lower >= 1 and upper <= count else None


def _binomial_cdf(count: int, share: float) -> tuple[int, NDArray[np.float64]]:
    """(k0, P(B <= k) for k = k0, k0 + 1, …), B binomial; what lies outside is below 1e-30.

    Built from the ratios of neighbouring probabilities about the mode, so that no factorial overflows.
    """
    spread = 12 * math.sqrt(count * share * (1 - share)) + 24
    first = max(0, math.floor(count * share - spread))
    last = min(count, math.ceil(count * share + spread))
    k = np.arange(first, last, dtype=np.float64)
    steps = np.log((count - k) / (k + 1)) + math.log(share / (1 - share))
    logs = np.concatenate([np.zeros(1), np.cumsum(steps)])
    weights = np.exp(logs - logs.max())
    return first, np.cumsum(weights) / weights.sum()


def share_interval(hits: int, count: int) -> tuple[float, float] | None:
    """Wilson's score interval of a share (Wilson 1927) at 95 %. None for an empty sample."""
    if count < 1:
        return None
    z = Z95
    share = hits / count
    centre = share + z * z / (2 * count)
    reach = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    # The ends of none and of all are exact; computed they would be off by the last digit.
    low = 0.0 if hits == 0 else (centre - reach) / scale
    return low, 1.0 if hits == count else (centre + reach) / scale


def histogram(values: Sample, *, num_bins: int) -> dict[str, Any] | None:
    """Equal bins from a round edge below the smallest value to one above the largest; None when empty.

    Where a few values lie far out, the last bin holds everything from its lower edge on and `above` says how
    many of them lie beyond the last edge. Edges are in the sample's unit.
    """
    if values.count == 0 or not math.isfinite(values.max()):
        return None
    low, high = values.min(), values.max()
    far = low + 4 * (values.percentile(95) - low)
    lower, width = _round_edges(low, min(high, far) if far > low else high, num_bins)
    # Rounded, because 32 * 0.3 is 9.600000000000001.
    edges = [float(f"{lower + width * number:.12g}") for number in range(num_bins + 1)]
    at_most = [values.num_at_most(edge) for edge in edges]
    above = values.count - at_most[-1]
    # Bins are (low, high]; the first one includes its lower edge, the last one what lies above.
    counts = [at_most[0], *([0] * (num_bins - 1))]
    for number in range(num_bins):
        counts[number] += at_most[number + 1] - at_most[number]
    counts[-1] += above
    return {"low": edges[0], "high": edges[-1], "counts": counts, "above": above}


def _round_edges(low: float, high: float, num_bins: int) -> tuple[float, float]:
    """(lower edge, bin width): round numbers that cover low to high with `num_bins` bins."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    high = max(high, low + 1e-12)  # narrower than a picosecond no picture need be, and no arithmetic holds
    for exponent in range(math.floor(math.log10((high - low) / num_bins)), 400):
        for step in (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0):
            width = step * 10.0**exponent
            lower = math.floor(low / width) * width
            if lower + width * num_bins >= high:
                return lower, width
    raise AssertionError("a finite range has a finite width")


def sparkline(counts: Sequence[int]) -> str:
    """One block character a bin, as high as its count; blank only where nothing lies."""
    top = max(counts, default=0)
    blocks = "▁▂▃▄▅▆▇█"
    return "".join(" " if not count else blocks[min(7, count * 8 // (top + 1))] for count in counts)
