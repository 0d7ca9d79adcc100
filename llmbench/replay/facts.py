"""What a run was like, beyond its records, and what its workers' figures say together. Data only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from llmbench.context import LostWorker
from llmbench.load.workers import Workers

PER_WORKER: Final = ("cpu_share", "loop_lag_p99_s")


@dataclass(slots=True, kw_only=True)
class SessionFacts:
    """What a run was like, beyond its records. `samples` are timeline rows of the client itself; `own` what
    each worker says of itself, by its number.
    """

    interrupted: bool = False
    num_sent: int = 0
    disk_error: OSError | None = None
    engine_died: bool = False
    own: dict[int, dict[str, Any]] = field(default_factory=dict)
    lost: list[LostWorker] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)

    def instrument(self, workers: Workers) -> dict[str, Any]:
        """The `instrument` of summary.json, as far as the run itself knows it."""
        per_worker = [
            {"worker": worker, **{name: self.own.get(worker, {}).get(name) for name in PER_WORKER}}
            for worker in range(workers.count)
        ]
        return {**worst_of(list(self.own.values())), **workers.facts(), "per_worker": per_worker}


def worst_of(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One value for each name: what all say, else the largest number, since a run is as good as its busiest
    and latest worker; None where they say different words.
    """
    names = dict.fromkeys(name for one in figures for name in one)
    return {name: _worst([one[name] for one in figures if one.get(name) is not None]) for name in names}


def _worst(values: Sequence[Any]) -> Any:
    if not values or all(value == values[0] for value in values):
        return values[0] if values else None
    is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return max(values) if is_number else None
