"""Everything the mock can be told, once: field names, defaults, how each is read, and the text of its
flag.

`Behaviour` holds what one request may override through the body key `mock`; `MockOptions` adds what
belongs to the server as a whole. Flags (`llmbench mock`, `python -m llmbench.mock`) are derived from these
fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from llmbench.mock import values
from llmbench.mock.faults import KINDS, Fault, read_fault


def _flag(
    default: object, read: values.Reader, metavar: str, text: str, *, group: str, flag: str = ""
) -> Any:
    meta = {"read": read, "metavar": metavar, "text": text, "group": group, "flag": flag}
    return dataclasses.field(default=default, metadata=meta)


MOST_TOKENS = 10_000_000
_ANSWER, _TIMING, _STREAM, _FAULTS, _SERVER = "answer", "timing", "stream format", "faults", "server"
_LOAD, _TRUTH = "load", "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How one request is answered. Times in seconds."""

    tokens: int = _flag(
        128,
        values.whole(0, MOST_TOKENS),
        "N",
        "output tokens where the request sets no maximum",
        group=_ANSWER,
    )
    ignore_max: bool = _flag(
        False, values.boolean, "", "always --tokens, whatever maximum the request sets", group=_ANSWER
    )
    stop_after: int | None = _flag(
        None,
        values.optional(values.whole(0)),
        "N",
        "stop by itself after N tokens unless the request has ignore_eos",
        group=_ANSWER,
    )
    finish_reason: str = _flag(
        "auto",
        values.text,
        "REASON",
        "finish_reason; auto: length at the request's maximum, else stop",
        group=_ANSWER,
    )
    answer: str = _flag(
        "text",
        values.one_of("text", "tool", "refusal"),
        "KIND",
        "text, tool (a tool call) or refusal",
        group=_ANSWER,
    )
    reasoning_tokens: int = _flag(
        0, values.whole(0, MOST_TOKENS), "N", "the first N tokens are reasoning", group=_ANSWER
    )
    reasoning_field: str = _flag(
        "reasoning_content",
        values.one_of("reasoning_content", "reasoning"),
        "NAME",
        "chat field of the reasoning: reasoning_content or reasoning",
        group=_ANSWER,
    )
    text: str = _flag(
        "ascii",
        values.one_of("ascii", "unicode"),
        "KIND",
        "ascii words, or unicode: words with CJK, emoji, U+2028 and U+0085 in them",
        group=_ANSWER,
    )
    cached_tokens: int | None = _flag(
        None,
        values.optional(values.whole(0)),
        "N",
        "prompt tokens taken from a cache: told in usage and free of prefill time",
        group=_ANSWER,
    )
    seed: int = _flag(
        0,
        values.whole(0, 2**63 - 1),
        "N",
        "seed of the text, of the random delays and of the faults",
        group=_ANSWER,
    )

    ttft_s: float = _flag(
        0.0,
        values.finite_s,
        "TIME",
        "time to the first token; or lognormal:MEAN:SIGMA",
        group=_TIMING,
        flag="ttft",
    )
    ttft_sigma: float = _flag(
        0.0, values.sigma, "SIGMA", "spread of the time to the first token in log space", group=_TIMING
    )
    itl_s: float = _flag(
        0.0,
        values.finite_s,
        "TIME",
        "gap between tokens; or lognormal:MEAN:SIGMA",
        group=_TIMING,
        flag="itl",
    )
    itl_sigma: float = _flag(0.0, values.sigma, "SIGMA", "spread of that gap in log space", group=_TIMING)
    prefill_tokens_per_s: float | None = _flag(
        None,
        values.optional(values.number(0.001, 1e12)),
        "RATE",
        "adds prompt tokens / RATE seconds to the time to the first token",
        group=_TIMING,
    )
    tokens_per_chunk: int = _flag(
        1, values.whole(1, MOST_TOKENS), "K", "tokens in one event (gap K times --itl)", group=_TIMING
    )
    tokens_per_chunk_max: int | None = _flag(
        None,
        values.optional(values.whole(1, MOST_TOKENS)),
        "K",
        "each event holds a random number of tokens from --tokens-per-chunk to K, as speculation gives",
        group=_TIMING,
    )
    events_per_send: int = _flag(
        1, values.whole(1, MOST_TOKENS), "K", "events handed to one send (gap K chunks)", group=_TIMING
    )
    buffered: bool = _flag(
        False,
        values.boolean,
        "",
        "headers at once, then the whole stream in one piece at its end",
        group=_TIMING,
    )
    hold_bytes: int | None = _flag(
        None,
        values.optional(values.whole(1)),
        "B",
        "hold the stream back until B bytes are there, as a proxy's buffer does",
        group=_TIMING,
    )
    split_bytes: int | None = _flag(
        None,
        values.optional(values.whole(1)),
        "B",
        "tear every send into pieces of B bytes",
        group=_TIMING,
        flag="split",
    )

    role_chunk: str = _flag(
        "first",
        values.one_of("none", "early", "first"),
        "WHEN",
        "chat chunk that carries only the role: none, early (at once) or first (with the first token)",
        group=_STREAM,
    )
    head: str = _flag(
        "early",
        values.one_of("early", "first"),
        "WHEN",
        "response head: early, or with the first token",
        group=_STREAM,
    )
    usage: str = _flag(
        "opt-in",
        values.one_of("none", "opt-in", "always", "every", "last"),
        "STYLE",
        "token counts: none, opt-in (by stream_options), always, every (each chunk, cumulative), "
        "last (in the last token's chunk)",
        group=_STREAM,
    )
    usage_late_s: float = _flag(
        0.0,
        values.finite_s,
        "TIME",
        "usage, [DONE] and the end come this long after the last token",
        group=_STREAM,
        flag="usage-late",
    )
    done: bool = _flag(True, values.boolean, "", "end streams with [DONE]", group=_STREAM)
    line_ending: str = _flag(
        "lf",
        values.one_of("lf", "crlf", "cr"),
        "KIND",
        "line ends of the event stream: lf, crlf or cr",
        group=_STREAM,
    )
    data_space: bool = _flag(True, values.boolean, "", "a blank after the colon of `data:`", group=_STREAM)
    ping_s: float | None = _flag(
        None,
        values.optional(values.positive_s),
        "TIME",
        "an SSE comment each TIME before the first token",
        group=_STREAM,
        flag="ping",
    )
    responses_end: str = _flag(
        "completed",
        values.one_of("completed", "incomplete"),
        "KIND",
        "last event of the responses API at the token maximum: response.completed or response.incomplete",
        group=_STREAM,
    )
    close: bool = _flag(False, values.boolean, "", "close the connection after each answer", group=_STREAM)

    faults: tuple[Fault, ...] = _flag(
        (),
        values.several(read_fault),
        "KIND[,key=value]…",
        f"may be repeated, first match strikes; KIND: {', '.join(KINDS)}; "
        "keys: every (N-th), share (5%), after (tokens, 3), for (a stall's length), code (503), "
        "body (auto, json, html, text, empty), retry_after, location, message",
        group=_FAULTS,
        flag="fault",
    )
    reject: tuple[str, ...] = _flag(
        (),
        values.several(values.text),
        "KEY",
        "answer 400 to a request whose body has KEY, e.g. stream_options; may be repeated",
        group=_FAULTS,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MockOptions(Behaviour):
    """A whole server: where it listens, how much it serves at once, what it writes down."""

    host: str = _flag("127.0.0.1", values.text, "HOST", "address to listen on, IPv6 too", group=_SERVER)
    port: int = _flag(0, values.port, "PORT", "port to listen on; 0: a free one", group=_SERVER)
    unix: str | None = _flag(
        None, values.optional(values.text), "PATH", "listen on a Unix socket instead", group=_SERVER
    )
    tls: tuple[str, ...] | None = _flag(
        None,
        values.optional(values.several(values.text)),
        "CERT KEY",
        "serve HTTPS (two PEM files)",
        group=_SERVER,
    )
    api_key: str | None = _flag(
        None, values.optional(values.text), "KEY", "401 without `Authorization: Bearer KEY`", group=_SERVER
    )
    models: tuple[str, ...] = _flag(
        ("mock",),
        values.several(values.text),
        "NAME",
        "name in /v1/models; may be repeated",
        group=_SERVER,
        flag="model",
    )
    max_model_len: int | None = _flag(
        None,
        values.optional(values.whole(1)),
        "N",
        "400 to a request whose prompt and output exceed N tokens",
        group=_SERVER,
    )
    tokenize: bool = _flag(True, values.boolean, "", "serve POST /tokenize", group=_SERVER)
    metrics_prefix: str = _flag("mock", values.text, "NAME", "prefix of the names in /metrics", group=_SERVER)
    loop: str = _flag(
        "auto",
        values.one_of("auto", "asyncio", "uvloop"),
        "KIND",
        "event loop: auto, asyncio or uvloop",
        group=_SERVER,
    )

    capacity: int | None = _flag(
        None,
        values.optional(values.whole(1)),
        "N",
        "at most N requests decode at once, others wait in order of arrival",
        group=_LOAD,
    )
    max_queue: int | None = _flag(
        None, values.optional(values.whole(0)), "N", "refuse requests when N already wait", group=_LOAD
    )
    queue_full_status: int = _flag(
        429,
        values.status(400, what="a refusal"),
        "CODE",
        "status of such a refusal, 429 or 503 say",
        group=_LOAD,
    )
    stall_at_s: float | None = _flag(
        None,
        values.optional(values.finite_s),
        "TIME",
        "freeze the whole server TIME after the first request",
        group=_LOAD,
        flag="stall-at",
    )
    stall_for_s: float = _flag(
        1.0, values.finite_s, "TIME", "length of that freeze", group=_LOAD, flag="stall-for"
    )

    log: str | None = _flag(
        None,
        values.optional(values.text),
        "FILE",
        "write one JSON line a request, and a summary",
        group=_TRUTH,
    )
    arrivals: str = _flag(
        "loop",
        values.one_of("loop", "kernel"),
        "WHO",
        "who says in the log when a request arrived: the server's loop, or the kernel (plain TCP on Linux)",
        group=_TRUTH,
    )
    log_limit: int = _flag(
        20_000, values.whole(0, 10_000_000), "N", "newest requests kept for GET /log", group=_TRUTH
    )
    log_bodies: bool = _flag(
        False, values.boolean, "", "log headers and bodies too, keys masked", group=_TRUTH
    )


OptionsT = TypeVar("OptionsT", bound=Behaviour)


def flag_name(field: dataclasses.Field[Any]) -> str:
    """The flag of a field without its dashes: `ttft_s` is `ttft`, `max_queue` is `max-queue`."""
    return field.metadata["flag"] or field.name.replace("_", "-")


def changed(options: OptionsT, settings: Mapping[str, object]) -> OptionsT:
    """`options` with `settings` (field or flag name to text or JSON value); ValueError lists all mistakes."""
    fields = {field.name: field for field in dataclasses.fields(options)}
    fields |= {flag_name(field).replace("-", "_"): field for field in dataclasses.fields(options)}
    typed: dict[str, Any] = {}
    mistakes: list[str] = []
    for key, setting in settings.items():
        field = fields.get(key.replace("-", "_"))
        if field is None:
            mistakes.append(
                f"{key}: unknown; one of {', '.join(sorted({flag_name(f) for f in fields.values()}))}"
            )
            continue
        try:
            if (
                field.name in ("ttft_s", "itl_s")
                and isinstance(setting, str)
                and setting.startswith("lognormal:")
            ):
                typed[field.name], typed[field.name[:-2] + "_sigma"] = values.delay(setting)
            else:
                typed[field.name] = field.metadata["read"](setting)
        except ValueError as error:
            mistakes.append(f"{key}: {error}")
    if mistakes:
        raise ValueError("\n".join(mistakes))
    return dataclasses.replace(options, **typed)


def behaviour_of(options: MockOptions) -> Behaviour:
    """The part of the options that a request may override."""
    return Behaviour(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Behaviour)})
