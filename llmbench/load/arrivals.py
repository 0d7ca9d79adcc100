"""Arrival processes as arithmetic: a rate over time and a seed in, due instants out.

A process with a changing rate is a unit-rate process read through another clock. With Λ(t) the number of
arrivals expected until t, unit-rate arrivals u₁ < u₂ < … fall due at Λ⁻¹(uᵢ) (time-rescaling theorem; Brown
et al., Neural Computation 14, 2002). Rates are piecewise linear, so Λ is piecewise quadratic and its inverse
has a closed form. The same few lines serve constant, Poisson and gamma arrivals, stages and ramps.

Due instants are absolute: int64 nanoseconds from the start of the run, each rounded once on its own, so that
no rounding adds up. Random gaps are never rescaled to a tidy total.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Instants: TypeAlias = npt.NDArray[np.int64]
Reals: TypeAlias = npt.NDArray[np.float64]
RandomProcess = Literal["constant", "poisson", "gamma"]

NS_PER_S = 1_000_000_000
_TOGETHER_NS, _RECENT_NS = 10_000_000, 3_500_000_000
_FEW = 4
# Float64 holds integers below 2**53 exactly: 104 days in nanoseconds. Beyond that rounding would show.
MAX_RUN_S = 9_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of time over which a level (a rate per second, or a number of users) changes linearly."""

    duration_s: float
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RateProfile:
    """A piecewise linear rate from the start of the run; the last rate holds after the last segment.

    `edges_s` has one entry more than there are segments; `rate_start`, `rate_end` (per second) and `slope`
    (per second²) have one a segment, the open-ended last one included; `expected` is Λ at each segment's
    start.
    """

    edges_s: Reals
    rate_start: Reals
    rate_end: Reals
    slope: Reals
    expected: Reals

    @staticmethod
    def of(segments: Sequence[Segment]) -> RateProfile:
        """Join `segments`, neighbours of one and the same rate as one. Rates must be finite and not
        negative.
        """
        merged = _merge(segments)
        for segment in merged:
            if not (0 <= segment.start < np.inf and 0 <= segment.end < np.inf):
                raise ValueError(f"a rate must be finite and not negative, not {segment}")
        durations = np.array([segment.duration_s for segment in merged])
        start = np.array([segment.start for segment in merged])
        end = np.array([segment.end for segment in merged])
        area = durations * (start + end) / 2
        return RateProfile(
            edges_s=np.concatenate(([0.0], np.cumsum(durations))),
            rate_start=np.append(start, end[-1]),
            rate_end=np.append(end, end[-1]),
            slope=np.append((end - start) / durations, 0.0),
            expected=np.concatenate(([0.0], np.cumsum(area))),
        )

    def rate_at(self, time_s: float) -> float:
        """The rate per second at `time_s`; at an edge, that of the later segment."""
        index = int(np.searchsorted(self.edges_s, time_s, side="right")) - 1
        return float(self.rate_start[index] + self.slope[index] * (time_s - self.edges_s[index]))

    def expected_until(self, time_s: float) -> float:
        """Λ(time_s): arrivals expected from the start of the run until `time_s`."""
        index = int(np.searchsorted(self.edges_s, time_s, side="right")) - 1
        elapsed = time_s - self.edges_s[index]
        return float(
            self.expected[index] + elapsed * (self.rate_start[index] + self.slope[index] * elapsed / 2)
        )

    def due_ns(self, units: Reals) -> Instants:
        """Λ⁻¹ of ascending unit-rate arrivals, in nanoseconds; those that never come are left out."""
        index = np.searchsorted(self.expected, units, side="right") - 1
        if self.rate_end[-1] == 0:  # nothing comes after the last segment that has a rate
            units = units[: int(np.searchsorted(units, self.expected[-1], side="left"))]
            index = index[: len(units)]
        missing = units - self.expected[index]
        start, slope = self.rate_start[index], self.slope[index]
        # Root of slope/2·t² + start·t = missing in the form that does not cancel; t = missing/start if level.
        root = np.sqrt(np.maximum(start * start + 2 * slope * missing, 0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            ramp_ns = 2 * missing * NS_PER_S / (start + root)
            level_ns = missing * NS_PER_S / start
        elapsed_ns = np.where(missing == 0, 0.0, np.where(slope == 0, level_ns, ramp_ns))
        return np.rint(self.edges_s[index] * NS_PER_S + elapsed_ns).astype(np.int64)


def _merge(segments: Sequence[Segment]) -> list[Segment]:
    merged: list[Segment] = []
    for segment in segments:
        if segment.duration_s <= 0:
            continue
        last = merged[-1] if merged else None
        if last is not None and last.start == last.end == segment.start == segment.end:
            merged[-1] = Segment(
                duration_s=last.duration_s + segment.duration_s, start=last.start, end=last.end
            )
        else:
            merged.append(segment)
    if not merged:
        raise ValueError("a profile needs a segment with a duration above zero")
    return merged


def random_due(
    process: RandomProcess,
    profile: RateProfile,
    *,
    rng: np.random.Generator,
    shape: float = 1.0,
    warmup_ns: int = 0,
    end_ns: int | None = None,
    num_measured: int | None = None,
) -> Instants:
    """Due instants before `end_ns`, and no more than `num_measured` of them at or after `warmup_ns`.

    Unit-rate arrivals behind it: constant 0, 1, 2, …; poisson with exponential gaps; gamma with gaps of mean
    1 and shape `shape` (1 is Poisson, below 1 is burstier; coefficient of variation 1/√shape). However many
    are drawn, the first n are the same. At least one of the two limits must be given. Raises ValueError when
    `num_measured` arrivals never come because the rate stays at zero.
    """
    if end_ns is None and num_measured is None:
        raise ValueError("an open loop needs an end: end_ns or num_measured")
    if num_measured is not None and end_ns is None and profile.rate_end[-1] == 0:
        raise ValueError(f"the rate ends at 0/s, so {num_measured} requests never come")
    wanted = profile.expected_until(end_ns / NS_PER_S) if end_ns is not None else np.inf
    if num_measured is not None:
        wanted = min(wanted, profile.expected_until(warmup_ns / NS_PER_S) + num_measured)
    # Six standard deviations of the count more than expected: a second draw is rare.
    spread = 0.0 if process == "constant" else 6.0 * np.sqrt(wanted / min(shape, 1.0))
    num_more = int(wanted + min(spread, wanted)) + 2
    gaps = np.empty(0)
    while True:
        gaps = np.concatenate((gaps, _unit_gaps(process, num_more, rng, shape)))
        units = np.cumsum(gaps) - 1 if process == "constant" else np.cumsum(gaps)
        due = profile.due_ns(units)
        is_past_end = len(due) < len(units) or (end_ns is not None and due[-1] >= end_ns)
        if is_past_end or (num_measured is not None and _count_from(due, warmup_ns) >= num_measured):
            return limit(due, warmup_ns=warmup_ns, end_ns=end_ns, num_measured=num_measured)
        num_more = len(gaps) // 8 + 64
        if len(gaps) > 64 * wanted + 10_000:
            raise ValueError(f"gaps of shape {shape:g} (burstiness) are nearly all 0; write 0.01 or more")


def _unit_gaps(process: RandomProcess, count: int, rng: np.random.Generator, shape: float) -> Reals:
    if process == "constant":
        return np.ones(count)
    if process == "poisson":
        return rng.standard_exponential(count)
    return rng.standard_gamma(shape, count) / shape


def burst_due(
    size: int,
    every_s: float | None,
    *,
    warmup_ns: int = 0,
    end_ns: int | None = None,
    num_measured: int | None = None,
) -> Instants:
    """`size` requests at once every `every_s` seconds, from the start of the run.

    Without `every_s` there is one burst: at the end of the warm-up, in which nothing is sent.
    """
    if every_s is None:
        count = size if num_measured is None else min(size, num_measured)
        return np.full(count, warmup_ns, dtype=np.int64)
    if end_ns is not None:
        num_bursts = int(np.ceil(end_ns / (every_s * NS_PER_S)))
    elif num_measured is not None:
        num_bursts = int(np.ceil(warmup_ns / (every_s * NS_PER_S))) + -(-num_measured // size)
    else:
        raise ValueError("bursts need an end: end_ns or num_measured")
    instants = np.rint(np.arange(num_bursts + 1) * (every_s * NS_PER_S)).astype(np.int64)
    return limit(np.repeat(instants, size), warmup_ns=warmup_ns, end_ns=end_ns, num_measured=num_measured)


def trace_due(
    offset_ns: Instants,
    speed: float,
    *,
    warmup_ns: int = 0,
    end_ns: int | None = None,
    num_measured: int | None = None,
) -> Instants:
    """The instants of a trace, replayed `speed` times as fast (0.5 doubles every gap)."""
    due = offset_ns if speed == 1 else np.rint(offset_ns / speed).astype(np.int64)
    return limit(due, warmup_ns=warmup_ns, end_ns=end_ns, num_measured=num_measured)


def limit(due: Instants, *, warmup_ns: int, end_ns: int | None, num_measured: int | None) -> Instants:
    """The ascending instants before `end_ns`, with at most `num_measured` at or after `warmup_ns`."""
    if end_ns is not None:
        due = due[: int(np.searchsorted(due, end_ns, side="left"))]
    if num_measured is not None:
        due = due[: len(due) - max(_count_from(due, warmup_ns) - num_measured, 0)]
    return due


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Requests due (almost) together, many more than shortly before."""

    due_ns: int
    size: int


def bursts(due: Instants) -> list[Burst]:
    """Where ascending instants crowd: more than four within 10 ms, and more by far than random arrivals at
    the rate of the last seconds ever are. Steady arrivals have none, but for their first ones.
    """
    counts = np.searchsorted(due, due + _TOGETHER_NS, side="right") - np.arange(len(due))
    crowded = np.flatnonzero(counts > _FEW)
    if not len(crowded):
        return []
    before = crowded - np.searchsorted(due, due[crowded] - _RECENT_NS)
    elapsed = np.minimum(_RECENT_NS, due[crowded] - due[0] + _TOGETHER_NS)
    usual = before * (_TOGETHER_NS / elapsed)
    found: list[Burst] = []
    for row in crowded[counts[crowded] > _FEW * (1 + usual + np.sqrt(usual))].tolist():
        if not found or due[row] > found[-1].due_ns + _TOGETHER_NS:
            found.append(Burst(due_ns=int(due[row]), size=int(counts[row])))
    return found


def _count_from(due: Instants, from_ns: int) -> int:
    return len(due) - int(np.searchsorted(due, from_ns, side="left"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencySteps:
    """How many users a closed loop has at any time: `users[i]` from `at_ns[i]` until the next step."""

    at_ns: Instants
    users: Instants

    def at(self, time_ns: int) -> int:
        """Users at `time_ns` nanoseconds from the start of the run."""
        return int(self.users[int(np.searchsorted(self.at_ns, time_ns, side="right")) - 1])


def concurrency_steps(segments: Sequence[Segment]) -> ConcurrencySteps:
    """Turn levels and ramps of users into steps: a ramp has each whole number when the line rounds to it."""
    at_ns: list[int] = []
    users: list[int] = []
    start_ns = 0.0
    for segment in segments:
        duration_ns = segment.duration_s * NS_PER_S
        first, last = round(segment.start), round(segment.end)
        direction = 1 if last >= first else -1
        for step, level in enumerate(range(first, last + direction, direction)):
            crossed = 0.0 if step == 0 else level - direction / 2 - segment.start
            share = crossed / (segment.end - segment.start) if crossed else 0.0
            if not users or users[-1] != level:
                at_ns.append(round(start_ns + share * duration_ns))
                users.append(level)
        start_ns += duration_ns
    return ConcurrencySteps(at_ns=np.array(at_ns, dtype=np.int64), users=np.array(users, dtype=np.int64))
