"""The plan of a run: when each request is due, or how many users a closed loop has at any time.

A plan is made before the first request and never changes. It knows nothing of the server, the clock or the
prompts. Instants are integer nanoseconds from the start of the run. Warm-up comes first: 60 s after 10 s of
warm-up end at 70 s. Stages begin when the warm-up ends; until then their first level holds. A number of
requests counts the measured ones; the warm-up's come on top.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from llmbench.errors import UsageError
from llmbench.load.arrivals import (
    MAX_RUN_S,
    NS_PER_S,
    ConcurrencySteps,
    Instants,
    RateProfile,
    Segment,
    burst_due,
    concurrency_steps,
    random_due,
    trace_due,
)
from llmbench.load.describe import headline, open_notes, warmup_notes
from llmbench.load.levels import StageSpan, levels, profile, spans
from llmbench.scenario.model import Load, Scenario, TimeDistribution
from llmbench.workload.lengths import ThinkTimes
from llmbench.workload.seeds import stream
from llmbench.workload.traces.trace import Trace

Phase = Literal["warmup", "measure"]

# 160 MB of due instants; more is a typing mistake in a rate or a duration.
MAX_PLANNED = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """When requests are sent. Open loop: `due_ns` is set. Closed loop: `concurrency` is set.

    `num_requests` counts measured requests: planned in an open loop, the limit in a closed loop (None: no
    limit). `num_warmup` is known in an open loop only. `duration_ns` is the measured time after `warmup_ns`;
    None when the requests end the run. In a closed loop with both, whichever ends first. `notes` say what
    was left out or cannot be as asked. A share (see `share`) is the part of `worker` out of `workers`.
    """

    arrivals: str
    seed: int
    warmup_ns: int
    duration_ns: int | None
    num_requests: int | None
    num_warmup: int | None = None
    due_ns: Instants | None = None
    rates: RateProfile | None = None
    concurrency: ConcurrencySteps | None = None
    think_times: ThinkTimes | None = None
    stages: tuple[StageSpan, ...] = ()
    schedule_hash: str
    headline: str
    notes: tuple[str, ...] = ()
    worker: int = 0
    workers: int = 1
    whole_window_ns: tuple[int, int | None] | None = None  # of a share: the window of the whole plan

    def share(self, worker: int, workers: int) -> Plan:
        """What `worker` (from 0) out of `workers` sends: every `workers`-th request of an open loop, its part
        of the users, and of the requests, of a closed one. The schedule does not depend on who sends it.
        """
        if workers == 1:
            return self
        if self.due_ns is not None:
            due = np.ascontiguousarray(self.due_ns[worker::workers])
            num_warmup = int(np.searchsorted(due, self.warmup_ns, side="left"))
            part = replace(self, due_ns=due, num_warmup=num_warmup, num_requests=len(due) - num_warmup)
        else:
            assert self.concurrency is not None
            users = self.concurrency.users // workers + (worker < self.concurrency.users % workers)
            limit = self.num_requests
            part = replace(
                self,
                concurrency=ConcurrencySteps(at_ns=self.concurrency.at_ns, users=users),
                num_requests=None if limit is None else part_of(limit, worker, workers),
            )
        return replace(part, worker=worker, workers=workers, whole_window_ns=self.window_ns)

    @property
    def most_workers(self) -> int:
        """So many workers find something to do, to the end of the run."""
        if self.due_ns is not None:
            return len(self.due_ns)
        assert self.concurrency is not None
        users = self.concurrency.users
        # a worker whose users have all left would wait for ever to send the rest of its requests
        most = int(users[-1] if self.duration_ns is None else users.max())
        return max(1, most if self.num_requests is None else min(most, self.num_requests))

    def index_of(self, nth: int) -> int:
        """The index, in the whole plan, of the nth request (from 0) of this share."""
        return self.worker + nth * self.workers

    @property
    def is_open(self) -> bool:
        """Whether requests are due at fixed instants, whatever the server does."""
        return self.due_ns is not None

    @property
    def is_level(self) -> bool:
        """Whether the load is meant to be the same throughout: one rate or number of users, and no trace."""
        levels = {level for span in self.stages for level in (span.start_level, span.end_level)}
        return self.arrivals != "trace" and len(levels) <= 1

    @property
    def end_ns(self) -> int | None:
        """When nothing more is sent: the end of the measured time; None when only the requests end the
        run.
        """
        return None if self.duration_ns is None else self.warmup_ns + self.duration_ns

    @property
    def window_ns(self) -> tuple[int, int | None]:
        """The measured time: from the end of the warm-up to the planned end. Where the requests end the run:
        from the first measured one to the last (None in a closed loop), which begins at its end. A share has
        the window of the whole.
        """
        if self.whole_window_ns is not None:
            return self.whole_window_ns
        if self.end_ns is not None or self.due_ns is None:
            return self.warmup_ns, self.end_ns
        return int(self.due_ns[self.num_warmup or 0]), int(self.due_ns[-1])

    def num_due(self, from_ns: int, until_ns: int) -> int:
        """Requests due in [from, until); 0 in a closed loop."""
        if self.due_ns is None:
            return 0
        first, last = np.searchsorted(self.due_ns, (from_ns, until_ns), side="left")
        return max(0, int(last - first))

    @property
    def last_planned_ns(self) -> int | None:
        """The run's end as far as it is known beforehand: `end_ns`, else the last due instant."""
        if self.end_ns is not None or self.due_ns is None or len(self.due_ns) == 0:
            return self.end_ns
        return int(self.due_ns[-1])

    @property
    def expected_total(self) -> int | None:
        """Requests of the whole run, warm-up included; None where only the server's speed will tell."""
        if self.due_ns is not None:
            return len(self.due_ns)
        return self.num_requests if self.duration_ns is None and self.warmup_ns == 0 else None

    def phase_of(self, index: int, at_ns: int) -> Phase:
        """The phase of request `index`, due (open loop) or sent (closed loop) at `at_ns`; the instant
        decides.
        """
        return "warmup" if at_ns < self.warmup_ns else "measure"

    def stage_of(self, at_ns: int) -> int | None:
        """The stage (from 0) that `at_ns` lies in; None in the warm-up, after the end and without stages."""
        for number, span in enumerate(self.stages):
            if span.start_ns <= at_ns < span.end_ns:
                return number
        return None

    def rate_at(self, at_ns: int) -> float | None:
        """Requests per second asked for at `at_ns`; None for closed loops, traces and bursts."""
        return None if self.rates is None else self.rates.rate_at(at_ns / NS_PER_S)

    def concurrency_at(self, at_ns: int) -> int:
        """Users of the closed loop at `at_ns`; 0 in an open loop."""
        return 0 if self.concurrency is None else self.concurrency.at(at_ns)

    def next_concurrency_step_ns(self, after_ns: int) -> int | None:
        """When the number of users changes next, strictly after `after_ns`; None when it stays."""
        if self.concurrency is None:
            return None
        later = self.concurrency.at_ns[self.concurrency.at_ns > after_ns]
        return int(later[0]) if len(later) else None

    def think_time_ns(self, index: int) -> int:
        """How long a closed loop's user waits between an answer and sending request `index`."""
        return 0 if self.think_times is None else round(self.think_times.at_s(index) * NS_PER_S)

    def admits(self, num_measured: int, at_ns: int) -> bool:
        """Whether a closed loop may start another request at `at_ns`, after `num_measured` measured ones."""
        if self.end_ns is not None and at_ns >= self.end_ns:
            return False
        return self.num_requests is None or num_measured < self.num_requests

    def describe(self) -> str:
        """The load in a line for people, and below it a line for everything that is not as one would
        expect.
        """
        return "\n".join((self.headline, *self.notes))


def part_of(count: int, worker: int, workers: int) -> int:
    """The part of `worker` in what is split evenly; the first ones take what is left over."""
    return count // workers + (worker < count % workers)


def make_plan(scenario: Scenario, trace: Trace | None = None) -> Plan:
    """The plan of `scenario`. `trace` is the loaded trace, needed for `arrivals: trace`.

    Raises UsageError for a load that cannot be planned: endless, without an end, or too large to hold.
    """
    load = scenario.load
    if load.until is not None:
        raise UsageError("load.until: not in this version; write duration: 60s or requests: 500")
    stages_s = sum(stage.for_s for stage in load.stages)
    measured_s = load.duration_s if load.duration_s is not None else stages_s or None
    if load.warmup_s + (measured_s or 0.0) > MAX_RUN_S:
        raise UsageError(f"load.duration: longer than {MAX_RUN_S / 86_400:.0f} days; write a shorter one")
    if load.arrivals != "trace" and measured_s is None and load.requests is None:
        raise UsageError("load: nothing ends the run; write duration: 60s or requests: 500")
    if load.arrivals == "closed":
        return _closed_plan(scenario, measured_s)
    return _open_plan(scenario, measured_s, trace)


def _closed_plan(scenario: Scenario, measured_s: float | None) -> Plan:
    load = scenario.load
    segments = levels(load, measured_s)
    warmup = [Segment(duration_s=load.warmup_s, start=segments[0].start, end=segments[0].start)]
    steps = concurrency_steps([*(warmup if load.warmup_s > 0 else []), *segments])
    if int(steps.users.max()) > MAX_PLANNED:
        raise UsageError(f"load.concurrency: more than {MAX_PLANNED:,} users; write fewer")
    if measured_s is None and steps.users[-1] == 0:
        raise UsageError(f"load.stages: end with 0 users, so {load.requests} requests never come")
    duration_ns = None if measured_s is None else round(measured_s * NS_PER_S)
    think = load.think_time
    return Plan(
        arrivals="closed",
        seed=scenario.seed,
        warmup_ns=round(load.warmup_s * NS_PER_S),
        duration_ns=duration_ns,
        num_requests=load.requests,
        concurrency=steps,
        think_times=None if think is None else ThinkTimes(think, seed=scenario.seed),
        stages=spans(load, segments),
        schedule_hash=_closed_hash(scenario, steps, duration_ns, think),
        headline=headline(load, seed=scenario.seed, num_requests=load.requests, trace_path=None),
        notes=warmup_notes(load, segments),
    )


def _open_plan(scenario: Scenario, measured_s: float | None, trace: Trace | None) -> Plan:
    load = scenario.load
    warmup_ns = round(load.warmup_s * NS_PER_S)
    duration_ns = None if measured_s is None else round(measured_s * NS_PER_S)
    end_ns = None if duration_ns is None else warmup_ns + duration_ns
    rates = profile(load, measured_s) if load.arrivals in ("constant", "poisson", "gamma") else None
    due = _due(scenario, rates, trace, warmup_ns=warmup_ns, end_ns=end_ns)
    num_warmup = int(np.searchsorted(due, warmup_ns, side="left"))
    num_measured = len(due) - num_warmup
    if num_measured == 0:
        raise UsageError("load: not one request is due in the measured time; lengthen it or raise the rate")
    if load.requests is not None and num_measured == load.requests:
        duration_ns = None  # the requests end the run first
    return Plan(
        arrivals=load.arrivals,
        seed=scenario.seed,
        warmup_ns=warmup_ns,
        duration_ns=duration_ns,
        num_requests=num_measured,
        num_warmup=num_warmup,
        due_ns=due,
        rates=rates,
        stages=() if rates is None else spans(load, levels(load, measured_s)),
        schedule_hash=_open_hash(due, warmup_ns, duration_ns),
        headline=headline(
            load,
            seed=scenario.seed,
            num_requests=num_measured,
            trace_path=None if trace is None else trace.path,
        ),
        notes=open_notes(load, trace, due=due, num_warmup=num_warmup, measured_s=measured_s),
    )


def _due(
    scenario: Scenario, rates: RateProfile | None, trace: Trace | None, *, warmup_ns: int, end_ns: int | None
) -> Instants:
    load = scenario.load
    num_measured = load.requests
    _check_size(load, rates, warmup_ns=warmup_ns, end_ns=end_ns)
    if load.arrivals == "trace":
        if trace is None:
            raise UsageError("load.arrivals: trace needs a workload with times; write kind: azure")
        return trace_due(
            trace.offset_ns, load.speed, warmup_ns=warmup_ns, end_ns=end_ns, num_measured=num_measured
        )
    if load.arrivals == "burst":
        size = load.burst.size if load.burst is not None else (num_measured or 1)
        every_s = load.burst.every_s if load.burst is not None else None
        return burst_due(size, every_s, warmup_ns=warmup_ns, end_ns=end_ns, num_measured=num_measured)
    assert rates is not None
    assert load.arrivals != "closed"
    try:
        return random_due(
            load.arrivals,
            rates,
            rng=stream(scenario.seed, "arrivals"),
            shape=load.burstiness if load.arrivals == "gamma" else 1.0,
            warmup_ns=warmup_ns,
            end_ns=end_ns,
            num_measured=num_measured,
        )
    except ValueError as error:
        raise UsageError(f"load.rate: {error}") from None


def _check_size(load: Load, rates: RateProfile | None, *, warmup_ns: int, end_ns: int | None) -> None:
    """Refuse a schedule that would not fit, before a number of it is drawn."""
    expected = np.inf if end_ns is None else _expected_until(load, rates, end_ns)
    if load.requests is not None:
        expected = min(expected, _expected_until(load, rates, warmup_ns) + load.requests)
    if MAX_PLANNED < expected < np.inf:
        raise UsageError(
            f"load: about {expected:,.0f} requests to plan; at most {MAX_PLANNED:,}. Lower rate or duration"
        )


def _expected_until(load: Load, rates: RateProfile | None, until_ns: int) -> float:
    if rates is not None:
        return rates.expected_until(until_ns / NS_PER_S)
    return 0.0 if load.burst is None else until_ns / NS_PER_S / load.burst.every_s * load.burst.size


def _open_hash(due: Instants, warmup_ns: int, duration_ns: int | None) -> str:
    """SHA-256 (hex) of the due instants, little-endian, and the window."""
    digest = hashlib.sha256(json.dumps({"warmup_ns": warmup_ns, "duration_ns": duration_ns}).encode())
    digest.update(due.astype("<i8").tobytes())
    return digest.hexdigest()


def _closed_hash(
    scenario: Scenario, steps: ConcurrencySteps, duration_ns: int | None, think: TimeDistribution | None
) -> str:
    """SHA-256 (hex) of everything that decides a closed loop's pace, the server apart."""
    parameters = {
        "at_ns": steps.at_ns.tolist(),
        "users": steps.users.tolist(),
        "warmup_ns": round(scenario.load.warmup_s * NS_PER_S),
        "duration_ns": duration_ns,
        "requests": scenario.load.requests,
        "think_time": None if think is None else think.model_dump(mode="json", exclude_none=True),
        "seed": None if think is None else scenario.seed,
    }
    return hashlib.sha256(json.dumps(parameters, sort_keys=True).encode()).hexdigest()
