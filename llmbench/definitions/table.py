"""What a tool means by TTFT, TPOT, ITL and end-to-end latency, and what it makes of a run: for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from llmbench.definitions.view import View
from llmbench.gaps import measure_gaps
from llmbench.report.text import METRIC_NAMES, duration


@dataclass(frozen=True, slots=True)
class Meaning:
    """Where a metric's p50 and p99 stand in a tool's document (keys joined by dots), and what it is there."""

    metric: str
    p50: str
    p99: str
    words: str
    scale: float = 1e-3  # from the document's unit to seconds


def _flat(metric: str, name: str, words: str) -> Meaning:
    return Meaning(metric, f"median_{name}_ms", f"p99_{name}_ms", words)


def _block(metric: str, name: str, words: str) -> Meaning:
    return Meaning(metric, f"{name}.p50", f"{name}.p99", words)


def _benchmark(metric: str, name: str, words: str, scale: float = 1e-3) -> Meaning:
    at = f"benchmarks.0.metrics.{name}.successful.percentiles"
    return Meaning(metric, f"{at}.p50", f"{at}.p99", words, scale)


def _lifecycle(metric: str, name: str, words: str) -> Meaning:
    at = f"successes.latency.{name}"
    return Meaning(metric, f"{at}.median", f"{at}.p99", words, 1.0)


MEANINGS: Final[dict[str, tuple[Meaning, ...]]] = {
    "vllm": (
        _flat("ttft", "ttft", "to the first chunk with choices, if only the role is in it"),
        _flat("tpot", "tpot", "(E2E - TTFT) / (n - 1)"),
        _flat("itl", "itl", "a gap for each chunk, however many tokens are in it"),
        _flat("e2e", "e2el", "to the last chunk with choices, finish_reason included"),
    ),
    "sglang": (
        _flat("ttft", "ttft", "to the first text or reasoning"),
        _flat("tpot", "tpot", "(E2E - TTFT) / (n - 1)"),
        _flat("itl", "itl", "a gap for each chunk, however many tokens are in it"),
        _flat("e2e", "e2el", "to the last text or reasoning"),
    ),
    "aiperf": (
        _block("ttft", "time_to_first_token", "to the first text or reasoning"),
        _block("tpot", "inter_token_latency", "called inter_token_latency: (E2E - TTFT) / (n - 1)"),
        _block("itl", "inter_chunk_latency", "called inter_chunk_latency: a gap for each chunk"),
        _block("e2e", "request_latency", "to the last text or reasoning"),
    ),
    "guidellm": (
        _benchmark("ttft", "time_to_first_token_ms", "to the first output of any kind"),
        _benchmark("tpot", "time_per_output_token_ms", "last output / n: TTFT is in it"),
        _benchmark("itl", "inter_token_latency_ms", "one a request: (last - first output) / (n - 1)"),
        _benchmark("e2e", "request_latency", "to the end of the response", 1.0),
    ),
    "inference-perf": (
        _lifecycle("ttft", "time_to_first_token", "to the first visible output: reasoning does not count"),
        _lifecycle("tpot", "time_per_output_token", "(E2E - TTFT) / (n - 1)"),
        _lifecycle("itl", "inter_token_latency", "tokens of one chunk are 0 apart"),
        _lifecycle("e2e", "request_latency", "to the end of the response"),
    ),
}


def compare(view: View, tool: str, document: Mapping[str, Any]) -> str:
    """Both tools' p50 and p99 side by side, and the tool's definitions; lines of at most 80 columns."""
    lines = [f"{'':<6}{'llmbench p50':>14}{'p99':>11}{f'{tool} p50':>22}{'p99':>11}"]
    for meaning in MEANINGS[tool]:
        own = [duration(value) for value in _own(view, meaning.metric)]
        theirs = [duration(_at(document, key, meaning.scale)) for key in (meaning.p50, meaning.p99)]
        name = METRIC_NAMES[meaning.metric]
        lines.append(f"{name:<6}{own[0]:>14}{own[1]:>11}{theirs[0]:>22}{theirs[1]:>11}")
    lines.append("")
    lines += [f"{METRIC_NAMES[m.metric]:<6}{m.words}" for m in MEANINGS[tool]]
    return "\n".join(lines)


def _at(document: Mapping[str, Any], path: str, scale: float) -> float | None:
    value: Any = document
    for key in path.split("."):
        value = value[int(key)] if isinstance(value, list) else value.get(key)
        if value is None:
            return None
    return float(value) * scale


def _own(view: View, metric: str) -> tuple[float | None, float | None]:
    """p50 and p99 by llmbench's definition, in seconds."""
    if metric == "itl":
        itl = measure_gaps(view.columns, view.ok, token_limit_s=None, stall_limit_s=1.0).itl
        return (itl.percentile(50) / 1e9, itl.percentile(99) / 1e9) if itl.count else (None, None)
    values = view.requests.measures[metric].of(view.ok) / 1e9
    if not len(values):
        return None, None
    return float(np.percentile(values, 50)), float(np.percentile(values, 99))
