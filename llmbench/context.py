"""What the numbers of a run must be read with: facts about the run that no single request record holds.

Written into run.json when a run starts and again when it ends, so that every report can be rebuilt from the
folder alone. Instants are integer nanoseconds from the start of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, Self


class Limit(Protocol):
    """One line of the scenario's `slo:`. Limits are seconds, shares or rates per second."""

    @property
    def metric(self) -> str: ...
    @property
    def stat(self) -> str: ...
    @property
    def limit(self) -> float: ...
    @property
    def higher_is_better(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedLimit:
    """A limit read back from run.json."""

    metric: str
    stat: str
    limit: float
    higher_is_better: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWindow:
    """One stage of the load: its label and when it began and ended."""

    label: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the user had set and the target took, so that a remedy fits. None where nobody noted it.

    `ignore_eos` says whether requests carry it, `ignore_eos_asked` what was asked: true, false, auto.
    `body_keys` are the keys of target.body, which win over what llmbench sets; `num_choices` is its `n`.
    `tokenizer` and `api_key` say only whether there is one. `cpus` may be used.
    """

    arrivals: str | None = None
    workload_kinds: tuple[str, ...] | None = None
    ignore_eos: bool | None = None
    ignore_eos_asked: bool | str | None = None
    usage: bool | None = None
    body_keys: tuple[str, ...] | None = None
    num_choices: int | None = None
    tokenizer: bool | None = None
    api_key: bool | None = None
    engine: bool | None = None
    timeout_s: float | None = None
    no_progress_timeout_s: float | None = None
    cpus: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` reads them back."""
        plain: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        """What `to_json` wrote; unknown keys are left out, missing ones None."""
        known = {item.name for item in fields(cls)}
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in plain.items()
            if name in known
        }
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostWorker:
    """A worker that died in mid-run: its number, how ("was killed by SIGKILL"), and how many requests of its
    share are known to have had their turn.
    """

    worker: int
    how: str
    started: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The run that a set of records belongs to.

    `level_load` says that the plan has one rate, or number of users, throughout: no stages, no trace.
    `planned` counts every planned request, warm-up included; None where a closed loop decides as it goes.
    Requests below `num_warmup` are warm-up. `window_ns` is the planned measured window, from the end of the
    warm-up to the end of the planned duration; None for a run bounded by a number of requests.
    `request_limit` is the number of measured requests after which a closed loop ends, whatever the time.
    `load` is one line for people ("open loop, Poisson 4/s for 60 s after 10 s of warm-up").
    `killed` says that the process ended without writing its results: records may be missing.
    `tenant_slo` replaces `slo` for the requests of that tenant. `lost_workers` died before they were done.
    """

    name: str
    open_loop: bool
    level_load: bool = True
    planned: int | None = None
    num_warmup: int = 0
    window_ns: tuple[int, int] | None = None
    request_limit: int | None = None
    interrupted: bool = False
    killed: bool = False
    rate_asked_per_s: float | None = None
    max_in_flight: int | None = None
    cache_hits_expected: bool = False
    target: str | None = None
    model: str | None = None
    server: str | None = None
    load: str | None = None
    seed: int | None = None
    started: str | None = None
    slo: tuple[Limit, ...] = ()
    tenant_slo: Mapping[str, tuple[Limit, ...]] = field(default_factory=dict)
    stages: tuple[StageWindow, ...] = ()
    instrument: Mapping[str, Any] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    lost_workers: tuple[LostWorker, ...] = ()

    @property
    def workers(self) -> int:
        """How many processes sent; request i was sent by worker i modulo this."""
        return int(self.instrument.get("workers") or 1)

    @property
    def cut_short(self) -> bool:
        """Whether the run did not come to its planned end."""
        return self.interrupted or self.killed or bool(self.lost_workers)

    def lost_worker_of(self, index: int) -> LostWorker | None:
        """The dead worker that had the request, if it had one."""
        return next((lost for lost in self.lost_workers if lost.worker == index % self.workers), None)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` reads them back."""
        plain: dict[str, Any] = {item.name: getattr(self, item.name) for item in fields(self)}
        plain["window_ns"] = None if self.window_ns is None else list(self.window_ns)
        plain["slo"] = [_limit_to_json(limit) for limit in self.slo]
        plain["tenant_slo"] = {
            tenant: [_limit_to_json(limit) for limit in limits] for tenant, limits in self.tenant_slo.items()
        }
        plain["stages"] = [
            {"label": stage.label, "start_ns": stage.start_ns, "end_ns": stage.end_ns}
            for stage in self.stages
        ]
        plain["instrument"] = dict(self.instrument)
        plain["settings"] = self.settings.to_json()
        plain["lost_workers"] = [
            {"worker": lost.worker, "how": lost.how, "started": lost.started} for lost in self.lost_workers
        ]
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        """The context that `to_json` wrote. Unknown keys are left out; KeyError or TypeError if foreign."""
        known = {item.name for item in fields(cls)}
        values = {key: value for key, value in plain.items() if key in known}
        window = values.get("window_ns")
        values["window_ns"] = None if window is None else (int(window[0]), int(window[1]))
        values["slo"] = tuple(StatedLimit(**limit) for limit in plain.get("slo", ()))
        values["tenant_slo"] = {
            tenant: tuple(StatedLimit(**limit) for limit in limits)
            for tenant, limits in plain.get("tenant_slo", {}).items()
        }
        values["settings"] = Settings.from_json(plain.get("settings") or {})
        values["stages"] = tuple(StageWindow(**stage) for stage in plain.get("stages", ()))
        values["lost_workers"] = tuple(LostWorker(**lost) for lost in plain.get("lost_workers", ()))
        return cls(**values)


def _limit_to_json(limit: Limit) -> dict[str, Any]:
    return {
        "metric": limit.metric,
        "stat": limit.stat,
        "limit": limit.limit,
        "higher_is_better": limit.higher_is_better,
    }
