"""Whether requests are sent when they are due, and whether it is said when they are not, or wait unseen."""

from __future__ import annotations

import numpy as np

from llmbench.calibration.null_target import null_target
from llmbench.selftest.check import Check, at_least, at_most, near, same
from llmbench.selftest.measured import run_against, run_logged

_RATE, _SECONDS = 50, 2
_STALL_AT_S, _STALL_S = 1.0, 0.6


def known_schedule() -> list[Check]:
    """A constant rate: every send against the instant it was due."""
    name = "known schedule"
    load = {"arrivals": "constant", "rate": f"{_RATE}/s", "duration": f"{_SECONDS}s"}
    seen = run_logged(["--ttft", "20ms"], {"load": load})
    sent, due = (seen.columns.integers[f"{one}_ns"].values for one in ("sent", "due"))
    late_ms = (sent - due) / 1e6
    spacing = np.diff(due) / 1e6
    return [
        same(name, f"requests, {_RATE}/s for {_SECONDS} s", _RATE * _SECONDS, len(seen.pairs)),
        near(name, "planned gap, largest", 1000 / _RATE, float(spacing.max()), 0.001, "ms"),
        at_least(name, "send after due, earliest", 0, float(late_ms.min()), "ms"),
        at_most(name, "send after due, p50", 2, float(np.percentile(late_ms, 50)), "ms"),
        at_most(name, "send after due, p95", 5, float(np.percentile(late_ms, 95)), "ms"),
    ]


def stalled_server() -> list[Check]:
    """A server that stands still: requests go on being sent, and their wait is in the tail."""
    name = "a stall of the server (coordinated omission)"
    load = {"arrivals": "constant", "rate": "50/s", "duration": "3s"}
    flags = ["--ttft", "10ms", "--stall-at", f"{_STALL_AT_S}s", "--stall-for", f"{_STALL_S}s"]
    seen = run_logged(flags, {"load": load, "workload": _one_token()})
    due = seen.columns.integers["due_ns"].values
    sent = seen.columns.integers["sent_ns"].values - due[0]
    start, end = _STALL_AT_S * 1e9, (_STALL_AT_S + _STALL_S) * 1e9
    sent_meanwhile = int(((sent >= start) & (sent < end)).sum())
    # The wait falls evenly from the stall's length to nothing: the 1.5th of 150 waited nearly all of it.
    expected_ms = _STALL_S * 1e3 + 10 - 1.5 * 20
    return [
        near(name, "sent in the stall's 0.6 s", 50 * _STALL_S, sent_meanwhile, 2, ""),
        near(name, "TTFT from due, p99", expected_ms, seen.metric_ms("ttft_due", "p99"), 30, "ms"),
        near(name, "TTFT from due, p50", 10, seen.metric_ms("ttft_due", "p50"), 3, "ms"),
    ]


def buffering_proxy() -> list[Check]:
    """A stream that comes in one piece at its end is none, and is told."""
    name = "a buffering proxy"
    load = {"arrivals": "closed", "concurrency": 4, "requests": 12}
    # long enough to have been streamed: a short answer that comes at once may be a fast server's
    workload = {"kind": "inline", "prompts": ["Tell me more."], "output_tokens": 64}
    with null_target(["--ttft", "50ms", "--itl", "10ms", "--buffered"]) as url:
        seen = run_against(url, {"load": load, "workload": workload})
    return [
        same(name, "verdict", "SUSPECT", seen.summary["verdict"]["status"]),
        same(name, "its reason", "buffered", next((one for one in seen.reasons if one == "buffered"), None)),
    ]


def overloaded_client(most_requests_per_s: float) -> list[Check]:
    """A rate far beyond this client: the verdict says that it was not sent."""
    name = "an overloaded client"
    rate = max(2_000, round(4 * most_requests_per_s))
    load = {
        "arrivals": "constant",
        "rate": f"{rate}/s",
        "requests": round(rate * 0.4),
        "max_in_flight": 64,
        "drain_timeout": "3s",
    }
    with null_target(["--ttft", "1ms"]) as url:
        seen = run_against(url, {"load": load, "workload": _one_token()})
    told = [one for one in seen.reasons if one in ("client_late", "rate_not_met")]
    return [
        same(name, f"verdict at {rate:,}/s", "INVALID", seen.summary["verdict"]["status"]),
        Check(
            case=name,
            what="its reason",
            expected="late, or not met",
            measured=told[0] if told else "none",
            passed=bool(told),
        ),
    ]


def _one_token() -> dict[str, object]:
    return {"kind": "inline", "prompts": ["Tell me more."], "output_tokens": 1}
