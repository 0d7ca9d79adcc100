"""guidellm: a `benchmarks.json` with one benchmark.

    TTFT    first output of any kind - send; the first visible output by itself
    TPOT    (last output - send) / n: with the time to the first token in it
    ITL     (last output - first output) / (n - 1), one for each request
    latency end of the response - send: what follows the last output counts

Every distribution is split by what became of the request. Source: docs and src/guidellm/schemas of
vllm-project/guidellm (Apache-2.0).
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

import numpy as np

from llmbench.definitions.view import Floats, View, defined, number, per_token, rate

PERCENTS = {
    "p001": 0.1,
    "p01": 1,
    "p05": 5,
    "p10": 10,
    "p25": 25,
    "p50": 50,
    "p75": 75,
    "p90": 90,
    "p95": 95,
    "p99": 99,
    "p999": 99.9,
}


def guidellm(view: View) -> dict[str, Any]:
    """The document; names ending in `_ms` are milliseconds, `request_latency` is seconds."""
    metrics = {name: _split(view, values) for name, values in _values(view).items()}
    benchmark = {
        "metrics": metrics | _rates(view),
        "scheduler_state": {
            "created_requests": view.context.planned,
            "successful_requests": int(view.ok.sum()),
            "errored_requests": int((view.failed & ~view.cut_off).sum()),
            "cancelled_requests": int(view.cut_off.sum()),
        },
        "duration": view.duration_s(),
    }
    metadata = {"version": 2, "guidellm_version": None, "python_version": platform.python_version()}
    return {"metadata": metadata | {"platform": platform.platform()}, "benchmarks": [benchmark]}


def _values(view: View) -> dict[str, Floats]:
    """Each metric's values, one a request."""
    sent, first, last = view.instant("sent_ns"), view.first_event(), view.last_event()
    tokens, inputs = view.num_tokens(), view.input_tokens()
    num_events = view.columns.num_events.astype(np.float64)
    return {
        "request_latency": view.instant("end_ns") - sent,
        "request_streaming_iterations_count": num_events,
        "prompt_token_count": inputs,
        "output_token_count": tokens,
        "total_token_count": inputs + tokens,
        "time_to_first_token_ms": (first - sent) * 1e3,
        "time_to_first_output_token_ms": (view.instant("first_answer_ns") - sent) * 1e3,
        "time_per_output_token_ms": per_token((last - sent) * 1e3, tokens),
        "inter_token_latency_ms": per_token((last - first) * 1e3, tokens - 1),
        "output_tokens_per_iteration": per_token(tokens, num_events),
    }


def _split(view: View, values: Floats) -> dict[str, Any]:
    kinds = {
        "successful": view.ok,
        "incomplete": view.cut_off,
        "errored": view.failed & ~view.cut_off,
        "total": view.ok | view.cut_off | view.failed,
    }
    return {kind: _distribution(values[rows]) for kind, rows in kinds.items()}


def _rates(view: View) -> dict[str, Any]:
    """Means over the duration, of the successful requests."""
    duration, ok = view.duration_s(), view.ok
    inputs, outputs = np.nansum(view.input_tokens()[ok]), np.nansum(view.num_tokens()[ok])
    latency = (view.instant("end_ns") - view.instant("sent_ns"))[ok]
    means: dict[str, Callable[[], float]] = {
        "requests_per_second": lambda: rate(int(ok.sum()), duration),
        "request_concurrency": lambda: rate(np.nansum(latency), duration),
        "prompt_tokens_per_second": lambda: rate(inputs, duration),
        "output_tokens_per_second": lambda: rate(outputs, duration),
        "tokens_per_second": lambda: rate(inputs + outputs, duration),
    }
    return {name: {"successful": {"mean": number(mean())}} for name, mean in means.items()}


def _distribution(values: Floats) -> dict[str, Any]:
    kept = np.sort(defined(values))
    if not len(kept):
        return {"count": 0, "total_sum": 0.0, "percentiles": {}}
    distinct, counts = np.unique(kept, return_counts=True)
    return {
        "mean": number(kept.mean()),
        "median": number(np.median(kept)),
        "mode": number(distinct[counts.argmax()]),
        "variance": number(kept.var()),
        "std_dev": number(kept.std()),
        "min": number(kept[0]),
        "max": number(kept[-1]),
        "count": len(kept),
        "total_sum": number(kept.sum()),
        "percentiles": {name: number(np.percentile(kept, p)) for name, p in PERCENTS.items()},
    }
