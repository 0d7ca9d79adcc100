"""A load in a few words, as the first lines of a report show it."""

from __future__ import annotations

from pathlib import PurePath

from llmbench.load.arrivals import NS_PER_S, Instants, Segment
from llmbench.load.levels import levels
from llmbench.scenario.model import Load, TimeDistribution
from llmbench.workload.traces.trace import Trace

_PROCESS = {"constant": "constant", "poisson": "Poisson", "gamma": "gamma"}


def headline(load: Load, *, seed: int, num_requests: int | None, trace_path: str | None) -> str:
    """One line: `open loop, Poisson 4/s for 60 s after 10 s of warm-up   247 requests, seed 7`.

    `num_requests` are the measured ones; None leaves them out (a closed loop ended by time).
    """
    loop = "closed loop" if load.arrivals == "closed" else "open loop"
    process = _closed(load) if load.arrivals == "closed" else _open(load, trace_path)
    span = _span(load)
    counted = "" if num_requests is None else f"{num_requests:,} request{'' if num_requests == 1 else 's'}, "
    return f"{loop}, {process}{span}   {counted}seed {seed}"


def _open(load: Load, trace_path: str | None) -> str:
    if load.arrivals == "trace":
        name = PurePath(trace_path).name if trace_path else "trace"
        return f"trace {name}" + (f" at {load.speed:g} times its speed" if load.speed != 1 else "")
    if load.arrivals == "burst":
        if load.burst is None:
            return "all at once"
        return f"bursts of {load.burst.size:,} every {seconds(load.burst.every_s)}"
    low, high = _range(load)
    rates = f"{low:g}/s" if low == high else f"{low:g} to {high:g}/s"
    shape = f" (burstiness {load.burstiness:g})" if load.arrivals == "gamma" else ""
    return f"{_PROCESS[load.arrivals]} {rates}{shape}"


def _closed(load: Load) -> str:
    low, high = map(round, _range(load))
    users = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    think = "" if load.think_time is None else f", {_think(load.think_time)} think time"
    return f"{users} user{'' if low == high == 1 else 's'}{think}"


def _range(load: Load) -> tuple[float, float]:
    """The lowest and the highest level of the load; a ramp begins at what was before it, at first nothing."""
    ends = [level for segment in levels(load, None) for level in (segment.start, segment.end)]
    return min(ends), max(ends)


def _think(times: TimeDistribution) -> str:
    return seconds(times.fixed_s) if times.fixed_s is not None else times.shape


def _span(load: Load) -> str:
    stages_s = sum(stage.for_s for stage in load.stages)
    measured_s = load.duration_s if load.duration_s is not None else stages_s or None
    parts = []
    if load.stages:
        parts.append(f"in {len(load.stages)} stage{'' if len(load.stages) == 1 else 's'}")
    if measured_s is not None:
        parts.append(f"for {seconds(measured_s)}")
    if load.warmup_s > 0:
        parts.append(f"after {seconds(load.warmup_s)} of warm-up")
    return "".join(f" {part}" for part in parts)


def seconds(value_s: float) -> str:
    """`60 s`, `0.5 s`; at most six digits."""
    return f"{value_s:g} s"


def warmup_notes(load: Load, segments: list[Segment]) -> tuple[str, ...]:
    """A warm-up in which nothing can be sent, in words."""
    if load.warmup_s > 0 and segments[0].start == 0:
        key = "concurrency" if load.arrivals == "closed" else "rate"
        return (f"nothing is sent in the warm-up: the first ramp starts at 0 (load.{key} sets it)",)
    return ()


def open_notes(
    load: Load, trace: Trace | None, *, due: Instants, num_warmup: int, measured_s: float | None
) -> tuple[str, ...]:
    """Everything about an open loop that is not as one would expect: what is cut, repeated or never comes."""
    num_measured = len(due) - num_warmup
    notes: list[str] = []
    if trace is not None:
        notes += trace.notes
        if load.arrivals == "trace":
            notes += _replay_notes(load, trace, due=due, num_measured=num_measured, measured_s=measured_s)
        elif len(due) < len(trace):
            notes.append(f"lengths of the first {len(due):,} of {len(trace):,} rows of the trace")
        elif len(due) > len(trace):
            notes.append(f"the trace's {len(trace):,} rows of lengths are used again from the start")
    if load.arrivals == "burst" and load.burst is None and load.warmup_s > 0:
        notes.append("nothing is sent in the warm-up: everything comes at once, at its end")
    elif load.arrivals not in ("burst", "trace"):
        notes += warmup_notes(load, levels(load, measured_s))
    if load.requests is not None and measured_s is not None and num_measured < load.requests:
        notes.append(f"the time ends first: {num_measured:,} of the {load.requests:,} requests asked")
    return tuple(notes)


def _replay_notes(
    load: Load, trace: Trace, *, due: Instants, num_measured: int, measured_s: float | None
) -> list[str]:
    num_rows, last_s = len(trace), float(due[-1]) / NS_PER_S
    if len(due) < num_rows:
        return [f"{len(due):,} of the trace's {num_rows:,} rows are sent; the run ends before the rest"]
    if measured_s is not None and last_s < load.warmup_s + measured_s - 1:
        return [f"the trace ends after {last_s:.1f} s, before the duration does"]
    if load.requests is not None and num_measured < load.requests and measured_s is None:
        return [f"{load.requests:,} requests asked; the trace has {num_measured:,} after the warm-up"]
    return []
