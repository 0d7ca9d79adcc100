"""From a finished exchange to what the server said, token by token, and whether it was a success.

    Exchange ─(content coding)─▶ body ─(SSE)─▶ events ─(JSON)─▶ Answer, each output event with its stamp

Runs after the response has ended and never while its stream does. `decode_steps` pauses every few dozen
events, so that even a very long answer never holds the event loop for long; `decode` runs it through.

What carries output: text, reasoning (`reasoning_content`, `reasoning`), tool calls and refusals. A role
alone, an empty string, null, usage, filter results and pings carry none. A stream is whole when it said so:
`finish_reason`, or `[DONE]` after some output.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from llmbench.client.answer import Answer
from llmbench.client.body import a_text, an_object, error_text, excerpt, loads, objects
from llmbench.client.exchange import Breakage, Exchange
from llmbench.client.sse import decompress, looks_like_events
from llmbench.client.stream import read_stream
from llmbench.client.unpack import unpack
from llmbench.client.usage import read_usage
from llmbench.client.wire import Api

_OUTCOME_OF_BREAKAGE: dict[Breakage, tuple[str, str]] = {
    "connect": ("connect_error", "connection"),
    "reset": ("bad_stream", "connection"),
    "closed": ("bad_stream", "truncated"),
    "protocol": ("bad_stream", "protocol"),
    "timeout": ("timeout", "timeout"),
    "no_progress": ("timeout", "timeout"),
    "cancelled": ("cancelled", "cancelled"),
}


def decode(exchange: Exchange, api: Api, *, stream: bool = True, keep_text: bool = True) -> Answer:
    """The whole of `decode_steps` at once."""
    steps = decode_steps(exchange, api, stream=stream, keep_text=keep_text)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            answer: Answer = stop.value
            return answer


def decode_steps(
    exchange: Exchange, api: Api, *, stream: bool = True, keep_text: bool = True
) -> Generator[None, None, Answer]:
    """Decodes an exchange, pausing now and then; the generator's return value is the Answer.

    Without `keep_text` the words are not kept where they are not needed to tell what happened.
    """
    answer = Answer()
    answer.end_ns = exchange.end_ns
    status = exchange.status
    yield from unpack(exchange)
    if status is not None:
        try:
            chunks = _plain_chunks(exchange)
        except ValueError as error:
            answer.fail("bad_stream", "protocol", str(error))
            return answer
        body = b"".join(chunks)
        answer.request_id = _text(exchange.header(b"X-Request-Id"))
        if not 200 <= status < 300:
            answer.fail("http_error", "http_status", _status_message(status, exchange, body))
        elif _is_event_stream(exchange, body):
            yield from read_stream(answer, api, body, exchange, chunks, keep_text=keep_text)
        elif exchange.breakage is None:
            _read_document(answer, body, api, streamed=stream)
    # a stream that had said everything before its connection broke is whole
    if exchange.breakage is not None and not answer.is_whole:
        outcome, kind = _OUTCOME_OF_BREAKAGE[exchange.breakage]
        if outcome == "bad_stream" and status is None:
            outcome, kind = "connect_error", "connection"
        answer.fail(outcome, kind, exchange.detail or exchange.breakage)
    return answer


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def _plain_chunks(exchange: Exchange) -> list[bytes]:
    coding = (exchange.header(b"Content-Encoding") or b"").strip().lower()
    if coding in (b"", b"identity"):
        return exchange.chunks
    return decompress(exchange.chunks, coding.decode("latin-1"))


def _is_event_stream(exchange: Exchange, body: bytes) -> bool:
    kind = (exchange.header(b"Content-Type") or b"").lower()
    if b"event-stream" in kind:
        return not body.lstrip().startswith(b"{")  # a JSON error under the stream's own content type
    return b"json" not in kind and looks_like_events(body)


def _status_message(status: int, exchange: Exchange, body: bytes) -> str:
    """`HTTP 429: message`, with what a user needs to act: Retry-After, Location."""
    said = error_text(loads(body)) or excerpt(body)
    extra = [
        f"{name}: {value.decode('latin-1')}"
        for name in ("Retry-After", "Location")
        if (value := exchange.header(name.encode())) is not None
    ]
    message = f"HTTP {status}" + (f" ({', '.join(extra)})" if extra else "")
    return f"{message}: {said}" if said else message


# ---- whole JSON answers


def _read_document(answer: Answer, body: bytes, api: Api, *, streamed: bool) -> None:
    """A whole JSON answer: what a request without streaming gets, or a fault when a stream was asked for."""
    document = loads(body)
    if not isinstance(document, dict):
        kind = "empty" if not body.strip() else "not_sse" if streamed else "protocol"
        said = excerpt(body) or "an empty body"
        answer.fail("bad_stream", kind, f"neither an event stream nor JSON: {said}")
        return
    error = error_text(document)
    if error is not None:
        answer.fail("bad_stream", "http_body_error", error)
        return
    if streamed:
        answer.fail(
            "bad_stream",
            "not_sse",
            "a stream was asked for, one whole JSON answer came; set target.stream: false to measure that",
        )
        return
    read_usage(answer, document.get("usage"))
    answer.response_id = a_text(document.get("id")) or None
    answer.token_source = "usage" if answer.output_tokens is not None else None
    if api == "responses":
        _read_whole_response(answer, document)
    else:
        _read_whole_choices(answer, document)
    said_anything = any(answer.choices.values()) or answer.reasoning or answer.tool_calls or answer.refusal
    if not said_anything and answer.finish_reason is None:
        answer.fail("bad_stream", "empty", f"no output in the answer: {excerpt(body)}")


def _read_whole_choices(answer: Answer, document: dict[str, Any]) -> None:
    for choice in objects(document.get("choices")):
        message = an_object(choice.get("message"))
        index = choice.get("index")
        answer.choices[index if isinstance(index, int) else 0] = a_text(
            message.get("content") or choice.get("text")
        )
        answer.reasoning += a_text(message.get("reasoning_content") or message.get("reasoning"))
        answer.refusal += a_text(message.get("refusal"))
        for call in objects(message.get("tool_calls")):
            answer.tool_calls.append(_tool_call(an_object(call.get("function"))))
        if choice.get("finish_reason"):
            answer.finish_reason = str(choice["finish_reason"])
    if answer.finish_reason == "error":
        answer.fail("bad_stream", "stream_error", "finish_reason is 'error'")


def _read_whole_response(answer: Answer, document: dict[str, Any]) -> None:
    status = a_text(document.get("status")) or None
    answer.finish_reason = "stop" if status == "completed" else status
    for item in objects(document.get("output")):
        for part in objects(item.get("content")):
            if part.get("type") == "output_text":
                answer.choices[0] = answer.choices.get(0, "") + a_text(part.get("text"))
            elif part.get("type") == "refusal":
                answer.refusal += a_text(part.get("refusal"))
        if item.get("type") == "function_call":
            answer.tool_calls.append(_tool_call(item))


def _tool_call(function: dict[str, Any]) -> dict[str, str]:
    return {"name": a_text(function.get("name")), "arguments": a_text(function.get("arguments"))}
