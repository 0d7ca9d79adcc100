"""aiperf, the successor of genai-perf: `profile_export_aiperf.json`.

    TTFT             first text or reasoning - send; the first visible output by itself
    request latency  last text or reasoning - send
    ITL              one for each request: (latency - TTFT) / (n - 1); the gaps are "inter chunk latency"
    rates            over the time from the first send to the last response

Source: docs/metrics-reference.md of ai-dynamo/aiperf (Apache-2.0).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmbench.definitions.view import Floats, View, defined, number, per_token, rate

PERCENTS = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def aiperf(view: View) -> dict[str, Any]:
    """One block a metric; latencies in milliseconds."""
    ok, sent, tokens = view.ok, view.instant("sent_ns")[view.ok], view.num_tokens()[view.ok]
    instants = [view.events(row)[0] for row in np.flatnonzero(ok).tolist()]
    gaps = [np.diff(times) for times in instants]
    second = np.array([gap[0] if len(gap) else np.nan for gap in gaps])
    ttft, latency = view.first_event()[ok] - sent, view.last_event()[ok] - sent
    itl = per_token(latency - ttft, tokens - 1)
    inputs, duration, num_ok = view.input_tokens()[ok], view.duration_s(), int(ok.sum())
    num_failed, num_good = int(view.failed.sum()), view.num_good()
    num_all = num_ok + num_failed
    document: dict[str, Any] = {
        "schema_version": "1.5",
        "was_cancelled": view.context.interrupted,
        "error_summary": [],
        "time_to_first_token": _block("ms", ttft * 1e3),
        "time_to_second_token": _block("ms", second * 1e3),
        "time_to_first_output_token": _block("ms", (view.instant("first_answer_ns")[ok] - sent) * 1e3),
        "inter_token_latency": _block("ms", itl * 1e3),
        "inter_chunk_latency": _block("ms", np.concatenate(gaps) * 1e3 if gaps else np.empty(0)),
        "request_latency": _block("ms", latency * 1e3),
        "output_token_throughput_per_user": _block("tokens/sec/user", per_token(np.ones(len(itl)), itl)),
        "input_sequence_length": _block("tokens", inputs),
        "output_sequence_length": _block("tokens", tokens),
        "output_token_throughput": _scalar("tokens/sec", rate(np.nansum(tokens), duration)),
        "total_token_throughput": _scalar(
            "tokens/sec", rate(np.nansum(tokens) + np.nansum(inputs), duration)
        ),
        "request_throughput": _scalar("requests/sec", rate(num_ok, duration)),
        "request_count": _scalar("requests", num_ok),
        "error_request_count": _scalar("requests", num_failed),
    }
    if num_good is not None:
        document["goodput"] = _scalar("requests/sec", rate(num_good, duration))
        document["good_request_count"] = _scalar("requests", num_good)
        document["good_request_fraction"] = _scalar("ratio", num_good / num_all if num_all else 0.0)
    return document


def _scalar(unit: str, value: float) -> dict[str, Any]:
    return {"unit": unit, "avg": number(value)}


def _block(unit: str, values: Floats) -> dict[str, Any]:
    kept = defined(values)
    if not len(kept):
        return {"unit": unit, "count": 0}
    return {
        "unit": unit,
        "avg": number(kept.mean()),
        "min": number(kept.min()),
        "max": number(kept.max()),
        **{f"p{p}": number(np.percentile(kept, p)) for p in PERCENTS},
        "std": number(kept.std()),
        "count": len(kept),
        "sum": number(kept.sum()),
    }
