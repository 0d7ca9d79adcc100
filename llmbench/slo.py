"""Judging a run's summary against its limits: PASS, FAIL or INCONCLUSIVE, and the exit code that follows.

Limits are judged on point estimates where the sample can support one; the intervals stand beside them. What
it cannot support is no PASS and no FAIL: it is INCONCLUSIVE, with the number of requests that are missing.

    percentiles   from so many values on that the percentile lies between two of them (`samples_needed`)
    shares        errors ≤ 1 % is about one failure in a hundred, so a hundred requests are needed; goodput
                  ≥ 95 % needs twenty. With fewer it is decided if the whole 95 % interval lies on one side.
                  A limit that allows no failure at all (errors: 0 %) is broken by the first one, and holds
                  while there is none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from llmbench.context import Limit
from llmbench.stats import samples_needed

SHARES = ("errors", "goodput")
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
    needed = _needed(limit, summary)
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
    }


def _holds(limit: Limit, value: float) -> bool:
    return value >= limit.limit if limit.higher_is_better else value <= limit.limit


def _is_clear(limit: Limit, interval: list[float] | None) -> bool:
    """Is the whole interval on one side of the limit?"""
    return interval is not None and len({_holds(limit, end) for end in interval}) == 1


def _statistic(limit: Limit, summary: Mapping[str, Any]) -> tuple[float | None, list[float] | None]:
    """(value, 95 % interval) of what the limit is about."""
    if limit.metric in SHARES:
        block = summary[limit.metric] or {}
        return block.get("share"), block.get("ci95")
    if limit.metric in THROUGHPUTS or limit.metric == "throughput":
        name = limit.metric if limit.metric in THROUGHPUTS else limit.stat
        return summary["throughput"].get(name), None
    block = summary["metrics"].get(limit.metric, {})
    return block.get(limit.stat), block.get("ci95", {}).get(limit.stat)


def _needed(limit: Limit, summary: Mapping[str, Any]) -> int | None:
    """About how many more requests the statistic needs; None where it has enough, or more would not help."""
    if limit.metric in SHARES:
        attempts = summary["errors"]["attempts"]
        return max(0, _needed_for_share(limit) - attempts) or None
    percent = percent_of_stat(limit.stat)
    block = summary["metrics"].get(limit.metric)
    if percent is None or block is None:
        return None
    missing: int = samples_needed(percent) - block["count"]
    if missing <= 0:
        return None
    num_ok = summary["counts"]["measured_outcomes"].get("ok", 0)
    if num_ok and not block["count"]:
        return None  # no answer has it: not streamed, or a single token
    a_request = max(1.0, block["count"] / num_ok) if num_ok else 1.0
    return math.ceil(missing / a_request)


def _needed_for_share(limit: Limit) -> int:
    """Requests of which a single failure is no more than the limit allows."""
    allowed = 1 - limit.limit if limit.higher_is_better else limit.limit
    # Rounded, because 1 - 0.95 is 0.050000000000000044.
    return math.ceil(round(1 / allowed, 6)) if allowed > 0 else 1
