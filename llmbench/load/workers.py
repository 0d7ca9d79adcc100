"""How many processes a load takes: what it will ask of the client, against what one process carries.

A process more costs its start (some tenths of a second) and a core that a server on this machine may need:
one is taken as long as it is enough. An estimate, made before the first answer: what a server will really
stream is known only afterwards, and a worker that is too busy says so in the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from llmbench.load.plan import Plan

# What one process carries without falling behind, on a slow core (tests/benchmarks/workers.py): about half of
# what it can take in at all.
EVENTS_A_WORKER: Final = 25_000  # a second
REQUESTS_A_WORKER: Final = 5_000  # a second
# A stream of today's servers: 100 tokens a second is fast, and each comes as an event.
EVENTS_A_STREAM: Final = 100  # a second
UNKNOWN_OUTPUT_TOKENS: Final = 256
_NUM_THINK_TIMES = 256
_NS_PER_S = 1_000_000_000
_FEW_CORES = 4  # below it the parent, who needs a few percent of a core, gets none of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a load asks of the client at its peak, per second. `most_workers` find something to do."""

    requests_per_s: float
    events_per_s: float
    most_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """How many processes send, why, and how many this machine and this load would have room for."""

    count: int = 1
    reason: str = "one process carries this load"
    at_most: int = 1

    def facts(self) -> dict[str, int | str]:
        """As they stand under `instrument` in summary.json."""
        return {"workers": self.count, "workers_reason": self.reason, "workers_at_most": self.at_most}


def demand_of(
    plan: Plan, output_tokens: Sequence[int | None], *, max_in_flight: int, is_streamed: bool
) -> Demand:
    """The demand of a plan whose requests ask for outputs like these (a sample of them; None: no limit)."""
    known = [UNKNOWN_OUTPUT_TOKENS if tokens is None else tokens for tokens in output_tokens]
    tokens = max(1.0, float(np.mean(known))) if known else float(UNKNOWN_OUTPUT_TOKENS)
    events = tokens if is_streamed else 1.0
    most_workers = plan.most_workers
    if plan.due_ns is not None:
        most_workers = min(most_workers, max_in_flight)
        requests_per_s = float(np.bincount(plan.due_ns // _NS_PER_S).max())
        most_open = min(max_in_flight, len(plan.due_ns))
        events_per_s = min(requests_per_s * events, most_open * float(EVENTS_A_STREAM))
    else:
        assert plan.concurrency is not None
        think = plan.think_times
        think_s = 0.0 if think is None else float(think.first_s(_NUM_THINK_TIMES).mean())
        answer_s = tokens / EVENTS_A_STREAM
        requests_per_s = int(plan.concurrency.users.max()) / (answer_s + think_s)
        events_per_s = requests_per_s * events
    return Demand(requests_per_s=requests_per_s, events_per_s=events_per_s, most_workers=most_workers)


def choose_workers(asked: int | str, demand: Demand, *, cores: int, is_local: bool) -> Workers:
    """The workers of a run. `asked` is a number or "auto"; `cores` are those this process may use, of which a
    server on this machine (`is_local`) needs half.
    """
    free = cores - cores // 2 if is_local else cores
    free = max(1, free - 1 if free >= _FEW_CORES else free)
    at_most = min(free, demand.most_workers)
    if not isinstance(asked, str):
        count = min(asked, demand.most_workers)
        reason = "as asked" if count == asked else f"{asked} asked, {count} find something to do"
        return Workers(count=count, reason=reason, at_most=at_most)
    by_events = demand.events_per_s / EVENTS_A_WORKER
    by_requests = demand.requests_per_s / REQUESTS_A_WORKER
    needed = max(1, int(np.ceil(max(by_events, by_requests))))
    if needed == 1:
        return Workers(at_most=at_most)
    what = (
        f"about {demand.events_per_s:,.0f} events/s"
        if by_events >= by_requests
        else f"about {demand.requests_per_s:,.0f} requests/s"
    )
    limit = "" if needed <= at_most else f", and there is room for {at_most}"
    return Workers(count=min(needed, at_most), reason=f"{what} expected{limit}", at_most=at_most)
