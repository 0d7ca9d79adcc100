"""run.json: enough to know what was run, to repeat it, and to rebuild every report. Secrets are masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import orjson

from llmbench import __version__
from llmbench.client.control import ServerInfo
from llmbench.context import LostWorker, RunContext, Settings, StageWindow
from llmbench.environment import describe_host
from llmbench.load.levels import StageSpan
from llmbench.load.plan import Plan
from llmbench.replay.identity import RunIdentity
from llmbench.scenario.masking import scrub
from llmbench.scenario.model import Workload, secrets_of
from llmbench.workload.traces import SHARING_KINDS


def measurement(
    run: RunIdentity,
    *,
    interrupted: bool = False,
    planned: int | None = None,
    instrument: Mapping[str, Any] | None = None,
    lost: Sequence[LostWorker] = (),
) -> RunContext:
    """What the run's numbers must be read with."""
    scenario, plan, info = run.scenario, run.plan, run.reached.info
    known = len(plan.due_ns) if plan.due_ns is not None else None
    return RunContext(
        name=scenario.name,
        open_loop=plan.is_open,
        level_load=plan.is_level,
        planned=known if planned is None else planned,
        num_warmup=plan.num_warmup or 0,
        window_ns=None if plan.end_ns is None else (plan.warmup_ns, plan.end_ns),
        request_limit=None if plan.is_open else plan.num_requests,
        interrupted=interrupted,
        rate_asked_per_s=_rate_asked(plan),
        max_in_flight=scenario.load.max_in_flight if plan.is_open else None,
        cache_hits_expected=any(map(_expects_cache_hits, scenario.workloads)),
        target=scenario.target.url if run.engine is None else f"engine {run.engine}",
        model=info.model,
        server=server_words(info),
        load=plan.headline,
        seed=scenario.seed,
        started=run.started.isoformat(timespec="seconds"),
        slo=scenario.slo.limits,
        tenant_slo={
            one.tenant: one.slo.limits
            for one in scenario.workloads
            if one.tenant is not None and one.slo is not None
        },
        stages=tuple(
            StageWindow(label=_stage_label(number, span), start_ns=span.start_ns, end_ns=span.end_ns)
            for number, span in enumerate(plan.stages, start=1)
        ),
        instrument=run.workers.facts() if instrument is None else instrument,
        lost_workers=tuple(lost),
        settings=_settings(run),
    )


def _settings(run: RunIdentity) -> Settings:
    target = run.scenario.target
    cpus = describe_host()["cpus_usable"]
    choices = target.body.get("n")
    return Settings(
        arrivals=run.scenario.load.arrivals,
        workload_kinds=tuple(sorted({one.kind for one in run.scenario.workloads})),
        ignore_eos=run.reached.style.ignore_eos,
        ignore_eos_asked=target.ignore_eos,
        usage=target.usage,
        body_keys=tuple(sorted(target.body)),
        num_choices=choices if isinstance(choices, int) and choices > 0 else 1,
        tokenizer=target.tokenizer is not None,
        api_key=target.api_key is not None,
        engine=run.engine is not None,
        timeout_s=target.timeout_s,
        no_progress_timeout_s=target.no_progress_timeout_s,
        cpus=cpus,
    )


def _expects_cache_hits(workload: Workload) -> bool:
    shares = workload.prefix is not None or workload.system is not None or workload.kind in SHARING_KINDS
    return workload.cache != "cold" or shares


def _stage_label(number: int, span: StageSpan) -> str:
    if span.start_level == span.end_level:
        return f"stage {number}: {span.start_level:g}"
    return f"stage {number}: {span.start_level:g} to {span.end_level:g}"


def _rate_asked(plan: Plan) -> float | None:
    """Mean rate of the whole measured window as planned, requests per second."""
    start_ns, end_ns = plan.window_ns
    if plan.due_ns is None or end_ns is None or end_ns <= start_ns:
        return None
    return plan.num_due(start_ns, end_ns) / ((end_ns - start_ns) / 1e9)


def server_words(info: ServerInfo) -> str | None:
    """What the server says of itself, shortly."""
    words = list(dict.fromkeys(word for word in (info.owned_by, info.version) if word))
    return " ".join(words) or info.server_header


def plan_text(run: RunIdentity) -> str:
    """What is about to happen, in two or three lines."""
    target = run.scenario.target.url if run.engine is None else f"engine at {run.scenario.target.url}"
    words = server_words(run.reached.info)
    title = f"{run.scenario.name}   {target}   {run.reached.info.model}"
    return f"{title}{f' ({words})' if words else ''}\n{run.plan.describe()}"


def run_document(
    run: RunIdentity,
    context: RunContext,
    *,
    ended: datetime | None = None,
    prompt_set_hash: str | None = None,
) -> dict[str, Any]:
    """The whole of run.json; `ended` and the prompt set's hash are there once the run is over."""
    hidden = secrets_of(run.scenario)
    fit = run.reached.fit
    return {
        "schema": "llmbench.run/1",
        "llmbench": __version__,
        "command": [scrub(word, hidden) for word in run.command_line],
        "started": run.started.isoformat(),
        "ended": ended.isoformat() if ended is not None else None,
        "scenario": run.scenario.resolved(),
        "scenario_hash": run.scenario.hash(),
        "schedule_hash": run.plan.schedule_hash,
        "prompt_set_hash": prompt_set_hash,
        "seed": run.scenario.seed,
        "salt": run.salt,
        "host": describe_host(),
        "server": _plain(run.reached.info),
        "engine": run.engine,
        "ignore_eos": run.reached.style.ignore_eos,
        "prompt_fit": None if fit is None else _plain(fit.report),
        "measurement": context.to_json(),
    }


def _plain(value: Any) -> Any:
    """A dataclass as plain JSON values."""
    return orjson.loads(orjson.dumps(value))
