"""Whether the run was steady, its arrivals the planned ones, and what its loop could not see.

How each figure is found, and why its limits are what they are: `llmbench.steady`, `llmbench.omission`.
"""

from __future__ import annotations

import math

from llmbench.steady import DRIFT_SHARE, WELL_INSIDE
from llmbench.trust.reason import Check, Reason, Rule, Summary, percent, reason

MOVED_SHARE = 0.25  # of the sends: below it the others keep the process as it was planned
GAP_DISTANCE = 0.20
DISPERSION = 0.5  # more than planned, and of what was planned
WITHHELD_SHARE = 0.01  # a p99 is over requests of which one in a hundred was never sent

# One fact, one reason: what is left out where another of these reasons says it already.
SAID_BY = {
    "arrivals_distorted": frozenset({"client_late", "rate_not_met"}),
    "drift": frozenset({"dropped_arrivals"}),
    "not_steady": frozenset({"dropped_arrivals", "drift"}),
}


def _seconds(value: float) -> str:
    return f"{value * 1e3:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"


def _rate(value: float, digits: int = 3) -> str:
    return f"{float(f'{value:.{digits}g}'):,g}/s"


def _not_steady(summary: Summary) -> Reason | None:
    steady, window, metrics = summary["steady"], summary["window"], summary["metrics"]
    if not steady.get("transient"):
        return None
    late_s = steady["settled_s"] - window["start_s"]
    if late_s <= WELL_INSIDE * window["duration_s"]:
        return None
    name = steady["metric"]
    was, settled = metrics[name]["p50"], steady["settled_p50_s"]
    stat = "p50"
    if metrics[name]["p95"] is not None and _off(was, settled) < _off(
        metrics[name]["p95"], steady["settled_p95_s"]
    ):
        stat, was, settled = "p95", metrics[name]["p95"], steady["settled_p95_s"]
    after = f"{_seconds(late_s)} after the warm-up ended" if steady["warmup_s"] else "which had no warm-up"
    return reason(
        "not_steady",
        "SUSPECT",
        steady["settled_s"],
        steady["warmup_s"],
        f"{name.upper()} settled {_seconds(steady['settled_s'])} into the run, {after}: its {stat} is"
        f" {_seconds(was)}, and {_seconds(settled)} from there on",
        f"set load.warmup: {math.ceil(steady['settled_s'])}s",
    )


def _off(value: float, settled: float) -> float:
    return abs(value - settled) / settled if settled else 0.0


def _drift(summary: Summary) -> Reason | None:
    drifts = summary["drift"]
    name = next((name for name in ("ttft", "e2e", "tpot") if (drifts.get(name) or {}).get("drifting")), None)
    if name is None:
        return None
    found = drifts[name]
    low, high = sorted(abs(end) for end in found["ci95_s"])
    rises = found["change_s"] > 0
    return reason(
        "drift",
        "SUSPECT",
        found["share"],
        DRIFT_SHARE,
        f"{name.upper()} {'rose' if rises else 'fell'} by {_seconds(abs(found['change_s']))}"
        f" ({_seconds(low)} to {_seconds(high)}) across the measured window,"
        f" {abs(found['share']) * 100:.0f} % of its p50: it has no one value",
        _drift_hint(summary, rises=rises),
    )


def _drift_hint(summary: Summary, *, rises: bool) -> str:
    rates = summary["throughput"]
    served, sent = rates["requests_per_s"], rates["sent_requests_per_s"]
    if rises and summary["run"]["open_loop"] and served and sent and served < 0.95 * sent:
        return (
            f"the queue grows: {_rate(served)} were served of {_rate(sent)} sent; ask for a lower load.rate"
        )
    if rises:
        return "make load.duration longer and see whether it settles; if it never does, ask for less"
    return "it was still warming up: make load.warmup and load.duration longer"


def _arrivals_distorted(summary: Summary) -> Reason | None:
    found = summary["arrivals"]
    if found is None or found["moved_share"] <= MOVED_SHARE:
        return None
    planned, sent = found["dispersion_planned"], found["dispersion_sent"]
    clumped = planned is not None and sent is not None and sent - planned > DISPERSION * max(1.0, planned)
    if found["ks"] <= GAP_DISTANCE and not clumped:
        return None
    message = (
        f"{percent(found['moved_share'])} of the sends were moved by more than"
        f" {_seconds(found['tolerance_s'])} against each other: the gaps are others than planned"
        f" (KS distance {found['ks']:.2f}, limit {GAP_DISTANCE:.2f})"
    )
    if found["ks"] <= GAP_DISTANCE:
        message = (
            f"{percent(found['moved_share'])} of the sends were moved by more than"
            f" {_seconds(found['tolerance_s'])} against each other: they came in clumps (index of dispersion"
            f" {sent:.2g}, planned {planned:.2g})"
        )
    return reason(
        "arrivals_distorted",
        "SUSPECT",
        found["ks"] if found["ks"] > GAP_DISTANCE else sent,
        GAP_DISTANCE if found["ks"] > GAP_DISTANCE else planned + DISPERSION * max(1.0, planned),
        message,
        "this machine sends in clumps: move other work off it, or ask for a lower rate",
    )


def _closed_loop_stall(summary: Summary) -> Reason | None:
    found = summary["closed_loop"]
    if found is None or not found["stalls"]:
        return None
    measured, withheld, rate = summary["counts"]["measured"], found["withheld_requests"], found["rate_per_s"]
    if withheld <= WITHHELD_SHARE * measured:
        return None
    name = "ttft" if found["ttft_p99_corrected_s"] is not None else "e2e"
    p99, corrected = summary["metrics"][name]["p99"], found[f"{name}_p99_corrected_s"]
    would = ""
    if p99 is not None and corrected is not None and corrected > p99:
        would = f" (with it {name.upper()} p99 is at least {_seconds(corrected)}, not {_seconds(p99)})"
    times = "" if len(found["stalls"]) == 1 else f" in {len(found['stalls'])} stalls"
    waiting = max(stall["waiting"] for stall in found["stalls"])
    users = "a user" if waiting == 1 else f"{waiting:,} users"
    return reason(
        "closed_loop_stall",
        "SUSPECT",
        withheld / measured,
        WITHHELD_SHARE,
        f"for {_seconds(found['stalled_s'])}{times} nothing was sent while {users} waited: at the usual"
        f" {_rate(rate)} about {withheld:,} requests were never asked, and no percentile here holds their"
        f" wait{would}",
        f"measure with an open loop: load.arrivals: poisson, load.rate: {_rate(rate, 2).replace(',', '')}",
    )


CHECKS: tuple[Check, ...] = (_not_steady, _drift, _arrivals_distorted, _closed_loop_stall)
RULES = (
    Rule(
        code="not_steady",
        measured="when TTFT settled (MSER-5), where p50 or p95 are materially off without what came before",
        suspect=f"> {percent(WELL_INSIDE)} into the measured window",
        remedy="a longer `load.warmup`",
    ),
    Rule(
        code="drift",
        measured="change of TTFT or TPOT from the window's start to its end (Sen's slope) against its p50",
        suspect=f"≥ {percent(DRIFT_SHARE)}, and significant",
        remedy="a longer run; ask for less where a queue grows",
    ),
    Rule(
        code="arrivals_distorted",
        measured="KS distance of the gaps as sent and as planned; or index of dispersion above the planned",
        suspect=f"> {GAP_DISTANCE:g}; > {DISPERSION:g}, where over {percent(MOVED_SHARE)} of sends moved",
        remedy="ask for less, or give the client more of the machine",
    ),
    Rule(
        code="closed_loop_stall",
        measured="requests never asked while every user of a closed loop waited",
        suspect=f"> {percent(WITHHELD_SHARE)}",
        remedy="measure with an open loop (`load.arrivals: poisson`)",
    ),
)
