"""Whether what was asked for was sent, and came to something.

Send lag is held against TTFT, the shortest latency it touches. What is measured from the send is not longer
for it; what is measured from the due instant is, by all of it, and arrivals come otherwise than planned (a
burst is drawn apart, and its queue with it). Above 5 % of TTFT that is a caveat, SUSPECT. Above 20 % the load
was another one than the report says: INVALID.
"""

from __future__ import annotations

from llmbench.trust.failures import remedy_for
from llmbench.trust.reason import (
    Check,
    Reason,
    Rule,
    Summary,
    beyond,
    less_load,
    percent,
    reason,
    was_cut_short,
)

SEND_LAG_SHARE = 0.05  # of the TTFT p50: beyond it the client is part of what it measures
SEND_LAG_SHARE_INVALID = 0.20  # beyond it the arrivals are not those that were planned
SEND_LAG_FLOOR_S = 0.005  # what any machine with something else to do gives; TTFT does not hold it
RATE_SHARE = 0.98  # delivered of offered, by the client; what max_in_flight kept back is a reason of its own
RATE_SHARE_INVALID = 0.90
DROPPED_SHARE_INVALID = 0.10  # of the arrivals: beyond it the load was another one than asked for
ERROR_SHARE = 0.10  # of the requests that were sent: beyond it the successes are a selection


def _nothing_succeeded(summary: Summary) -> Reason | None:
    if summary["counts"]["measured_outcomes"].get("ok", 0):
        return None
    measured = summary["counts"]["measured"]
    if measured:
        message = f"none of {measured} measured requests succeeded"
        hint = remedy_for(summary) or "try one request by hand"
    elif was_cut_short(summary):
        message, hint = "no request had been measured when the run ended", "let it run to its end"
    else:
        message, hint = "no request was measured", "make the run longer, or its warm-up shorter"
    return reason("nothing_succeeded", "INVALID", 0, 1, message, hint)


def _client_late(summary: Summary) -> Reason | None:
    """The tail of the send lag against TTFT; with few requests, the highest percentile they support."""
    lags, ttft = summary["metrics"]["send_lag"], summary["metrics"]["ttft"]["p50"]
    stat = next((name for name in ("p99", "p95", "p90", "p50") if lags[name] is not None), None)
    if stat is None or not ttft:
        return None
    lag = lags[stat]
    if lag <= max(SEND_LAG_SHARE * ttft, SEND_LAG_FLOOR_S):
        return None
    share = lag / ttft
    return reason(
        "client_late",
        "INVALID" if share > SEND_LAG_SHARE_INVALID else "SUSPECT",
        share,
        SEND_LAG_SHARE,
        f"send lag {stat} {lag * 1e3:.3g} ms, {beyond(share, SEND_LAG_SHARE)} of TTFT p50 "
        f"(limit {percent(SEND_LAG_SHARE)})",
        _sending_more(summary),
    )


def _sending_more(summary: Summary) -> str:
    """How to send more in time: with cores that lie idle, else with less to do."""
    workers, most = summary["instrument"]["workers"], summary["instrument"].get("workers_at_most")
    if workers is not None and most is not None and workers < most:
        return (
            f"send with another core (--set instrument.workers={workers + 1}), {less_load(summary)}, or move "
            "other work off this machine"
        )
    return f"this machine cannot send so much on time: {less_load(summary)}, or move other work off it"


def _rate_not_met(summary: Summary) -> Reason | None:
    """What the client sent of what it could send: arrivals that max_in_flight kept back are told apart, and
    so are those that the target gave no connection.
    """
    planned, sent = (summary["throughput"][f"{kind}_requests_per_s"] for kind in ("offered", "sent"))
    if not planned or sent is None:
        return None
    measured = summary["counts"]["measured"]
    unsendable = _num_dropped(summary) + summary["counts"]["measured_not_connected"]
    offered = planned * (1 - unsendable / measured) if measured else 0.0
    if not offered:
        return None
    share = sent / offered
    missing = (offered - sent) * summary["window"]["duration_s"]
    # One or two requests slip over an edge of the window without meaning anything.
    if share >= RATE_SHARE or missing <= 2:
        return None
    severity = "INVALID" if share < RATE_SHARE_INVALID else "SUSPECT"
    return reason(
        "rate_not_met",
        severity,
        share,
        RATE_SHARE,
        f"{sent:.4g}/s sent of {offered:.4g}/s planned",
        _sending_more(summary),
    )


def _num_dropped(summary: Summary) -> int:
    return int(summary["counts"]["measured_outcomes"].get("dropped", 0))


def _dropped(summary: Summary) -> Reason | None:
    dropped, measured = _num_dropped(summary), summary["counts"]["measured"]
    if not dropped:
        return None
    most = summary["run"].get("max_in_flight")
    reached = "max_in_flight was reached" if most is None else f"{most} were in flight (load.max_in_flight)"
    return reason(
        "dropped_arrivals",
        "INVALID" if dropped / measured > DROPPED_SHARE_INVALID else "SUSPECT",
        dropped,
        0,
        f"{dropped} of {measured} arrivals were never sent: {reached}",
        f"the target answers more slowly than requests arrive: {less_load(summary)}, or raise "
        "load.max_in_flight",
    )


def _errors(summary: Summary) -> Reason | None:
    dropped, errors = _num_dropped(summary), summary["errors"]
    num_sent = errors["attempts"] - dropped
    share = (errors["count"] - dropped) / num_sent if num_sent else 0.0
    if share <= ERROR_SHARE or not summary["counts"]["measured_outcomes"].get("ok", 0):
        return None
    return reason(
        "many_errors",
        "SUSPECT",
        share,
        ERROR_SHARE,
        f"{percent(share)} of the requests sent failed; latencies are over the others only",
        remedy_for(summary) or "read the attempts beside the successes: there failures are infinitely slow",
    )


def _interrupted(summary: Summary) -> Reason | None:
    run = summary["run"]
    if not was_cut_short(summary):
        return None
    counts = summary["counts"]
    ended = counts["planned"] - counts["cancelled"]
    message = "the run was interrupted" if run["interrupted"] else "the run was killed before it ended"
    return reason(
        "interrupted",
        "SUSPECT",
        ended / counts["planned"] if counts["planned"] else 0.0,
        1,
        f"{message}: {ended} of {counts['planned']} planned requests ended",
        "run it again to the end before comparing it with another run",
    )


CHECKS: tuple[Check, ...] = (_nothing_succeeded, _client_late, _rate_not_met, _interrupted, _dropped, _errors)

RULES = (
    Rule(
        code="nothing_succeeded",
        measured="measured requests that succeeded",
        invalid="0",
        remedy="as for `many_errors`; where none was measured, a longer run",
    ),
    Rule(
        code="client_late",
        measured=f"send lag p99 against TTFT p50, from {SEND_LAG_FLOOR_S * 1e3:g} ms on",
        suspect=f"> {percent(SEND_LAG_SHARE)}",
        invalid=f"> {percent(SEND_LAG_SHARE_INVALID)}",
        remedy="ask for less, or give the client more of the machine",
    ),
    Rule(
        code="rate_not_met",
        measured="requests sent in the window, of those planned in it that could be sent",
        suspect=f"< {percent(RATE_SHARE)}",
        invalid=f"< {percent(RATE_SHARE_INVALID)}",
        remedy="ask for less, or give the client more of the machine",
    ),
    Rule(
        code="interrupted",
        measured="planned requests that ended before the run was interrupted or killed",
        suspect="any",
        remedy="run it again to the end",
    ),
    Rule(
        code="dropped_arrivals",
        measured="arrivals that were never sent, because of `load.max_in_flight`",
        suspect="> 0",
        invalid=f"> {percent(DROPPED_SHARE_INVALID)}",
        remedy="ask for less, or raise `load.max_in_flight`",
    ),
    Rule(
        code="many_errors",
        measured="failures among the requests sent",
        suspect=f"> {percent(ERROR_SHARE)}",
        remedy="by the most frequent failure: 429: ask for less; 401: `target.api_key`; 404: `target.model`, "
        "`target.api`; 5xx: the server's log; timeout: `target.timeout`; broken off: a proxy's timeout",
    ),
)
