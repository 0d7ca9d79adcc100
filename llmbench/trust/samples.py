"""Whether there was enough to say what is said."""

from __future__ import annotations

from typing import Any

from llmbench.metrics import PLANNED
from llmbench.slo import percent_of_stat
from llmbench.stats import samples_needed
from llmbench.trust.reason import Check, Reason, Rule, Summary, reason, was_cut_short

MEDIAN_NEEDS = 6  # values for a 95 % interval of the p50; see stats.percentile_ranks


def _few_samples(summary: Summary) -> Reason | None:
    """Successes for a median, values for percentiles that have limits, answers in the window for a rate.

    A run that was cut short, or in which nothing succeeded, has a reason of its own.
    """
    num_ok = summary["counts"]["measured_outcomes"].get("ok", 0)
    if not num_ok or was_cut_short(summary):
        return None
    if num_ok < MEDIAN_NEEDS:
        return _reason(
            num_ok,
            MEDIAN_NEEDS,
            f"{num_ok} of {summary['counts']['measured']} measured requests succeeded; below {MEDIAN_NEEDS} "
            "even the median has no interval",
        )
    for check in summary["gate"]["checks"]:
        if (percent := percent_of_stat(check["stat"])) is not None and check["needed_requests"] is not None:
            count, needed = summary["metrics"][check["metric"]]["count"], samples_needed(percent)
            what = f"{check['metric']} {check['stat']}"
            return _reason(
                count, needed, f"there is a limit on {what}, which takes {needed} values, not {count}"
            )
    return _few_in_window(summary)


def _few_in_window(summary: Summary) -> Reason | None:
    window, rate = summary["window"], summary["throughput"]["requests_per_s"]
    if window["kind"] != PLANNED or rate is None:
        return None
    ended = round(rate * window["duration_s"])
    if ended >= MEDIAN_NEEDS:
        return None
    return _reason(
        ended,
        MEDIAN_NEEDS,
        f"{ended} answers ended in the measured {window['duration_s']:.3g} s: the rates over it say little",
    )


def _reason(measured: Any, limit: Any, message: str) -> Reason:
    hint = "make the run longer: load.duration or load.requests"
    return reason("few_samples", "SUSPECT", measured, limit, message, hint)


CHECKS: tuple[Check, ...] = (_few_samples,)

RULES = (
    Rule(
        code="few_samples",
        measured="successes; values for a percentile that has a limit; answers that ended in the window",
        suspect=f"< {MEDIAN_NEEDS}; < {samples_needed(95)} for a p95, {samples_needed(99)} for a p99, …; "
        f"< {MEDIAN_NEEDS}",
        remedy="make the run longer",
    ),
)
