"""Judging a run's summary against its limits: PASS, FAIL or INCONCLUSIVE, and the exit code that follows.

One rule for every limit: it is judged on the point estimate if the sample supports one, with the 95 %
interval beside it; else it is INCONCLUSIVE, with the number of requests that are missing.

- A percentile needs `stats.samples_needed` values, so that one is expected to lie beyond it: p95 20, p99 100.
- A share is the same statement: errors ≤ 1 % says that 99 % succeed, so it needs 100 requests; goodput ≥ 95 %
  needs 20. With fewer it is decided only where the whole interval lies on one side of the limit.
- Limits on every single request (max, errors: 0 %, goodput: 100 %) and on means and rates are judged on what
  was seen, be it one request.

What a run cannot measure however long it is (TTFT of answers that are not streamed) is INCONCLUSIVE too, with
the reason instead of a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from llmbench.context import Limit
from llmbench.stats import samples_needed

SHARES = ("errors", "goodput")
FROM_DUE = ("send_lag", "ttft_due", "e2e_due")
OF_STREAMS = ("ttft", "ttft_due", "tpot", "itl", "chunk_gap", "time_to_first_answer")
THROUGHPUTS = ("requests_per_s", "input_tokens_per_s", "output_tokens_per_s", "total_tokens_per_s")


def percent_of_stat(stat: str) -> float | None:
    """The percentile that a statistic names (p95: 95, p999: 99.9, p99.5: 99.5), None for mean, max, …"""
    digits = stat[1:]
    if not stat.startswith("p") or not digits.replace(".", "", 1).isdigit():
        return None
    if "." in digits or len(digits) <= 2:
        return float(digits)
    return float(f"{digits[:2]}.{digits[2:]}")


def judge(limits: Iterable[Limit], summary: Mapping[str, Any]) -> dict[str, Any]:
    """The `gate` of summary.json: one check a limit, and the worst of them as the whole.

    `low` and `high` are the statistic's 95 % interval, where there is one.
    """
    checks = [_check(limit, summary) for limit in limits]
    found = {check["status"] for check in checks}
    worst = next((status for status in ("FAIL", "INCONCLUSIVE", "PASS") if status in found), "NONE")
    return {"status": worst, "checks": checks}


def exit_code(
    verdict: str, gate: str, *, num_ok: int, interrupted: bool = False, inconclusive: str | None = None
) -> int:
    """The exit code of a finished run.

    130 interrupted; 3 nothing succeeded; 97 INVALID; 99 FAIL; 98 INCONCLUSIVE, which `inconclusive` ("pass"
    or "fail") turns into 0 or 99; else 0. The earlier one outranks the later ones.
    """
    if interrupted:
        return 130
    if num_ok == 0:
        return 3
    if verdict == "INVALID":
        return 97
    if gate == "FAIL":
        return 99
    if gate == "INCONCLUSIVE":
        return {"pass": 0, "fail": 99}.get(inconclusive or "", 98)
    return 0


def _check(limit: Limit, summary: Mapping[str, Any]) -> dict[str, Any]:
    observed, interval = _statistic(limit, summary)
    reason = _why_not_measurable(limit, summary) if observed is None else None
    needed = _needed(limit, summary) if reason is None else None
    if observed is None or (needed is not None and not _is_clear(limit, interval)):
        status = "INCONCLUSIVE"
    else:
        status = "PASS" if _holds(limit, observed) else "FAIL"
    return {
        "metric": limit.metric,
        "stat": limit.stat,
        "limit": limit.limit,
        "higher_is_better": limit.higher_is_better,
        "observed": observed,
        "low": interval[0] if interval else None,
        "high": interval[1] if interval else None,
        "status": status,
        "needed_requests": needed if status == "INCONCLUSIVE" else None,
        "not_measurable": reason,
    }


def _holds(limit: Limit, value: float) -> bool:
    return value >= limit.limit if limit.higher_is_better else value <= limit.limit


def _is_clear(limit: Limit, interval: list[float] | None) -> bool:
    """Does the whole interval lie on one side of the limit?"""
    return interval is not None and _holds(limit, interval[0]) == _holds(limit, interval[1])


def _statistic(limit: Limit, summary: Mapping[str, Any]) -> tuple[float | None, list[float] | None]:
    """(value, 95 % interval) of what the limit is about."""
    if limit.metric in SHARES:
        block = summary[limit.metric] or {}
        return block.get("share"), block.get("ci95")
    if (rate := _rate_name(limit)) is not None:
        return summary["throughput"].get(rate), None
    block = summary["metrics"].get(limit.metric, {})
    return block.get(limit.stat), block.get("ci95", {}).get(limit.stat)


def _rate_name(limit: Limit) -> str | None:
    if limit.metric in THROUGHPUTS:
        return limit.metric
    return limit.stat if limit.metric == "throughput" else None


def _needed(limit: Limit, summary: Mapping[str, Any]) -> int | None:
    """About how many more requests the statistic needs; None where it has enough."""
    if limit.metric in SHARES:
        missing = _needed_for_share(limit) - int(summary["errors"]["attempts"])
        return missing if missing > 0 else None
    percent = percent_of_stat(limit.stat)
    block = summary["metrics"].get(limit.metric)
    if percent is None or block is None:
        return None
    missing = samples_needed(percent) - int(block["count"])
    if missing <= 0:
        return None
    num_ok = summary["counts"]["measured_outcomes"].get("ok", 0)
    a_request = block["count"] / num_ok if num_ok and block["count"] else 1.0
    return math.ceil(round(missing / a_request, 6))


def _needed_for_share(limit: Limit) -> int:
    """As many requests as the percentile needs that says the same; one where none at all may fail."""
    allowed = 1 - limit.limit if limit.higher_is_better else limit.limit
    return samples_needed(100 * (1 - allowed))


def _why_not_measurable(limit: Limit, summary: Mapping[str, Any]) -> str | None:
    """Why no number of requests like these would give a value; None where more of them would."""
    counts, metrics = summary["counts"], summary["metrics"]
    if not counts["measured"]:
        return "no request was measured"
    if limit.metric == "errors":
        return None
    if limit.metric == "goodput":
        return "there is no limit that a single request can meet"
    if not counts["measured_outcomes"].get("ok", 0):
        return "no request succeeded"
    if (rate := _rate_name(limit)) is not None:
        no_input = rate in ("input_tokens_per_s", "total_tokens_per_s") and summary["tokens"]["input"] is None
        return "the server does not count its input" if no_input else "too few requests to tell a rate"
    block = metrics.get(limit.metric)
    if block is None or block["count"]:
        return None
    if limit.metric in FROM_DUE and not summary["run"]["open_loop"]:
        return "in a closed loop nothing is due"
    longest = metrics["output_tokens"]["max"]
    if limit.metric in OF_STREAMS and not metrics["ttft"]["count"]:
        return "the answers were not streamed" if longest else "no answer had any output"
    if limit.metric == "time_to_first_answer":
        return "no answer had output beside its reasoning"
    if limit.metric in ("tpot", "itl", "chunk_gap") and (longest or 0) <= 1:
        return "no answer had two tokens"
    return "tokens cannot be told apart in these answers"
