"""How much of a load can be measured on this machine, with the null target beside the client."""

from __future__ import annotations

import time

import numpy as np

from llmbench.calibration.null_target import null_target
from llmbench.selftest.check import Ceiling
from llmbench.selftest.measured import Measured, run_against, run_logged

_GOOD_MS = 2.0
_MOST_STREAMS = 4096
_FIRST_STREAMS = 64
_GAP_S = 0.1


def most_requests() -> Ceiling:
    """Answers of one token, one after the other on 32 connections."""
    with null_target([]) as url:
        seen = run_against(
            url,
            {
                "load": {"arrivals": "closed", "concurrency": 32, "duration": "1500ms", "warmup": "200ms"},
                "workload": {"kind": "inline", "prompts": ["Tell me more."], "output_tokens": 1},
            },
        )
    rate = seen.summary["throughput"]["requests_per_s"] or 0.0
    return Ceiling(what="requests", value=rate, unit="requests/s", note="one-token answers, 32 at a time")


def most_events() -> Ceiling:
    """Answers whose events come back to back."""
    with null_target([]) as url:
        seen = run_against(
            url,
            {
                "load": {"arrivals": "closed", "concurrency": 8, "duration": "1500ms", "warmup": "200ms"},
                "workload": {"kind": "inline", "prompts": ["Tell me more."], "output_tokens": 500},
            },
        )
    rate = seen.summary["throughput"]["output_tokens_per_s"] or 0.0
    return Ceiling(what="events", value=rate, unit="events/s", note="as fast as the null target sends them")


def most_streams(until_s: float) -> Ceiling:
    """Streams of a token every 100 ms, doubled while TTFT p99 is right to 2 ms and there is time.

    Measured is the second answer on each. `until_s` is an instant of the monotonic clock.
    """
    streams, good, note = _FIRST_STREAMS, 0, "TTFT p99 right to 2 ms; more were not tried"
    longest_s = 0.0
    while streams <= _MOST_STREAMS and time.monotonic() + 1.6 * longest_s < until_s:
        began_s = time.monotonic()
        error_ms = ttft_error_ms(_streams(streams))
        longest_s = time.monotonic() - began_s
        if error_ms is None or error_ms > _GOOD_MS:
            said = "unknown" if error_ms is None else f"{error_ms:.2g} ms"
            note = f"TTFT p99 right to 2 ms; at {streams:,} off by {said}"
            break
        good, streams = streams, 2 * streams
    return Ceiling(what="streams", value=float(good), unit="streams", note=note)


def _streams(streams: int) -> Measured:
    return run_logged(
        ["--ttft", "200ms", "--itl", f"{_GAP_S * 1e3:.0f}ms"],
        {
            "load": {"arrivals": "closed", "concurrency": streams, "requests": streams, "warmup": "300ms"},
            "workload": {"kind": "inline", "prompts": ["Tell me more."], "output_tokens": 6},
        },
    )


def ttft_error_ms(seen: Measured) -> float | None:
    """How far TTFT p99 is from the server's log; None where too few requests succeeded."""
    if len(seen.pairs) < seen.summary["counts"]["measured"] * 0.99:
        return None
    reported, true = (
        np.percentile([(end[1] - end[0]) / 1e6 for end in ends], 99)
        for ends in ([pair.reported for pair in seen.pairs], [pair.true for pair in seen.pairs])
    )
    return float(abs(reported - true))
