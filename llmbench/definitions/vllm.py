"""`vllm bench serve` and `sglang.bench_serving`: one formula each, one flat JSON object.

    vLLM    TTFT begins to count at the first message with choices, so that a chunk with nothing but the role
            ends it; E2EL ends with the last such message; one inter-token latency for each further message,
            however many tokens it holds
    SGLang  the same, but only messages with text or reasoning count
    both    TPOT = (E2EL - TTFT) / (n - 1) for n > 1; rates over the whole duration, the drain included

Sources: vllm/benchmarks/serve.py and vllm/benchmarks/lib/endpoint_request_func.py (Apache-2.0);
sglang/python/sglang/bench_serving.py (Apache-2.0).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmbench.definitions.view import Floats, View, defined, number, per_token, rate

PERCENTS = (50, 90, 95, 99)


def vllm(view: View) -> dict[str, Any]:
    """The object that `vllm bench serve --save-result` writes."""
    role, finish = view.instant("role_chunk_ns"), view.instant("finish_chunk_ns")
    first = np.fmin(role, view.first_event())
    last = np.fmax(finish, view.last_event())
    gaps = [np.diff(_messages(view, row, role[row], finish[row])) for row in np.flatnonzero(view.ok).tolist()]
    return _flat(view, first, last, gaps, backend="openai-chat")


def sglang(view: View) -> dict[str, Any]:
    """The object that `sglang.bench_serving --output-file` writes."""
    gaps = [np.diff(view.events(row)[0]) for row in np.flatnonzero(view.ok).tolist()]
    flat = _flat(view, view.first_event(), view.last_event(), gaps, backend="sglang-oai-chat")
    # SGLang names these two otherwise.
    flat["mean_e2e_latency_ms"], flat["median_e2e_latency_ms"] = flat["mean_e2el_ms"], flat["median_e2el_ms"]
    return flat


def _messages(view: View, row: int, role: float, finish: float) -> Floats:
    """Instants of the messages with choices that are on record: silent ones inside a stream are not."""
    instants, _ = view.events(row)
    return defined(np.concatenate(([role], instants, [finish])))


def _flat(view: View, first: Floats, last: Floats, gaps: list[Floats], *, backend: str) -> dict[str, Any]:
    sent, tokens, ok = view.instant("sent_ns"), view.num_tokens(), view.ok
    ttft, e2el = (first - sent)[ok], (last - sent)[ok]
    tpot = per_token(e2el - ttft, tokens[ok] - 1)
    duration, num_ok = view.duration_s(), int(ok.sum())
    num_input, num_output = np.nansum(view.input_tokens()[ok]), np.nansum(tokens[ok])
    num_good = view.num_good()
    context = view.context
    return {
        "backend": backend,
        "endpoint_type": backend,
        "label": None,
        "model_id": context.model,
        "tokenizer_id": None,
        "num_prompts": num_ok + int(view.failed.sum()),
        "request_rate": context.rate_asked_per_s if context.rate_asked_per_s is not None else "inf",
        "burstiness": None,
        "max_concurrency": None,
        "duration": duration,
        "completed": num_ok,
        "failed": int(view.failed.sum()),
        "total_input_tokens": int(num_input),
        "total_output_tokens": int(num_output),
        "request_throughput": rate(num_ok, duration),
        "request_goodput": None if num_good is None else rate(num_good, duration),
        "output_throughput": rate(num_output, duration),
        "total_token_throughput": rate(num_input + num_output, duration),
        **_stats("ttft", ttft),
        **_stats("tpot", tpot),
        **_stats("itl", np.concatenate(gaps) if gaps else np.empty(0)),
        **_stats("e2el", e2el),
    }


def _stats(name: str, seconds: Floats) -> dict[str, float | None]:
    """Milliseconds. Without a value 0, as both tools write it."""
    values = defined(seconds) * 1e3
    if not len(values):
        values = np.zeros(1)
    figures = {
        f"mean_{name}_ms": number(values.mean()),
        f"median_{name}_ms": number(np.median(values)),
        f"std_{name}_ms": number(values.std()),
    }
    return figures | {f"p{p}_{name}_ms": number(np.percentile(values, p)) for p in PERCENTS}
