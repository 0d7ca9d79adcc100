"""Whether the answers were those asked for, and their tokens counted."""

from __future__ import annotations

from typing import Any

from llmbench.trust.reason import Check, Reason, Rule, Summary, percent, reason, setting

SHORT_OUTPUT = 0.95  # of the length asked for; a few tokens of slack for stop strings and special tokens
LONG_OUTPUT = 1.05
INPUT_OFF = 0.10  # of the length asked for
SLACK_TOKENS = 3  # by which an input may differ, and an output be too long, however short

SHORT_OUTPUT_SHARE = 0.05  # of requests whose output ended well before the length asked for
LONG_OUTPUT_SHARE = 0.05  # of requests whose output went on beyond it
INPUT_OFF_SHARE = 0.10  # of requests whose input is off the length asked for
CACHED_SHARE = 0.05  # of input tokens served from a prefix cache that was not asked for
DISAGREEMENT_SHARE = 0.01  # of answers with more events than tokens

_LENGTH_KEYS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "stop")
_AS_GIVEN = ("inline", "jsonl")  # workloads whose prompts are sent word for word


def _malformed(summary: Summary) -> Reason | None:
    count = summary["tokens"]["warnings"].get("malformed_event", 0)
    if not count:
        return None
    return reason(
        "malformed_events",
        "SUSPECT",
        count,
        0,
        f"{count} {'answer' if count == 1 else 'answers'} held events that are not JSON; what they should "
        "have said is missing",
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
        _where_usage_is(summary),
    )


def _where_usage_is(summary: Summary) -> str:
    if setting(summary, "usage") is False:
        return "set target.usage: true, if the server takes stream_options"
    if "stream_options" in (setting(summary, "body_keys") or ()):
        return "target.body sets stream_options, which wins: add include_usage: true to it"
    return "turn usage on in the server or gateway; until then figures per token are figures per event"


def _tokens_disagree(summary: Summary) -> Reason | None:
    share = summary["tokens"]["disagreement"]
    if not share or share <= DISAGREEMENT_SHARE:
        return None
    return reason(
        "tokens_disagree",
        "SUSPECT",
        share,
        DISAGREEMENT_SHARE,
        f"{percent(share)} of answers had more output events than their usage says tokens",
        "figures per token follow the usage: find out which of the two the server has wrong",
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
        _longer(summary),
    )


def _longer(summary: Summary) -> str:
    """How to get longer answers, given what was tried: `ignore_eos` as asked for, and as sent."""
    if keys := _own_length_keys(summary):
        return f"target.body sets {keys}, which wins over workload.output_tokens: remove it"
    asked, sent = setting(summary, "ignore_eos_asked"), setting(summary, "ignore_eos")
    if sent:
        return (
            "the server stops early although ignore_eos was sent: it ignores it, or has a limit; ask for less"
        )
    if asked is False:
        return (
            "the model stops by itself: set target.ignore_eos: true where the server has it, or ask for less"
        )
    if asked == "auto":
        return "the model stops by itself, and the server refuses ignore_eos: ask for less"
    return "the server stops early; set target.ignore_eos: true where it has that, or ask for less"


def _own_length_keys(summary: Summary) -> str:
    return " and ".join(key for key in _LENGTH_KEYS if key in (setting(summary, "body_keys") or ()))


def _output_long(summary: Summary) -> Reason | None:
    share = summary["tokens"]["asked"].get("long_output_share")
    if share is None or share <= LONG_OUTPUT_SHARE:
        return None
    keys = _own_length_keys(summary)
    return reason(
        "output_long",
        "SUSPECT",
        share,
        LONG_OUTPUT_SHARE,
        f"{percent(share)} of answers were longer than the output length asked for",
        f"target.body sets {keys}, which wins over workload.output_tokens: remove it"
        if keys
        else "the server ignores max_tokens, or counts other tokens in (reasoning): see whether it takes "
        "another key, to be set in target.body",
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
        f"{percent(share)} of inputs were more than {percent(INPUT_OFF)} longer or shorter than asked for",
        "target.tokenizer is not the server's, or the server adds text of its own: leave it out, and the "
        "server's counts are used"
        if setting(summary, "tokenizer")
        else "give target.tokenizer, or lengths above what the chat template adds",
    )


def _cache_hits(summary: Summary) -> Reason | None:
    share = summary["tokens"]["cached_share"]
    if share is None or share <= CACHED_SHARE or summary["run"]["cache_hits_expected"]:
        return None
    kinds: Any = setting(summary, "workload_kinds") or ()
    return reason(
        "cache_hits",
        "SUSPECT",
        share,
        CACHED_SHARE,
        f"{percent(share)} of input tokens came from the server's prefix cache, which was not asked for",
        "the prompts given repeat, or begin alike: give more of them, or say workload.cache: warm if that is "
        "meant"
        if set(kinds) & set(_AS_GIVEN)
        else "say workload.cache: warm if that is meant; else turn the server's prefix cache off: it adds a "
        "beginning of its own, or has seen these prompts",
    )


CHECKS: tuple[Check, ...] = (
    _malformed,
    _usage_missing,
    _tokens_disagree,
    _output_short,
    _output_long,
    _input_deviates,
    _cache_hits,
)

RULES = (
    Rule(
        code="malformed_events",
        measured="answers with events that are not JSON",
        suspect="> 0",
        remedy="look at the stream with `curl -N`",
    ),
    Rule(
        code="usage_missing",
        measured="answers without token counts",
        suspect="> 0",
        remedy="turn usage on, here (`target.usage`) or in the server",
    ),
    Rule(
        code="tokens_disagree",
        measured="answers with more events than their usage says tokens",
        suspect=f"> {percent(DISAGREEMENT_SHARE)}",
        remedy="find out which of the two is wrong",
    ),
    Rule(
        code="output_short",
        measured=f"answers shorter than {percent(SHORT_OUTPUT)} of the output length asked for",
        suspect=f"> {percent(SHORT_OUTPUT_SHARE)}",
        remedy="`target.ignore_eos: true` where the server has it, or ask for less",
    ),
    Rule(
        code="output_long",
        measured=f"answers longer than the output length asked for, by more than {percent(LONG_OUTPUT - 1)} "
        f"and {SLACK_TOKENS} tokens",
        suspect=f"> {percent(LONG_OUTPUT_SHARE)}",
        remedy="the server ignores `max_tokens`: find the key that it takes",
    ),
    Rule(
        code="input_length",
        measured=f"inputs more than {percent(INPUT_OFF)} and {SLACK_TOKENS} tokens off the length asked for",
        suspect=f"> {percent(INPUT_OFF_SHARE)}",
        remedy="the server's own `target.tokenizer`, or longer inputs",
    ),
    Rule(
        code="cache_hits",
        measured="input tokens from a prefix cache, where the scenario asks for none",
        suspect=f"> {percent(CACHED_SHARE)}",
        remedy="`workload.cache: warm` if that is meant, else more different prompts",
    ),
)
