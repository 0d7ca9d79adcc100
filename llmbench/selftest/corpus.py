"""Difficult streams: what servers and proxies send, byte by byte, and what each amounts to.

Each stream stands for a kind of fault that users of load generators and stream clients have reported: how
events are framed, what is in them, how a response begins, breaks and ends. Expected are the outcome and,
where it matters, text, events with output, tokens and the earliest instant of the first token.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

RESET, CLOSE, HANG = "reset", "close", "hang"
Step = bytes | float | str
"""Bytes to send, seconds to wait, or how it ends early."""

DONE: Final = b"data: [DONE]\n\n"
_WORDS: Final = ("Hello", ",", " world", "!")
_TEXT: Final = "".join(_WORDS)
_PAUSE_S: Final = 0.002  # between pieces, so that they are read apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One response and what it amounts to: columns of requests.parquet. `num_events` carry output;
    `ttft_at_least_s` is when the first of them was sent.
    """

    name: str
    steps: tuple[Step, ...]
    expect: Mapping[str, Any] = field(default_factory=dict)
    num_events: int | None = None
    ttft_at_least_s: float | None = None
    api: str = "chat"


def _event(document: object, end: bytes = b"\n") -> bytes:
    data = document if isinstance(document, bytes) else json.dumps(document, ensure_ascii=False).encode()
    return b"data: " + data + end + end


def _delta(finish: str | None = None, index: int = 0, **fields: object) -> dict[str, Any]:
    return {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "choices": [{"index": index, "delta": fields, "finish_reason": finish}],
    }


def _usage(output: int, prompt: int = 7) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return {"id": "c-1", "object": "chat.completion.chunk", "choices": [], "usage": counts}


def _words(words: Iterable[str] = _WORDS) -> list[bytes]:
    return [_event(_delta(content=word)) for word in words]


ROLE: Final = _event(_delta(role="assistant", content=""))
STOP: Final = _event(_delta(finish="stop"))
END: Final = [STOP, _event(_usage(4)), DONE]
FINE: Final = {"outcome": "ok", "text": _TEXT, "output_tokens": 4, "token_source": "usage"}


def _head(*fields: str, status: str = "200 OK", kind: str | None = "text/event-stream") -> bytes:
    lines = [f"HTTP/1.1 {status}", *([f"Content-Type: {kind}"] if kind else []), *fields]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


CHUNKED: Final = _head("Transfer-Encoding: chunked")


def _chunk(piece: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(piece), extension, piece)


def _pieces(pieces: Iterable[bytes], last: bytes = b"0\r\n\r\n") -> tuple[Step, ...]:
    """Each in a chunk and a segment of its own."""
    steps: list[Step] = [CHUNKED]
    for piece in pieces:
        steps += [_chunk(piece), _PAUSE_S]
    return (*steps, last) if last else tuple(steps)


def _whole(body: bytes) -> tuple[Step, ...]:
    return (CHUNKED + _chunk(body) + b"0\r\n\r\n",)


def _at_once(*pieces: bytes) -> tuple[Step, ...]:
    """All of them in one segment."""
    return _whole(b"".join(pieces))


def _torn(body: bytes, size: int) -> tuple[Step, ...]:
    """The body in pieces of so many bytes."""
    steps: list[Step] = [CHUNKED]
    for start in range(0, len(body), size):
        steps += [_chunk(body[start : start + size]), 0.0]
    return (*steps, b"0\r\n\r\n")


def _sized(status: str, kind: str, body: bytes, *fields: str) -> tuple[Step, ...]:
    return (_head(f"Content-Length: {len(body)}", *fields, status=status, kind=kind) + body,)


def _fine(name: str, steps: tuple[Step, ...], **more: Any) -> Stream:
    """A stream that amounts to the four words, counted by usage."""
    return Stream(name=name, steps=steps, expect=FINE, num_events=4, **more)


def _fails(name: str, steps: tuple[Step, ...], outcome: str, kind: str | None = None, **more: Any) -> Stream:
    return Stream(name=name, steps=steps, expect={"outcome": outcome, "error_kind": kind or outcome}, **more)


def _framing() -> list[Stream]:
    plain = b"".join([*_words(), *END])
    crlf = plain.replace(b"\n", b"\r\n")
    split_crlf = [part for part in crlf.replace(b"\r\n", b"\r|\n|").split(b"|") if part]
    accents = "héllo 你好 🚀"
    uncut = b"".join([_event(_delta(content=accents)), STOP, _event(_usage(1)), DONE])
    separators = "a\u2028b\u2029c\u0085d"
    return [
        _fine("a plain stream", _pieces([*_words(), *END])),
        _fine("CRLF line ends", _whole(crlf)),
        _fine("CR line ends", _whole(plain.replace(b"\n", b"\r"))),
        _fine("CR and LF in two reads", _pieces(split_crlf)),
        _fine("no blank after the colon", _whole(plain.replace(b"data: ", b"data:"))),
        _fine("comments between events", _pieces([b": ping\n\n" + word for word in [*_words(), *END]])),
        Stream(
            name="a comment inside a data field",
            steps=_whole(_event(b": PROCESSING") + plain),
            expect={**FINE, "warnings": "malformed_event"},
            num_events=4,
        ),
        _fine("byte by byte", _torn(plain, 1)),
        Stream(
            name="characters cut in two",
            steps=_torn(uncut, 3),
            expect={"outcome": "ok", "text": accents, "output_tokens": 1},
            num_events=1,
        ),
        _fine("all in one segment", _whole(plain)),
        Stream(
            name="characters that look like line ends",
            steps=_whole(b"".join([_event(_delta(content=separators)), STOP, _event(_usage(1)), DONE])),
            expect={"outcome": "ok", "text": separators},
            num_events=1,
        ),
        _fine("no [DONE]", _whole(b"".join([*_words(), STOP, _event(_usage(4))]))),
        _fine("output after [DONE]", _whole(plain + _event(_delta(content="GHOST")))),
        _fine(
            "unknown fields",
            _whole(b"id: 1\nretry: 9\nfoo: bar\n\nevent: ping\ndata: {}\n\ndata:\n\n" + plain),
        ),
        Stream(
            name="a line of 200 KiB",
            steps=_whole(_event(_delta(content="Hello", padding="x" * 200_000)) + plain),
            expect={"outcome": "ok", "text": "Hello" + _TEXT},
            num_events=5,
        ),
        Stream(
            name="a stray byte in a string",
            steps=_whole(_event(b'{"choices":[{"index":0,"delta":{"content":"a\xff"}}]}') + plain),
            expect={"outcome": "ok", "text": "a\ufffd" + _TEXT},
            num_events=5,
        ),
    ]


def _payload() -> list[Stream]:
    cumulative = [
        _event({**_delta(content=word), "usage": _usage(number)["usage"]})
        for number, word in enumerate(_WORDS, start=1)
    ]
    last = _event({**_delta(content="!", finish="stop"), "usage": _usage(4)["usage"]})
    several = _event(_usage(12))
    return [
        _fine(
            "the role long before the text",
            (CHUNKED + _chunk(ROLE), 0.15, _chunk(b"".join([*_words(), *END])), b"0\r\n\r\n"),
            ttft_at_least_s=0.14,
        ),
        _fine(
            "chunks without choices or delta",
            _whole(
                b"".join(
                    [
                        _event({"choices": [], "prompt_filter_results": []}),
                        *_words(),
                        _event({"choices": [{"index": 0, "finish_reason": None}]}),
                        *END,
                    ]
                )
            ),
        ),
        _fine(
            "usage long after the last token",
            (*_pieces(_words(), b""), 0.1, _chunk(b"".join(END)), b"0\r\n\r\n"),
        ),
        _fine("usage in every chunk", _whole(b"".join([*cumulative, STOP, DONE]))),
        _fine("usage on the last token", _whole(b"".join([*_words(_WORDS[:3]), last, DONE]))),
        Stream(
            name="no usage",
            steps=_whole(b"".join([*_words(), STOP, DONE])),
            expect={**FINE, "token_source": "events", "warnings": "usage_missing"},
            num_events=4,
        ),
        Stream(
            name="several tokens a chunk",
            steps=_whole(b"".join([*_words(), STOP, several, DONE])),
            expect={**FINE, "output_tokens": 12},
            num_events=4,
        ),
    ]


def _channels() -> list[Stream]:
    call = {"index": 0, "id": "t1", "function": {"name": "look", "arguments": "{}"}}
    return [
        Stream(
            name="reasoning, then text",
            steps=_whole(
                b"".join([_event(_delta(reasoning_content="Hm")), _event(_delta(content="Yes")), *END])
            ),
            expect={"outcome": "ok", "text": "Yes", "reasoning": "Hm", "output_tokens": 4},
            num_events=2,
        ),
        Stream(
            name="nothing but reasoning",
            steps=_whole(
                b"".join(
                    [
                        _event(_delta(reasoning_content="Hm")),
                        _event(_delta(finish="length")),
                        _event(_usage(3)),
                        DONE,
                    ]
                )
            ),
            expect={"outcome": "ok", "reasoning": "Hm", "output_tokens": 3, "finish_reason": "length"},
            num_events=1,
        ),
        Stream(
            name="a tool call",
            steps=_whole(
                b"".join(
                    [
                        _event(_delta(tool_calls=[call])),
                        _event(_delta(finish="tool_calls")),
                        _event(_usage(9)),
                        DONE,
                    ]
                )
            ),
            expect={"outcome": "ok", "output_tokens": 9, "finish_reason": "tool_calls"},
            num_events=1,
        ),
        Stream(
            name="a refusal",
            steps=_whole(
                b"".join([_event(_delta(content=None, refusal="No.")), STOP, _event(_usage(2)), DONE])
            ),
            expect={"outcome": "ok", "refusal": "No.", "output_tokens": 2},
            num_events=1,
        ),
        _fine("error: null", _whole(b"".join([*_words(), *END]).replace(b'{"id"', b'{"error": null, "id"'))),
    ]


def _lengths() -> list[Stream]:
    return [
        Stream(
            name="one token",
            steps=_whole(b"".join([_event(_delta(content="Hi")), STOP, _event(_usage(1)), DONE])),
            expect={"outcome": "ok", "text": "Hi", "output_tokens": 1},
            num_events=1,
        ),
        Stream(
            name="no tokens at all",
            steps=_whole(STOP + _event(_usage(0)) + DONE),
            expect={"outcome": "ok", "output_tokens": 0},
            num_events=0,
        ),
        Stream(
            name="a content filter",
            steps=_whole(
                b"".join([*_words(), _event(_delta(finish="content_filter")), _event(_usage(4)), DONE])
            ),
            expect={**FINE, "finish_reason": "content_filter"},
            num_events=4,
        ),
        Stream(
            name="two choices, woven",
            steps=_whole(
                b"".join(
                    [_event(_delta(index=number % 2, content="AB"[number % 2])) for number in range(6)]
                    + [_event(_delta(index=one, finish="stop")) for one in (0, 1)]
                    + [_event(_usage(6)), DONE]
                )
            ),
            expect={"outcome": "ok", "text": "AAA", "output_tokens": 6},
            num_events=6,
        ),
        Stream(
            name="2,000 events at once",
            steps=_whole(b"".join([*_words(["a"] * 2000), STOP, _event(_usage(2000)), DONE])),
            expect={"outcome": "ok", "text": "a" * 2000, "output_tokens": 2000},
            num_events=2000,
        ),
    ]


def _failures() -> list[Stream]:
    error = _event({"error": {"message": "out of memory", "type": "server_error"}})
    three = _words(_WORDS[:3])
    document = json.dumps({"error": {"message": "quota exceeded"}}).encode()
    whole = json.dumps({"object": "chat.completion", "choices": [{"index": 0, "message": {"content": "Hi"}}]})
    return [
        _fails("cut off cleanly", _pieces(three), "bad_stream", "truncated"),
        _fails("an error in mid-stream", _pieces([*three, error, DONE]), "bad_stream", "stream_error"),
        _fails("an error and nothing else", _pieces([error]), "bad_stream", "stream_error"),
        _fails("nothing but [DONE]", _pieces([DONE]), "bad_stream", "empty"),
        _fails(
            "finish_reason: error",
            _pieces([*three, _event(_delta(finish="error")), DONE]),
            "bad_stream",
            "stream_error",
        ),
        Stream(
            name="a JSON error under 200",
            steps=_sized("200 OK", "application/json", document),
            expect={"outcome": "bad_stream", "error": "quota exceeded"},
        ),
        Stream(
            name="a whole answer, no stream",
            steps=_sized("200 OK", "application/json", whole.encode()),
            expect={"outcome": "bad_stream"},
        ),
        _fails(
            "429 with Retry-After",
            _sized("429 Too Many Requests", "application/json", document, "Retry-After: 1"),
            "http_error",
            "http_status",
        ),
        _fails(
            "503 with a page",
            _sized("503 Service Unavailable", "text/html", b"<h1>busy</h1>"),
            "http_error",
            "http_status",
        ),
        _fails(
            "400: stream_options is unknown",
            _sized(
                "400 Bad Request", "application/json", b'{"error": {"message": "unknown stream_options"}}'
            ),
            "http_error",
            "http_status",
        ),
        Stream(
            name="reset in mid-stream",
            steps=(*_pieces(three, b""), 0.02, RESET),
            expect={"outcome": "bad_stream", "error_kind": "connection"},
        ),
        Stream(
            name="closed within a chunk",
            steps=(*_pieces(three, b"ff\r\ndata:"), CLOSE),
            expect={"outcome": "bad_stream", "error_kind": "truncated"},
        ),
        _fails("silence in mid-stream", (*_pieces(three, b""), HANG), "timeout"),
    ]


def _http() -> list[Stream]:
    body = b"".join([*_words(), *END])
    packer = zlib.compressobj(wbits=31)
    flushed = [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in [*_words(), *END]]
    flushed.append(packer.flush())
    zipped: list[Step] = [_head("Transfer-Encoding: chunked", "Content-Encoding: gzip")]
    for piece in flushed:
        zipped += [_chunk(piece), _PAUSE_S]
    packed = gzip.compress(body)
    extended = b"".join(_chunk(piece, b";note=1") for piece in [*_words(), *END])
    upper = _head("TRANSFER-encoding: Chunked").replace(b"Content-Type", b"content-TYPE")
    return [
        _fine("gzip, flushed at each event", (*zipped, b"0\r\n\r\n")),
        _fine(
            "gzip, in one piece",
            (_head(f"Content-Length: {len(packed)}", "Content-Encoding: gzip") + packed,),
        ),
        _fine("a Content-Length", (_head(f"Content-Length: {len(body)}") + body,)),
        _fine("an end by closing", (_head("Connection: close") + body, CLOSE)),
        _fine(
            "no Content-Type", (_head("Transfer-Encoding: chunked", kind=None) + _chunk(body) + b"0\r\n\r\n",)
        ),
        _fine("chunk extensions, odd case, trailer", (upper + extended + b"0\r\nX-Sum: 1\r\n\r\n",)),
        _fine(
            "100 Continue first", (b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + _chunk(body) + b"0\r\n\r\n",)
        ),
        _fine("the head in two segments", (CHUNKED[:20], 0.02, CHUNKED[20:] + _chunk(body) + b"0\r\n\r\n")),
    ]


def _completions() -> list[Stream]:
    def text(word: str, finish: str | None = None) -> dict[str, Any]:
        return {"object": "text_completion", "choices": [{"index": 0, "text": word, "finish_reason": finish}]}

    words = [_event(text(word)) for word in _WORDS]
    end = [_event(text("", "length")), _event(_usage(4)), DONE]
    body = b"".join([*words, *end])
    return [
        _fine("a plain stream", _pieces([*words, *end]), api="completions"),
        _fine("CRLF line ends", _whole(body.replace(b"\n", b"\r\n")), api="completions"),
        _fine("torn into pieces of 5 bytes", _torn(body, 5), api="completions"),
        _fails("cut off", _pieces(words[:2]), "bad_stream", "truncated", api="completions"),
    ]


STREAMS: Final = (
    *_framing(),
    *_payload(),
    *_channels(),
    *_lengths(),
    *_failures(),
    *_http(),
    *_completions(),
)
