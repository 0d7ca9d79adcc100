"""Whether the answers were those asked for, and their tokens counted."""

from __future__ import annotations

from llmbench.trust.reason import Check, Reason, Summary, percent, reason

SHORT_OUTPUT_SHARE = 0.05  # of requests whose output ended well before the length asked for
INPUT_OFF_SHARE = 0.10  # of requests whose input is more than 10 % and 3 tokens off the length asked for
CACHED_SHARE = 0.05  # of input tokens served from a prefix cache that was not asked for


def _malformed(summary: Summary) -> Reason | None:
    count = summary["tokens"]["warnings"].get("malformed_event", 0)
    if not count:
        return None
    return reason(
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
    return reason(
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
    return reason(
        "tokens_disagree",
        "SUSPECT",
        share,
        0.01,
        f"{percent(share)} of answers had more output events than their usage says tokens",
        "per-token times follow the usage; compare with target.tokenizer",
    )


def _output_short(summary: Summary) -> Reason | None:
    share = summary["tokens"]["asked"]["short_output_share"]
    if share is None or share <= SHORT_OUTPUT_SHARE:
        return None
    return reason(
        "output_short",
        "SUSPECT",
        share,
        SHORT_OUTPUT_SHARE,
        f"{percent(share)} of answers ended before the output length asked for",
        "the server stops early; set target.ignore_eos: true where it has that, or ask for less",
    )


def _input_deviates(summary: Summary) -> Reason | None:
    share = summary["tokens"]["asked"]["input_off_share"]
    if share is None or share <= INPUT_OFF_SHARE:
        return None
    return reason(
        "input_length",
        "SUSPECT",
        share,
        INPUT_OFF_SHARE,
        f"{percent(share)} of inputs were more than 10 % longer or shorter than asked for",
        "give target.tokenizer, or lengths above what the chat template adds",
    )


def _cache_hits(summary: Summary) -> Reason | None:
    share = summary["tokens"]["cached_share"]
    if share is None or share <= CACHED_SHARE or summary["run"]["cache_hits_expected"]:
        return None
    return reason(
        "cache_hits",
        "SUSPECT",
        share,
        CACHED_SHARE,
        f"{percent(share)} of input tokens came from the server's prefix cache, which was not asked for",
        "say workload.cache: warm if that is meant, or restart the server",
    )


CHECKS: tuple[Check, ...] = (
    _malformed,
    _usage_missing,
    _tokens_disagree,
    _output_short,
    _input_deviates,
    _cache_hits,
)
