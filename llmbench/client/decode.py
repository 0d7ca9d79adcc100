"""From a finished exchange to what the server said, token by token, and whether it was a success.

    Exchange ─(content coding, SSE)─▶ events with stamps ─(JSON)─▶ Answer

Runs after the response has ended and never while its stream does. `decode_steps` pauses every few dozen
events, so that even a very long answer never holds the event loop for long; `decode` runs it through.

What carries output: text, reasoning (`reasoning_content`, `reasoning`), tool calls and refusals. A role
alone, an empty string, null, usage, filter results and pings carry none (FIELD: OpenAI's streaming
format as OpenAI, Azure, vLLM, SGLang, llama.cpp and DeepSeek send it).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from llmbench.client.exchange import Breakage, Exchange
from llmbench.client.sse import Event, decompress, looks_like_events, read_ends, split_events
from llmbench.client.wire import Api

PAUSE_EVERY = 64
"""Events between two pauses of `decode_steps`: some 0.2 ms of work."""
EXCERPT = 300
"""Characters of a body that an error message quotes."""
_FAILED_FINISH = frozenset({"error"})

_OUTCOME_OF_BREAKAGE: dict[Breakage, tuple[str, str]] = {
    "connect": ("connect_error", "connection"),
    "reset": ("bad_stream", "connection"),
    "closed": ("bad_stream", "truncated"),
    "protocol": ("bad_stream", "protocol"),
    "timeout": ("timeout", "timeout"),
    "no_progress": ("timeout", "timeout"),
    "cancelled": ("cancelled", "cancelled"),
}


@dataclass(slots=True, kw_only=True)
class Answer:
    """What one response amounted to. Instants are on the exchange's clock; None where nothing happened.

    event_ns      one stamp for each event that carried output, in order
    event_tokens  tokens of each such event; None where they cannot be told (several choices)
    reads         socket reads that brought output
    """

    outcome: str = "ok"
    error_kind: str | None = None
    error: str | None = None
    event_ns: list[int] = field(default_factory=list)
    event_tokens: list[int] | None = None
    first_answer_ns: int | None = None
    end_ns: int | None = None
    reads: int = 0
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    token_source: str | None = None
    finish_reason: str | None = None
    response_id: str | None = None
    choices: dict[int, str] = field(default_factory=dict)
    reasoning: str = ""
    refusal: str = ""
    tool_calls: list[dict[str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices.get(0, "")

    def fail(self, outcome: str, kind: str, message: str) -> None:
        """Books a failure; the first one stands."""
        if self.outcome == "ok":
            self.outcome, self.error_kind, self.error = outcome, kind, message

    def warn(self, code: str) -> None:
        """Marks something odd that did not make the answer a failure."""
        if code not in self.warnings:
            self.warnings.append(code)


def decode(exchange: Exchange, api: Api, *, stream: bool = True) -> Answer:
    """The whole of `decode_steps` at once."""
    steps = decode_steps(exchange, api, stream=stream)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            answer: Answer = stop.value
            return answer


def decode_steps(exchange: Exchange, api: Api, *, stream: bool = True) -> Generator[None, None, Answer]:
    """Decodes an exchange, pausing now and then; the generator's return value is the Answer."""
    answer = Answer(end_ns=exchange.end_ns)
    try:
        chunks = _plain_chunks(exchange)
    except ValueError as error:
        answer.fail("bad_stream", "protocol", str(error))
        return answer
    body = b"".join(chunks)
    if exchange.status is not None and not 200 <= exchange.status < 300:
        answer.fail("http_error", "http_status", _status_message(exchange, body))
    elif exchange.status is not None and _is_event_stream(exchange, body):
        reader = _StreamReader(answer, api)
        yield from reader.read(split_events(body), exchange, chunks)
    elif exchange.breakage is None:
        _read_document(answer, body, api, streamed=stream)
    if exchange.breakage is not None and not _was_whole(answer):
        outcome, kind = _OUTCOME_OF_BREAKAGE[exchange.breakage]
        if outcome == "bad_stream" and exchange.status is None:
            outcome, kind = "connect_error", "connection"
        answer.fail(outcome, kind, exchange.detail or exchange.breakage)
    return answer


def _was_whole(answer: Answer) -> bool:
    """Whether the stream had said everything before the connection broke."""
    return answer.outcome == "ok" and (answer.finish_reason is not None)


def _plain_chunks(exchange: Exchange) -> list[bytes]:
    coding = exchange.headers.get("content-encoding", "identity").strip().lower()
    if coding in ("", "identity"):
        return exchange.chunks
    return decompress(exchange.chunks, coding)


def _is_event_stream(exchange: Exchange, body: bytes) -> bool:
    kind = exchange.headers.get("content-type")
    if kind is not None and "json" in kind.lower():
        return False
    if kind is not None and "event-stream" in kind.lower():
        return True
    return looks_like_events(body)


def _excerpt(body: bytes) -> str:
    text = body[: EXCERPT * 4].decode("utf-8", "replace")
    return " ".join(text.split())[:EXCERPT]


def _status_message(exchange: Exchange, body: bytes) -> str:
    """`HTTP 429: message`, with what a user needs to act: Retry-After, Location."""
    said = _error_text(_loads(body)) or _excerpt(body)
    extra = [
        f"{name}: {exchange.headers[key]}"
        for key, name in (("retry-after", "Retry-After"), ("location", "Location"))
        if key in exchange.headers
    ]
    message = f"HTTP {exchange.status}" + (f" ({', '.join(extra)})" if extra else "")
    return f"{message}: {said}" if said else message


def _loads(data: bytes) -> Any:
    """JSON, or None. Bytes that are not UTF-8 are replaced rather than refused."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return orjson.loads(data.decode("utf-8", "replace"))
    except orjson.JSONDecodeError:
        return None


def _error_text(document: Any) -> str | None:
    """The message of an error object in any of the shapes servers use, or None when there is no error."""
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    if isinstance(error, dict):
        message = error.get("message") or error.get("msg") or orjson.dumps(error).decode()
        code = error.get("code") or error.get("type")
        return f"{message} ({code})" if code else str(message)
    if error:
        return str(error)
    if document.get("object") == "error" or "detail" in document:
        return str(document.get("message") or document.get("detail"))
    return None


class _StreamReader:
    """Reads a stream's events into an Answer."""

    def __init__(self, answer: Answer, api: Api) -> None:
        self._answer = answer
        self._parts: dict[int, list[str]] = {}
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._tools: dict[tuple[int, int], dict[str, str]] = {}
        self._ends: list[int] = []
        self._sizes: list[int] = []  # characters of each output event, to share tokens out
        self._counts: list[int] = []  # cumulative completion tokens said by each output event, 0 if none
        self._usage: dict[str, Any] | None = None
        self._done = False
        self._read_one = self._read_responses if api == "responses" else self._read_chunk

    def read(self, events: list[Event], exchange: Exchange, chunks: list[bytes]) -> Iterator[None]:
        """Walks through the events up to the end of the stream, then settles counts and stamps."""
        answer = self._answer
        done_end: int | None = None
        for number, event in enumerate(events):
            if event.data == b"[DONE]":
                self._done = True
                done_end = event.end
                break
            document = _loads(event.data)
            if not isinstance(document, dict):
                answer.warn("malformed_event")
            elif event.name == b"error" or document.get("error"):
                message = _error_text(document) or _excerpt(event.data)
                answer.fail("bad_stream", "stream_error", message)
            else:
                self._read_one(document, event.end)
            if number % PAUSE_EVERY == PAUSE_EVERY - 1:
                yield
        self._stamp(exchange, chunks, done_end)
        self._settle(exchange)

    # ---- one event

    def _read_chunk(self, document: dict[str, Any], end: int) -> None:
        """A chunk of the chat or completions API."""
        answer = self._answer
        usage = document.get("usage")
        if usage:
            self._usage = usage
        if answer.response_id is None and isinstance(document.get("id"), str):
            answer.response_id = document["id"]
        size = 0
        said = False
        choices = document.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            reason = choice.get("finish_reason")
            if reason:
                answer.finish_reason = str(reason)
                if reason in _FAILED_FINISH:
                    answer.fail("bad_stream", "stream_error", f"finish_reason is {reason!r}")
            got = self._read_choice(choice, end)
            if got is not None:
                said = True
                size += got
        if said:
            self._add_output(end, size, usage)

    def _read_choice(self, choice: dict[str, Any], end: int) -> int | None:
        """Keeps one choice's output; returns its length in characters, None when it carries none."""
        index = choice.get("index") or 0
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            text = choice.get("text")
            if isinstance(text, str) and text:
                return self._add_text(index, text, end)
            return None
        size: int | None = None
        text = delta.get("content")
        if isinstance(text, str) and text:
            size = self._add_text(index, text, end)
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(thought, str) and thought:
            self._reasoning.append(thought)
            size = (size or 0) + len(thought)
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            self._refusal.append(refusal)
            size = (size or 0) + self._mark_answer(end, len(refusal))
        calls = delta.get("tool_calls") or delta.get("function_call")
        if calls:
            got = self._add_calls(index, calls if isinstance(calls, list) else [{"function": calls}])
            if got:
                size = (size or 0) + self._mark_answer(end, got)
        return size

    def _add_text(self, index: int, text: str, end: int) -> int:
        self._parts.setdefault(index, []).append(text)
        return self._mark_answer(end, len(text))

    def _mark_answer(self, end: int, size: int) -> int:
        """Notes the first output that is not reasoning; `first_answer_ns` holds an offset until `_stamp`."""
        if self._answer.first_answer_ns is None:
            self._answer.first_answer_ns = end
        return size

    def _add_calls(self, choice: int, calls: list[Any]) -> int:
        """Keeps tool call deltas; returns the characters of names and arguments in them."""
        size = 0
        for position, call in enumerate(calls):
            if not isinstance(call, dict):
                continue
            function = call.get("function") or {}
            index = call.get("index")
            key = (choice, index if isinstance(index, int) else position)
            kept = self._tools.setdefault(key, {"name": "", "arguments": ""})
            for part in ("name", "arguments"):
                value = function.get(part)
                if isinstance(value, str) and value:
                    kept[part] += value
                    size += len(value)
        return size

    def _read_responses(self, document: dict[str, Any], end: int) -> None:
        """A typed event of the responses API."""
        answer = self._answer
        kind = document.get("type")
        delta = document.get("delta")
        if isinstance(kind, str) and kind.endswith(".delta") and isinstance(delta, str) and delta:
            if "reasoning" in kind:
                self._reasoning.append(delta)
            elif "arguments" in kind:
                self._add_calls(
                    0, [{"index": document.get("output_index"), "function": {"arguments": delta}}]
                )
                self._mark_answer(end, 0)
            elif "refusal" in kind:
                self._refusal.append(delta)
                self._mark_answer(end, 0)
            else:
                self._add_text(0, delta, end)
            self._add_output(end, len(delta), None)
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self._read_response_end(document.get("response") or {}, kind)
        elif kind == "error":
            answer.fail("bad_stream", "stream_error", str(document.get("message") or document))

    def _read_response_end(self, response: dict[str, Any], kind: str) -> None:
        answer = self._answer
        self._usage = response.get("usage") or self._usage
        answer.response_id = response.get("id")
        self._done = True
        if kind == "response.failed":
            answer.fail("bad_stream", "stream_error", _error_text(response) or "response.failed")
        incomplete = response.get("incomplete_details") or {}
        reason = incomplete.get("reason") if kind == "response.incomplete" else "stop"
        answer.finish_reason = "length" if reason == "max_output_tokens" else str(reason)

    def _add_output(self, end: int, size: int, usage: Any) -> None:
        self._ends.append(end)
        self._sizes.append(size)
        count = usage.get("completion_tokens") if isinstance(usage, dict) else None
        self._counts.append(count if isinstance(count, int) else 0)

    # ---- the end

    def _stamp(self, exchange: Exchange, chunks: list[bytes], done_end: int | None) -> None:
        """Offsets become times: an event belongs to the read that brought its last byte."""
        answer = self._answer
        ends = read_ends(chunks, exchange.read_chunks)
        if not ends:
            return
        stamps, last = exchange.read_ns, len(ends) - 1
        reads = [min(bisect_left(ends, end), last) for end in self._ends]
        answer.event_ns = [stamps[read] for read in reads]
        answer.reads = len(set(reads))
        if answer.first_answer_ns is not None:
            answer.first_answer_ns = stamps[min(bisect_left(ends, answer.first_answer_ns), last)]
        if done_end is not None:
            answer.end_ns = stamps[min(bisect_left(ends, done_end), last)]

    def _settle(self, exchange: Exchange) -> None:
        answer = self._answer
        answer.choices = {index: "".join(parts) for index, parts in self._parts.items()}
        answer.reasoning = "".join(self._reasoning)
        answer.refusal = "".join(self._refusal)
        answer.tool_calls = [self._tools[key] for key in sorted(self._tools)]
        self._count_tokens()
        num_events = len(answer.event_ns)
        if num_events >= 4 and answer.reads == 1:
            answer.warn("buffered")
        if exchange.breakage is None:
            self._judge_ending(num_events)

    def _judge_ending(self, num_events: int) -> None:
        """A stream is whole when it says so: a finish reason, or [DONE] after some output."""
        answer = self._answer
        if answer.finish_reason is None and not self._done:
            answer.fail("bad_stream", "truncated", "the stream ended without a finish_reason or [DONE]")
        elif answer.finish_reason is None and num_events == 0:
            answer.fail("bad_stream", "empty", "the stream ended without any output")

    def _count_tokens(self) -> None:
        """Usage first, else events. Tokens are shared out over the events as well as can be told."""
        answer = self._answer
        num_events = len(answer.event_ns)
        _read_usage(answer, self._usage)
        if answer.output_tokens is None:
            answer.warn("usage_missing")
            answer.output_tokens, answer.token_source = num_events, "events"
        else:
            answer.token_source = "usage"  # noqa: S105 - where a count is from, no password
        if num_events == 0:
            answer.event_tokens = []
        elif len(answer.choices) <= 1:
            answer.event_tokens = share_tokens(answer.output_tokens, self._sizes, self._counts)
            if answer.output_tokens > num_events and not _says_each(self._counts, answer.output_tokens):
                answer.warn("tokens_shared_out")


def _says_each(counts: list[int], total: int) -> bool:
    """Whether cumulative counts are there for each event and end in the total."""
    return (
        bool(counts)
        and counts[-1] == total
        and all(b > a for a, b in zip([0, *counts], counts, strict=False))
    )


def share_tokens(total: int, sizes: list[int], counts: list[int]) -> list[int]:
    """Tokens of each event. Shapes: `sizes`, `counts` [M] -> [M]; every event gets at least 1.

    1. When every event said its cumulative count (continuous usage), the differences are exact.
    2. As many tokens as events: one each.
    3. More tokens than events (speculative decoding, stream intervals): one each, the rest in proportion
       to the events' lengths in characters, largest remainder first. An assumption, and marked as one.
    4. Fewer tokens than events (a character split over events): one each; the sum then exceeds `total`,
       and per-token times use `total`.
    """
    num_events = len(sizes)
    if _says_each(counts, total):
        return [b - a for a, b in zip([0, *counts], counts, strict=False)]
    spare = total - num_events
    if spare <= 0:
        return [1] * num_events
    weight = sum(sizes) or num_events
    shares = [spare * (size if sum(sizes) else 1) / weight for size in sizes]
    tokens = [1 + int(share) for share in shares]
    order = sorted(range(num_events), key=lambda i: (int(shares[i]) - shares[i], i))
    for i in order[: total - sum(tokens)]:
        tokens[i] += 1
    return tokens


def _read_usage(answer: Answer, usage: Any) -> None:
    if not isinstance(usage, dict):
        return
    answer.input_tokens = _count(usage, "prompt_tokens", "input_tokens")
    answer.output_tokens = _count(usage, "completion_tokens", "output_tokens")
    inputs = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    outputs = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    answer.cached_tokens = _count(inputs, "cached_tokens")
    answer.reasoning_tokens = _count(outputs, "reasoning_tokens")


def _count(usage: Any, *names: str) -> int | None:
    for name in names:
        value = usage.get(name) if isinstance(usage, dict) else None
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def _read_document(answer: Answer, body: bytes, api: Api, *, streamed: bool) -> None:
    """A whole JSON answer: what a request without streaming gets, or a fault when a stream was asked for."""
    document = _loads(body)
    if not isinstance(document, dict):
        kind = "empty" if not body.strip() else "not_sse" if streamed else "protocol"
        said = _excerpt(body) or "an empty body"
        answer.fail("bad_stream", kind, f"neither an event stream nor JSON: {said}")
        return
    error = _error_text(document)
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
    _read_usage(answer, document.get("usage"))
    answer.response_id = document.get("id")
    answer.token_source = "usage" if answer.output_tokens is not None else None
    if api == "responses":
        _read_whole_response(answer, document)
    else:
        _read_whole_choices(answer, document)
    said = answer.choices or answer.reasoning or answer.tool_calls or answer.refusal
    if not said and answer.finish_reason is None:
        answer.fail("bad_stream", "empty", f"no output in the answer: {_excerpt(body)}")


def _read_whole_choices(answer: Answer, document: dict[str, Any]) -> None:
    for choice in document.get("choices") or ():
        message = choice.get("message") or {}
        answer.choices[choice.get("index") or 0] = message.get("content") or choice.get("text") or ""
        answer.reasoning += message.get("reasoning_content") or message.get("reasoning") or ""
        answer.refusal += message.get("refusal") or ""
        for call in message.get("tool_calls") or ():
            function = call.get("function") or {}
            answer.tool_calls.append(
                {"name": function.get("name") or "", "arguments": function.get("arguments") or ""}
            )
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
    if answer.finish_reason in _FAILED_FINISH:
        answer.fail("bad_stream", "stream_error", f"finish_reason is {answer.finish_reason!r}")


def _read_whole_response(answer: Answer, document: dict[str, Any]) -> None:
    answer.finish_reason = "stop" if document.get("status") == "completed" else document.get("status")
    for item in document.get("output") or ():
        for part in item.get("content") or ():
            if part.get("type") == "output_text":
                answer.choices[0] = answer.choices.get(0, "") + (part.get("text") or "")
            elif part.get("type") == "refusal":
                answer.refusal += part.get("refusal") or ""
        if item.get("type") == "function_call":
            answer.tool_calls.append(
                {"name": item.get("name") or "", "arguments": item.get("arguments") or ""}
            )
