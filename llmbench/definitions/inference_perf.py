"""inference-perf: `summary_lifecycle_metrics.json`.

    TTFT    first visible output - send: reasoning does not count
    TPOT    (latency - TTFT) / (n - 1), NTPOT latency / n, latency = end of the response - send
    ITL     all tokens of one chunk came at its instant: a gap to the first, zero to each of the others

Seconds throughout. Source: inference_perf/reportgen/base.py of kubernetes-sigs/inference-perf (Apache-2.0).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmbench.definitions.view import Floats, View, defined, number, per_token, rate

PERCENTS = {"p0.1": 0.1, "p1": 1, "p5": 5, "p10": 10, "p25": 25, "median": 50, "p75": 75, "p90": 90}
TAIL = {"p95": 95, "p99": 99, "p99.9": 99.9}


def inference_perf(view: View) -> dict[str, Any]:
    """The object: load summary, successes, failures."""
    ok, failed, duration = view.ok, view.failed, view.duration_s()
    sent, tokens = view.instant("sent_ns"), view.num_tokens()
    latency, ttft = view.instant("end_ns") - sent, view.instant("first_answer_ns") - sent
    inputs, num_ok = view.input_tokens(), int(ok.sum())
    gaps = [_token_gaps(*view.events(row)) for row in np.flatnonzero(ok).tolist()]
    sums = np.nansum(inputs[ok]), np.nansum(tokens[ok])
    return {
        "load_summary": {
            "count": num_ok + int(failed.sum()),
            "schedule_delay": _stats((sent - view.instant("due_ns"))[ok | failed]),
            "send_duration": duration,
            "requested_rate": view.context.rate_asked_per_s,
            "achieved_rate": rate(num_ok + int(failed.sum()), duration),
        },
        "successes": {
            "count": num_ok,
            "latency": {
                "request_latency": _stats(latency[ok]),
                "normalized_time_per_output_token": _stats(per_token(latency[ok], tokens[ok])),
                "time_per_output_token": _stats(per_token((latency - ttft)[ok], tokens[ok] - 1)),
                "time_to_first_token": _stats(ttft[ok]),
                "inter_token_latency": _stats(np.concatenate(gaps) if gaps else np.empty(0)),
            },
            "throughput": {
                "input_tokens_per_sec": rate(sums[0], duration),
                "output_tokens_per_sec": rate(sums[1], duration),
                "total_tokens_per_sec": rate(sum(sums), duration),
                "requests_per_sec": rate(num_ok, duration),
            },
            "prompt_len": _stats(inputs[ok]),
            "output_len": _stats(tokens[ok]),
        },
        "failures": {
            "count": int(failed.sum()),
            "request_latency": _stats(latency[failed]),
            "prompt_len": _stats(inputs[failed]),
            "by_label": view.columns.labels["error_kind"].counts(failed),
        },
    }


def _token_gaps(instants: Floats, tokens: Any) -> Floats:
    """One gap a token but the first: `[n - 1]`."""
    return np.diff(np.repeat(instants, np.maximum(tokens, 1)))


def _stats(values: Floats) -> dict[str, float | None] | None:
    kept = defined(values)
    if not len(kept):
        return None
    percentiles = {name: number(np.percentile(kept, p)) for name, p in (PERCENTS | TAIL).items()}
    return {"mean": number(kept.mean()), "min": number(kept.min()), **percentiles, "max": number(kept.max())}
