"""Whether the streams were streams (see `authenticity` for what is told apart, and how).

What comes in one piece tells no time between tokens, and a TTFT that is the time of the whole answer. That is
late, never early, and what a user behind the same proxy sees: SUSPECT. A limit on the time between tokens,
however, is then met by every server: INVALID where nearly all streams are like that and such a limit is set.

An interval of several tokens is no fault. It is a reason only where a limit is set on ITL, which is then an
average over the interval. Several tokens at a time in varying number (speculative decoding) are never one.
"""

from __future__ import annotations

from typing import Any

from llmbench.trust.reason import Check, Reason, Rule, Summary, limits_on, percent, reason

ONE_PIECE_SHARE = 0.10  # of the streams
ONE_PIECE_SHARE_INVALID = 0.90  # with a limit on the time between tokens
WHOLE_ANSWER_SHARE = 0.90  # of E2E: a TTFT beyond it is that of the whole answer
BLOCKS_SHARE = 0.10  # of the streams

_BETWEEN_TOKENS = ("tpot", "itl", "chunk_gap")


def _buffered(summary: Summary) -> Reason | None:
    """Several events, all at the end."""
    streams = summary["streams"]
    one_event = streams["one_event_share"] or 0.0
    share = streams["shares"].get("one_piece", 0.0) - one_event
    if share <= ONE_PIECE_SHARE:
        return None
    return _in_one_piece(
        "buffered",
        share,
        summary,
        f"{percent(share)} of streams came in one piece at their end",
        "a proxy holds them back (nginx: proxy_buffering off, or the header X-Accel-Buffering: no), or the "
        "server only pretends to stream: measure past the proxy, or read E2E alone",
    )


def _fake_streaming(summary: Summary) -> Reason | None:
    """One event with everything: no proxy joins events."""
    share = summary["streams"]["one_event_share"]
    if share is None or share <= ONE_PIECE_SHARE:
        return None
    return _in_one_piece(
        "fake_streaming",
        share,
        summary,
        f"{percent(share)} of streams held (nearly) the whole answer in one event",
        "whoever makes the events does not stream, or has an interval as long as the answers: turn streaming "
        "on there, or read E2E alone",
    )


def _in_one_piece(code: str, share: float, summary: Summary, what: str, hint: str) -> Reason:
    limited = limits_on(summary, *_BETWEEN_TOKENS)
    begins_late = (summary["streams"]["one_piece_ttft_share"] or 0.0) >= WHOLE_ANSWER_SHARE
    is_invalid = bool(limited) and begins_late and share >= ONE_PIECE_SHARE_INVALID
    means = "their TTFT is the time of the whole answer, their TPOT and ITL say nothing"
    if not begins_late:
        means = "but for a first token, their ITL says nothing"
    if is_invalid:
        means += f", and a limit on {' and '.join(limited)} is met by any server"
    severity = "INVALID" if is_invalid else "SUSPECT"
    return reason(code, severity, share, ONE_PIECE_SHARE, f"{what}: {means}", hint)


def _too_fast_to_tell(summary: Summary) -> Reason | None:
    """At once, yet nobody can say that it was held back."""
    streams = summary["streams"]
    share, lag = streams["shares"].get("at_once", 0.0), streams["client_lag_s"]
    if share <= ONE_PIECE_SHARE:
        return None
    late = "" if lag is None else f" (late by {lag * 1e3:.2g} ms at p99)"
    return reason(
        "too_fast_to_tell",
        "SUSPECT",
        share,
        ONE_PIECE_SHARE,
        f"{percent(share)} of streams came at once: written too fast for this client{late} to see the tokens "
        "apart, or held back; their TPOT and ITL say nothing",
        "ask for longer answers (workload.output_tokens), or read E2E alone",
    )


def _in_blocks(summary: Summary) -> Reason | None:
    streams = summary["streams"]
    share, blocks = streams["shares"].get("blocks", 0.0), streams["blocks"]
    if blocks is None or share <= BLOCKS_SHARE:
        return None
    return reason(
        "buffered_in_blocks",
        "SUSPECT",
        share,
        BLOCKS_SHARE,
        f"{percent(share)} of streams came in {block_words(blocks)}: TTFT is up to a block late, ITL is that "
        "of blocks",
        "a proxy or TLS terminator fills a buffer first (nginx: proxy_buffering off), or the server sends "
        "several tokens at once: measure past the proxy, or read TPOT instead of ITL",
    )


def block_words(blocks: dict[str, Any]) -> str:
    """In words: blocks of about 20 events (4.1 KB), one every 204 ms."""
    size = "" if blocks["bytes"] is None else f" ({blocks['bytes'] / 1024:.2g} KiB)"
    return f"blocks of about {blocks['events']:.0f} events{size}, one every {blocks['every_s'] * 1e3:.3g} ms"


def _in_intervals(summary: Summary) -> Reason | None:
    streams = summary["streams"]
    limited = limits_on(summary, "itl", "chunk_gap")
    if streams["kind"] != "intervals" or not limited:
        return None
    size = streams["tokens_per_event"]["interval"]
    return reason(
        "stream_interval",
        "SUSPECT",
        size,
        1,
        f"the server sends an event every {size} tokens: ITL is an average over {size}, its tail too short, "
        f"and there is a limit on {' and '.join(limited)}",
        "have the server send each token (vLLM, SGLang: --stream-interval 1), or set the limit on tpot",
    )


CHECKS: tuple[Check, ...] = (_buffered, _fake_streaming, _too_fast_to_tell, _in_blocks, _in_intervals)

_INVALID = (
    f"≥ {percent(ONE_PIECE_SHARE_INVALID)} with a limit on {', '.join(_BETWEEN_TOKENS)}, "
    f"their TTFT ≥ {percent(WHOLE_ANSWER_SHARE)} of E2E"
)
RULES = (
    Rule(
        code="buffered",
        measured="streams whose events came together at their end, faster than any model writes",
        suspect=f"> {percent(ONE_PIECE_SHARE)}",
        invalid=_INVALID,
        remedy="turn the proxy's buffering off, measure past it, or read E2E alone",
    ),
    Rule(
        code="fake_streaming",
        measured="streams with (nearly) the whole answer in one event",
        suspect=f"> {percent(ONE_PIECE_SHARE)}",
        invalid=_INVALID,
        remedy="have the server stream, or read E2E alone",
    ),
    Rule(
        code="too_fast_to_tell",
        measured="streams that came at once, and may have been written as fast",
        suspect=f"> {percent(ONE_PIECE_SHARE)}",
        remedy="ask for longer answers, or read E2E alone",
    ),
    Rule(
        code="buffered_in_blocks",
        measured="streams in groups of equal size, with pauses that the client's lag does not explain",
        suspect=f"> {percent(BLOCKS_SHARE)}",
        remedy="turn the proxy's buffering off, or read TPOT instead of ITL",
    ),
    Rule(
        code="stream_interval",
        measured="tokens in each event, the same number in all",
        suspect="> 1 with a limit on itl or chunk_gap",
        remedy="have the server send each token, or set the limit on tpot",
    ),
)
