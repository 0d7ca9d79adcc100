"""Whether a run's numbers can be believed: VALID, SUSPECT or INVALID, with reasons.

Each reason is a small pure function of the finished summary, so that a stored run can be judged again. A
reason gives what was measured, the limit, and what to do about it. INVALID: the figures describe something
else than the target. SUSPECT: they hold, with a caveat that a reader must know. One fact is one reason: what
is dropped is neither an error of the server nor late, and does not count again in the rate.

Send lag is held against TTFT, the shortest latency it touches. What is measured from the send is not longer
for it; what is measured from the due instant is, by all of it, and arrivals come otherwise than planned (a
burst is drawn apart, and its queue with it). Above 5 % of TTFT that is a caveat, SUSPECT. Above 20 % the load
was another one than the report says: INVALID.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

SEND_LAG_SHARE = 0.05  # of the TTFT p50: beyond it the client is part of what it measures
SEND_LAG_SHARE_INVALID = 0.20  # beyond it the arrivals are not those that were planned
SEND_LAG_FLOOR_S = 0.005  # what any machine with something else to do gives; TTFT does not hold it
RATE_SHARE = 0.98  # delivered of offered, by the client; what max_in_flight kept back is a reason of its own
RATE_SHARE_INVALID = 0.90
DROPPED_SHARE_INVALID = 0.10  # of the arrivals: beyond it the load was another one than asked for
ERROR_SHARE = 0.10  # of the requests that were sent: beyond it the successes are a selection
SHORT_OUTPUT_SHARE = 0.05  # of requests whose output ended well before the length asked for
INPUT_OFF_SHARE = 0.10  # of requests whose input is more than 10 % and 3 tokens off the length asked for
BUFFERED_SHARE = 0.10  # of streams that came in one piece
CACHED_SHARE = 0.05  # of input tokens served from a prefix cache that was not asked for

Summary = Mapping[str, Any]
Reason = dict[str, Any]


def judge_trust(summary: Summary) -> dict[str, Any]:
    """The `verdict` of summary.json; the gravest reasons first."""
    found = [reason for check in CHECKS if (reason := check(summary)) is not None]
    reasons = sorted(found, key=lambda reason: reason["severity"] != "INVALID")
    return {"status": reasons[0]["severity"] if reasons else "VALID", "reasons": reasons}


def _reason(code: str, severity: str, measured: Any, limit: Any, message: str, hint: str) -> Reason:
    return {
        "code": code,
        "severity": severity,
        "measured": measured,
        "limit": limit,
        "message": message,
        "hint": hint,
    }


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %" if share < 0.995 else f"{share * 100:.0f} %"


def _beyond(share: float, limit: float) -> str:
    """A share above its limit, with as many digits as it takes to tell the two apart: 5.02 %, not 5 %."""
    if share >= 0.995:
        return _percent(share)
    texts = [f"{share * 100:.{digits}g}" for digits in range(2, 17)]
    return next((text for text in texts if float(text) != limit * 100), texts[-1]) + " %"


def _nothing_succeeded(summary: Summary) -> Reason | None:
    if summary["counts"]["measured_outcomes"].get("ok", 0):
        return None
    if not summary["counts"]["measured"]:
        message, hint = "no request was measured", "make the run longer, or its warm-up shorter"
    else:
        message = f"none of {summary['counts']['measured']} measured requests succeeded"
        hint = "see the failures below, and try one request by hand"
    return _reason("nothing_succeeded", "INVALID", 0, 1, message, hint)


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
    return _reason(
        "client_late",
        "INVALID" if share > SEND_LAG_SHARE_INVALID else "SUSPECT",
        share,
        SEND_LAG_SHARE,
        f"send lag {stat} {lag * 1e3:.3g} ms, {_beyond(share, SEND_LAG_SHARE)} of TTFT p50 (limit 5 %)",
        "this machine cannot send so much on time: ask for a lower rate, or move other work off it",
    )


def _rate_not_met(summary: Summary) -> Reason | None:
    """What the client sent of what it could send: arrivals that max_in_flight kept back are told apart."""
    planned, sent = (summary["throughput"][f"{kind}_requests_per_s"] for kind in ("offered", "sent"))
    if not planned or sent is None:
        return None
    measured = summary["counts"]["measured"]
    offered = planned * (1 - _num_dropped(summary) / measured) if measured else 0.0
    if not offered:
        return None
    share = sent / offered
    missing = (offered - sent) * summary["window"]["duration_s"]
    # One or two requests slip over an edge of the window without meaning anything.
    if share >= RATE_SHARE or missing <= 2:
        return None
    severity = "INVALID" if share < RATE_SHARE_INVALID else "SUSPECT"
    return _reason(
        "rate_not_met",
        severity,
        share,
        RATE_SHARE,
        f"{sent:.4g}/s sent of {offered:.4g}/s planned",
        "this machine cannot send so much: ask for a lower rate, or move other work off it",
    )


def _num_dropped(summary: Summary) -> int:
    return int(summary["counts"]["measured_outcomes"].get("dropped", 0))


def _dropped(summary: Summary) -> Reason | None:
    dropped, measured = _num_dropped(summary), summary["counts"]["measured"]
    if not dropped:
        return None
    return _reason(
        "dropped_arrivals",
        "INVALID" if dropped / measured > DROPPED_SHARE_INVALID else "SUSPECT",
        dropped,
        0,
        f"{dropped} of {measured} arrivals were never sent: max_in_flight was reached",
        "the target is saturated; ask for a lower rate, or raise load.max_in_flight",
    )


def _errors(summary: Summary) -> Reason | None:
    dropped, errors = _num_dropped(summary), summary["errors"]
    num_sent = errors["attempts"] - dropped
    share = (errors["count"] - dropped) / num_sent if num_sent else 0.0
    if share <= ERROR_SHARE or not summary["counts"]["measured_outcomes"].get("ok", 0):
        return None
    return _reason(
        "many_errors",
        "SUSPECT",
        share,
        ERROR_SHARE,
        f"{_percent(share)} of the requests sent failed; latencies are over the others only",
        "read the attempts beside the successes: there failures count as infinitely slow",
    )


def _malformed(summary: Summary) -> Reason | None:
    count = summary["tokens"]["warnings"].get("malformed_event", 0)
    if not count:
        return None
    return _reason(
        "malformed_events",
        "SUSPECT",
        count,
        0,
        f"{count} answers held events that are not JSON; what they should have said is missing",
        "look at the stream with curl -N; a gateway may be wrapping comments or cutting lines",
    )


def _usage_missing(summary: Summary) -> Reason | None:
    sources = summary["tokens"]["sources"]
    by_events, known = sources.get("events", 0), sum(sources.values())
    if not by_events:
        return None
    return _reason(
        "usage_missing",
        "SUSPECT",
        by_events / known,
        0,
        f"{by_events} of {known} answers came without usage; their events were counted as tokens",
        "turn usage on in the server, or give target.tokenizer",
    )


def _tokens_disagree(summary: Summary) -> Reason | None:
    share = summary["tokens"]["disagreement"]
    if not share or share <= 0.01:
        return None
    return _reason(
        "tokens_disagree",
        "SUSPECT",
        share,
        0.01,
        f"{_percent(share)} of answers had more output events than their usage says tokens",
        "per-token times follow the usage; compare with target.tokenizer",
    )


def _output_short(summary: Summary) -> Reason | None:
    share = summary["tokens"]["asked"]["short_output_share"]
    if share is None or share <= SHORT_OUTPUT_SHARE:
        return None
    return _reason(
        "output_short",
        "SUSPECT",
        share,
        SHORT_OUTPUT_SHARE,
        f"{_percent(share)} of answers ended before the output length asked for",
        "the server stops early; set target.ignore_eos: true where it has that, or ask for less",
    )


def _input_deviates(summary: Summary) -> Reason | None:
    share = summary["tokens"]["asked"]["input_off_share"]
    if share is None or share <= INPUT_OFF_SHARE:
        return None
    return _reason(
        "input_length",
        "SUSPECT",
        share,
        INPUT_OFF_SHARE,
        f"{_percent(share)} of inputs were more than 10 % longer or shorter than asked for",
        "give target.tokenizer, or lengths above what the chat template adds",
    )


def _buffered(summary: Summary) -> Reason | None:
    share = summary["tokens"]["buffered_share"]
    if share is None or share <= BUFFERED_SHARE:
        return None
    return _reason(
        "buffered",
        "SUSPECT",
        share,
        BUFFERED_SHARE,
        f"{_percent(share)} of streams came in one piece at their end: TTFT and ITL are not the server's",
        "a proxy buffers the stream; turn its buffering off, or measure past it",
    )


def _cache_hits(summary: Summary) -> Reason | None:
    share = summary["tokens"]["cached_share"]
    if share is None or share <= CACHED_SHARE or summary["run"]["cache_hits_expected"]:
        return None
    return _reason(
        "cache_hits",
        "SUSPECT",
        share,
        CACHED_SHARE,
        f"{_percent(share)} of input tokens came from the server's prefix cache, which was not asked for",
        "say workload.cache: warm if that is meant, or restart the server",
    )


def _interrupted(summary: Summary) -> Reason | None:
    run = summary["run"]
    if not (run["interrupted"] or run["killed"]):
        return None
    counts = summary["counts"]
    ended = counts["planned"] - counts["cancelled"]
    message = "the run was interrupted" if run["interrupted"] else "the run was killed before it ended"
    return _reason(
        "interrupted",
        "SUSPECT",
        ended / counts["planned"] if counts["planned"] else 0.0,
        1,
        f"{message}: {ended} of {counts['planned']} planned requests ended",
        "run it again to the end before comparing it with another run",
    )


CHECKS: tuple[Callable[[Summary], Reason | None], ...] = (
    _nothing_succeeded,
    _client_late,
    _rate_not_met,
    _interrupted,
    _dropped,
    _errors,
    _buffered,
    _malformed,
    _usage_missing,
    _tokens_disagree,
    _output_short,
    _input_deviates,
    _cache_hits,
)
