"""Whether the streams were streams."""

from __future__ import annotations

from llmbench.trust.reason import Check, Reason, Summary, percent, reason

BUFFERED_SHARE = 0.10  # of streams that came in one piece


def _buffered(summary: Summary) -> Reason | None:
    share = summary["tokens"]["buffered_share"]
    if share is None or share <= BUFFERED_SHARE:
        return None
    return reason(
        "buffered",
        "SUSPECT",
        share,
        BUFFERED_SHARE,
        f"{percent(share)} of streams came in one piece at their end: TTFT and ITL are not the server's",
        "a proxy buffers the stream; turn its buffering off, or measure past it",
    )


CHECKS: tuple[Check, ...] = (_buffered,)
