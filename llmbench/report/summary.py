"""summary.json ("llmbench.summary/1"): every number of a run in one document of plain values.

Metrics are over measured requests that succeeded; `attempts` stands beside them with every failed request
as infinity. Seconds, shares and rates per second throughout. None where there is nothing to say: never NaN,
never infinity. Percentiles are None below `stats.samples_needed`, intervals below what an exact one needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmbench.authenticity import stream_facts
from llmbench.censored import censored
from llmbench.columns import IntColumn, RequestColumns
from llmbench.context import RunContext
from llmbench.gaps import itl_intervals, measure_gaps
from llmbench.metrics import (
    NS_PER_S,
    BoolRows,
    Requests,
    Window,
    derive,
    measured_window,
    meets_limits,
    rate_of,
    throughput,
    whole_run,
)
from llmbench.omission import arrivals, closed_loop
from llmbench.records import Outcome
from llmbench.slo import judge, percent_of_stat
from llmbench.stats import (
    PERCENTILE_METHOD,
    Sample,
    histogram,
    percentile_ranks,
    sample,
    samples_needed,
    share_interval,
)
from llmbench.steady import steadiness
from llmbench.trust import judge_trust
from llmbench.trust.answers import INPUT_OFF, LONG_OUTPUT, SHORT_OUTPUT, SLACK_TOKENS

SCHEMA = "llmbench.summary/1"
STANDARD_PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9}
REQUEST_METRICS = (
    "ttft",
    "ttft_due",
    "tpot",
    "e2e",
    "e2e_due",
    "time_to_first_answer",
    "normalized_latency",
    "input_tokens",
    "output_tokens",
)
ATTEMPTED = ("ttft", "ttft_due", "e2e", "e2e_due")
STALL_LIMIT_S = 0.5  # a pause in a text that a reader notices
_HISTOGRAM_BINS = 28
_NUM_FAILURES_SHOWN = 12


def summarise(columns: RequestColumns, context: RunContext) -> dict[str, Any]:
    """The whole of summary.json. Never fails on a run without successes, or without requests."""
    requests = derive(columns, context)
    window, whole = measured_window(requests, context), whole_run(requests)
    percentiles = STANDARD_PERCENTILES | _asked_percentiles(context)
    summary: dict[str, Any] = {
        "schema": SCHEMA,
        "name": context.name,
        "verdict": None,
        "gate": None,
        "run": _run_facts(context),
        "window": _window_facts(window),
        "counts": _counts(columns, context),
        "errors": _errors(requests),
        "failures": _failures(requests),
        **_latencies(requests, context, percentiles),
        "attempts": {name: _attempts(requests, context, name, percentiles) for name in ATTEMPTED},
        "censored": censored(requests, percentiles),
        **steadiness(requests, window, context),
        "arrivals": arrivals(requests, context),
        "closed_loop": closed_loop(requests, window, context),
        "percentile_method": PERCENTILE_METHOD,
        "throughput": throughput(requests, window, context),
        "throughput_whole": throughput(requests, whole, context) | {"window": _window_facts(whole)},
        "goodput": _goodput(requests, meets_limits(requests, context), window),
        "tokens": _tokens(requests, context),
        "streams": stream_facts(requests, lag_s=_client_lag_s(context)),
        "instrument": None,
        "server": {},
        "gpu": {},
        "cost": {},
        "by_tenant": _by_tenant(requests, percentiles),
        "by_stage": _by_stage(requests, context, percentiles),
    }
    summary["instrument"] = _instrument(summary, requests, context)
    summary["gate"] = judge(context.slo, summary)
    summary["verdict"] = judge_trust(summary)
    return summary


def describe(
    values: Sample, percentiles: Mapping[str, float], *, unit: str, divisor: float = 1.0
) -> dict[str, Any]:
    """The statistics of one metric. The sample's values over `divisor` are in `unit`."""
    count = values.count
    stats: dict[str, Any] = {"unit": unit, "count": count}
    stats |= {
        name: _plain(value / divisor)
        for name, value in (("mean", values.mean()), ("std", values.std()), ("min", values.min()))
    }
    intervals: dict[str, list[float] | None] = {}
    for name, percent in percentiles.items():
        enough = count >= samples_needed(percent)
        stats[name] = _plain(values.percentile(percent) / divisor) if enough else None
        ranks = percentile_ranks(count, percent)
        ends = [_plain(values.at(rank) / divisor) for rank in ranks] if ranks else []
        intervals[name] = None if None in ends or not ends else [end for end in ends if end is not None]
    stats["max"] = _plain(values.max() / divisor)
    stats["ci95"] = intervals
    return stats


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _asked_percentiles(context: RunContext) -> dict[str, float]:
    """Percentiles that an SLO names beside the standard ones."""
    asked = {limit.stat: percent_of_stat(limit.stat) for limit in context.slo}
    return {stat: percent for stat, percent in asked.items() if percent is not None}


def _latencies(requests: Requests, context: RunContext, percentiles: Mapping[str, float]) -> dict[str, Any]:
    """`metrics`, `stalls` and `histograms`."""
    succeeded = requests.succeeded
    samples = {name: sample(requests.measures[name].of(succeeded)) for name in REQUEST_METRICS}
    # Lateness concerns every request that was sent, whatever became of it.
    samples["send_lag"] = sample(requests.measures["send_lag"].of(requests.measured))
    metrics = {
        name: describe(values, percentiles, unit="tokens")
        if name.endswith("_tokens")
        else describe(values, percentiles, unit="s", divisor=NS_PER_S)
        for name, values in samples.items()
    }
    token_limits = [limit.limit for limit in context.slo if limit.metric in ("tpot", "itl")]
    gaps = measure_gaps(
        requests.columns,
        succeeded,
        token_limit_s=min(token_limits, default=None),
        stall_limit_s=STALL_LIMIT_S,
    )
    for name, pooled in (("itl", gaps.itl), ("chunk_gap", gaps.chunk_gap)):
        metrics[name] = describe(pooled, percentiles, unit="s", divisor=NS_PER_S)
        # Gaps of one stream resemble each other: intervals for independent values would be far too narrow.
        metrics[name]["ci95"] = dict.fromkeys(percentiles)
    intervals = itl_intervals(requests.columns, succeeded, gaps.itl, list(percentiles.values()))
    for name, ends in zip(percentiles, intervals, strict=True):
        metrics["itl"]["ci95"][name] = [end / NS_PER_S for end in ends] if ends else None
    histograms = {name: _histogram_s(samples[name]) for name in ("ttft", "tpot", "e2e")}
    return {"metrics": metrics, "stalls": gaps.stalls(), "histograms": histograms}


def _histogram_s(values: Sample) -> dict[str, Any] | None:
    in_seconds = Sample(values.weights, tuple(group / NS_PER_S for group in values.groups))
    return histogram(in_seconds, num_bins=_HISTOGRAM_BINS)


def _attempts(
    requests: Requests, context: RunContext, name: str, percentiles: Mapping[str, float]
) -> dict[str, Any]:
    """A metric with every failed attempt as infinity; what is infinite reads None.

    From due on, what was never sent counts as well; it is nothing in a closed loop, where nothing is due.
    """
    good = requests.measures[name].of(requests.succeeded) / NS_PER_S
    failed = requests.attempted & ~requests.ok
    if name.endswith("_due"):
        failed &= requests.columns.integers["due_ns"].is_set & context.open_loop
    num_failed = int(failed.sum())
    values = sample(np.concatenate([good, np.full(num_failed, math.inf)]))
    with np.errstate(invalid="ignore"):
        stats = describe(values, percentiles, unit="s")
    return stats | {"failed": num_failed}


# ---- counts and shares


def _run_facts(context: RunContext) -> dict[str, Any]:
    return {
        "started": context.started,
        "target": context.target,
        "model": context.model,
        "server": context.server,
        "load": context.load,
        "open_loop": context.open_loop,
        "seed": context.seed,
        "cache_hits_expected": context.cache_hits_expected,
        "interrupted": context.interrupted,
        "killed": context.killed,
        "max_in_flight": context.max_in_flight,
        "settings": context.settings.to_json(),
    }


def _window_facts(window: Window) -> dict[str, Any]:
    return {
        "start_s": window.start_ns / NS_PER_S,
        "end_s": window.end_ns / NS_PER_S,
        "duration_s": window.duration_s,
        "kind": window.kind,
    }


def _counts(columns: RequestColumns, context: RunContext) -> dict[str, Any]:
    """Planned requests are the sum over all outcomes; `measured_outcomes` is the same without warm-up."""
    phase, outcome = columns.labels["phase"], columns.labels["outcome"]
    everything = np.ones(columns.num_rows, dtype=np.bool_)
    outcomes = outcome.counts(everything)
    measured = phase.among("measure")
    if context.planned is not None and context.planned != columns.num_rows:
        raise AssertionError(f"{context.planned} requests were planned but {columns.num_rows} are on record")
    assert sum(outcomes.values()) == columns.num_rows, "every planned request has one outcome"
    return {
        "planned": columns.num_rows,
        "measured": int(measured.sum()),
        "warmup": int(phase.among("warmup").sum()),
        "drain": int(phase.among("drain").sum()),
        **{str(name): outcomes.get(name, 0) for name in Outcome},
        "measured_outcomes": outcome.counts(measured),
        "measured_not_connected": int((measured & _not_connected(columns)).sum()),
    }


def _not_connected(columns: RequestColumns) -> BoolRows:
    """Requests that failed before they could be sent."""
    given_up = columns.labels["outcome"].among(Outcome.DROPPED, Outcome.CANCELLED)
    return ~columns.integers["sent_ns"].is_set & ~given_up


def _errors(requests: Requests) -> dict[str, Any]:
    """Failures of any kind (dropped ones too) among the measured requests that were tried."""
    attempts = int(requests.attempted.sum())
    failed = int((requests.attempted & ~requests.ok).sum())
    interval = share_interval(failed, attempts)
    return {
        "share": failed / attempts if attempts else None,
        "count": failed,
        "attempts": attempts,
        "ci95": list(interval) if interval else None,
    }


def _failures(requests: Requests) -> list[dict[str, Any]]:
    """Measured requests that failed, by kind, the most frequent first, each kind with one message."""
    columns = requests.columns
    outcome, kind = columns.labels["outcome"], columns.labels["error_kind"]
    status = columns.integers["http_status"]
    groups: dict[tuple[str, str | None, int | None], list[int]] = {}
    # A failed status is part of the kind; the 200 of a stream that broke later is not.
    for row in np.flatnonzero(requests.measured & ~outcome.among(Outcome.OK)):
        named = outcome.names[outcome.codes[row]] if outcome.codes[row] >= 0 else "unknown"
        code = int(status.values[row]) if status.is_set[row] and named == Outcome.HTTP_ERROR else None
        error_kind = kind.names[kind.codes[row]] if kind.codes[row] >= 0 else None
        groups.setdefault((named, error_kind, code), []).append(int(row))
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))[:_NUM_FAILURES_SHOWN]
    return [
        {
            "outcome": named,
            "error_kind": error_kind,
            "http_status": code,
            "count": len(rows),
            "example": columns.texts["error"][rows[0]],
        }
        for (named, error_kind, code), rows in ordered
    ]


def _goodput(requests: Requests, good: BoolRows | None, window: Window) -> dict[str, Any]:
    """Requests that met every per-request limit; None throughout where there is no such limit."""
    attempts = int(requests.attempted.sum())
    if good is None:
        return {"requests_per_s": None, "share": None, "ci95": None}
    met = int((good & requests.attempted).sum())
    interval = share_interval(met, attempts)
    return {
        "requests_per_s": rate_of(requests, window, good),
        "share": met / attempts if attempts else None,
        "ci95": list(interval) if interval else None,
    }


# ---- tokens


def _tokens(requests: Requests, context: RunContext) -> dict[str, Any]:
    """Totals over measured successes, where the counts come from, how far they are from those asked for."""
    columns, rows = requests.columns, requests.succeeded
    integers = columns.integers
    sources = columns.labels["token_source"].counts(rows)
    stated = rows & requests.num_tokens.is_set & columns.has_event_tokens & (columns.num_events > 0)
    more_events = stated & (columns.num_events > requests.num_tokens.values)
    num_events, num_tokens = columns.num_events[stated].sum(), requests.num_tokens.values[stated].sum()
    inputs, cached = _total(integers["input_tokens"], rows), _total(integers["cached_tokens"], rows)
    return {
        "source": next(iter(sources)) if len(sources) == 1 else "mixed" if sources else None,
        "sources": sources,
        "input": inputs,
        "output": _total(requests.num_tokens, rows),
        "reasoning": _total(integers["reasoning_tokens"], rows),
        "cached": cached,
        "cached_share": cached / inputs if cached is not None and inputs else None,
        "disagreement": _share(more_events, stated),
        "per_event": float(num_tokens / num_events) if num_events else None,
        "asked": _asked(requests, num_choices=context.settings.num_choices or 1),
        "finish_reasons": columns.labels["finish_reason"].counts(rows),
        "warnings": _warnings(columns, rows),
    }


def _total(column: IntColumn, rows: BoolRows) -> int | None:
    known = column.is_set & rows
    return int(column.values[known].sum()) if known.any() else None


def _share(part: BoolRows, whole: BoolRows) -> float | None:
    count = int(whole.sum())
    return int((part & whole).sum()) / count if count else None


def _asked(requests: Requests, *, num_choices: int) -> dict[str, Any]:
    """Real lengths against those asked for: deviations are |real - asked| / asked.

    An output of several choices is asked for once for each. Where events were counted as tokens the output's
    length is not known.
    """
    columns, rows = requests.columns, requests.succeeded
    counted = ~columns.labels["token_source"].among("events")
    facts: dict[str, Any] = {}
    for name, real in (("input", columns.integers["input_tokens"]), ("output", requests.num_tokens)):
        asked = columns.integers[f"{name}_tokens_asked"]
        known = rows & asked.is_set & real.is_set & (asked.values > 0) & (counted | (name == "input"))
        wanted, got = asked.values[known] * (num_choices if name == "output" else 1), real.values[known]
        deviations = sample(np.abs(got - wanted) / np.maximum(wanted, 1))
        facts[f"{name}_asked"] = int(wanted.sum()) if len(wanted) else None
        facts[f"{name}_real"] = int(got.sum()) if len(wanted) else None
        facts[f"{name}_deviation_p50"] = _plain(deviations.percentile(50))
        facts[f"{name}_deviation_max"] = _plain(deviations.max())
        off = {"input_off": np.abs(got - wanted) > np.maximum(INPUT_OFF * wanted, SLACK_TOKENS)}
        if name == "output":
            longer = got - wanted > np.maximum((LONG_OUTPUT - 1) * wanted, SLACK_TOKENS)
            off = {"short_output": got < SHORT_OUTPUT * wanted, "long_output": longer}
        facts |= {
            f"{key}_share": float(np.mean(which)) if len(wanted) else None for key, which in off.items()
        }
    return facts


def _warnings(columns: RequestColumns, rows: BoolRows) -> dict[str, int]:
    """How many answers bear each warning."""
    tally: dict[str, int] = {}
    for joined, count in columns.labels["warnings"].counts(rows).items():
        for code in joined.split(","):
            tally[code] = tally.get(code, 0) + count
    return tally


# ---- parts of the run


def _client_lag_s(context: RunContext) -> float | None:
    """How late the client reads what has arrived: the tail of its loop's lag, and of its reads'."""
    lags = [context.instrument.get(name) for name in ("loop_lag_p99_s", "read_lag_p99_s")]
    return max((lag for lag in lags if lag is not None), default=None)


def _stamps(requests: Requests) -> dict[str, Any]:
    """How exact the instants are: events that came in one read with a later one bear its stamp, and may have
    come before it, by the bound at most.
    """
    columns, rows = requests.columns, requests.succeeded
    shared, bounds = columns.integers["shared_events"], columns.integers["shared_bound_ns"]
    num_events = int(columns.num_events[rows & shared.is_set].sum())
    num_shared = _total(shared, rows)
    bound = sample(bounds.values[rows & bounds.is_set] / NS_PER_S)
    return {
        "shared_share": num_shared / num_events if num_events and num_shared is not None else None,
        "shared_bound_p50_s": _plain(bound.percentile(50)),
        "shared_bound_max_s": _plain(bound.max()),
    }


def _instrument(summary: Mapping[str, Any], requests: Requests, context: RunContext) -> dict[str, Any]:
    """What the instrument says of itself; figures nobody took are None."""
    facts: dict[str, Any] = {
        "send_lag_p99_s": summary["metrics"]["send_lag"]["p99"],
        "loop_lag_p99_s": None,
        "read_lag_p99_s": None,
        "stamps": _stamps(requests),
        "cpu_share": None,
        "workers": None,
        "workers_reason": None,
        "workers_at_most": None,
        "calibrated_error": {"ttft_p99_s": None, "itl_p99_s": None},
    }
    return facts | dict(context.instrument) | {"per_worker": _per_worker(requests.columns, context)}


def _per_worker(columns: RequestColumns, context: RunContext) -> list[dict[str, Any]]:
    """Each worker's own figures, what it sent and what it received; `died` says how, of one that did."""
    own = {figures["worker"]: figures for figures in context.instrument.get("per_worker", ())}
    died = {lost.worker: lost.how for lost in context.lost_workers}
    workers, sent = columns.integers["worker"], columns.integers["sent_ns"].is_set
    parts = []
    for worker in range(context.workers):
        rows = sent & workers.is_set & (workers.values == worker)
        figures = own.get(worker, {})
        parts.append(
            {
                "worker": worker,
                "cpu_share": figures.get("cpu_share"),
                "loop_lag_p99_s": figures.get("loop_lag_p99_s"),
                "requests": int(rows.sum()),
                "events": int(columns.num_events[rows].sum()),
                "died": died.get(worker),
            }
        )
    return parts


def _part(requests: Requests, rows: BoolRows, percentiles: Mapping[str, float]) -> dict[str, Any]:
    """Counts and headline metrics of some of the measured requests."""
    outcomes = requests.columns.labels["outcome"].counts(rows & requests.measured)
    succeeded = rows & requests.succeeded
    return {
        "counts": {"measured": int((rows & requests.measured).sum()), **outcomes},
        "metrics": {
            name: describe(
                sample(requests.measures[name].of(succeeded)), percentiles, unit="s", divisor=NS_PER_S
            )
            for name in ("ttft", "tpot", "e2e")
        },
        "tokens": {
            "input": _total(requests.columns.integers["input_tokens"], succeeded),
            "output": _total(requests.num_tokens, succeeded),
        },
    }


def _by_tenant(requests: Requests, percentiles: Mapping[str, float]) -> dict[str, Any]:
    tenants = requests.columns.labels["tenant"]
    return {name: _part(requests, tenants.among(name), percentiles) for name in sorted(tenants.names)}


def _by_stage(
    requests: Requests, context: RunContext, percentiles: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Requests by the stage they were due in (sent in, in a closed loop)."""
    due, sent = requests.columns.integers["due_ns"], requests.columns.integers["sent_ns"]
    starts: NDArray[np.int64] = np.where(due.is_set, due.values, sent.values)
    known = due.is_set | sent.is_set
    return [
        {"label": stage.label, "start_s": stage.start_ns / NS_PER_S, "end_s": stage.end_ns / NS_PER_S}
        | _part(requests, known & (starts >= stage.start_ns) & (starts < stage.end_ns), percentiles)
        for stage in context.stages
    ]
