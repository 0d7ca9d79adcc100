"""The load's stages as levels over time: rates per second in an open loop, users in a closed one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmbench.load.arrivals import NS_PER_S, RateProfile, Segment
from llmbench.scenario.model import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpan:
    """A stage on the run's time axis: from `start_ns` up to, not including, `end_ns`.

    `start_level` and `end_level` are rates per second in an open loop and users in a closed one.
    """

    start_ns: int
    end_ns: int
    start_level: float
    end_level: float


def levels(load: Load, measured_s: float | None) -> list[Segment]:
    """Rates, or users in a closed loop, over the measured time. Without an end the last level holds."""
    is_closed = load.arrivals == "closed"
    level = float((load.concurrency if is_closed else load.rate_per_s) or 0)
    if not load.stages:
        return [Segment(duration_s=measured_s or 1.0, start=level, end=level)]
    segments: list[Segment] = []
    for stage in load.stages:
        target = stage.end_concurrency if is_closed else stage.end_rate_per_s
        end = float(target or 0)
        segments.append(Segment(duration_s=stage.for_s, start=level if stage.is_ramp else end, end=end))
        level = end
    return segments


def profile(load: Load, measured_s: float | None) -> RateProfile:
    """The rate over the whole run: the first level through the warm-up, then the stages."""
    segments = levels(load, measured_s)
    first = segments[0].start
    return RateProfile.of([Segment(duration_s=load.warmup_s, start=first, end=first), *segments])


def spans(load: Load, segments: list[Segment]) -> tuple[StageSpan, ...]:
    """Where the stages lie on the run's time axis; nothing for a load without stages."""
    if not load.stages:
        return ()
    edges_s = load.warmup_s + np.concatenate(([0.0], np.cumsum([segment.duration_s for segment in segments])))
    edges_ns = np.rint(edges_s * NS_PER_S).astype(np.int64)
    return tuple(
        StageSpan(
            start_ns=int(edges_ns[number]),
            end_ns=int(edges_ns[number + 1]),
            start_level=segment.start,
            end_level=segment.end,
        )
        for number, segment in enumerate(segments)
    )
