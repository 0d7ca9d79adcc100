"""The bytes of an answer in each of the three APIs: events of a stream, framed, and whole JSON documents.

What does not change within a request is rendered once; an event is then four byte strings joined. Every
event is an HTTP chunk of its own, so that a reader of chunks sees the same borders as a reader of events.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Literal, Protocol

from llmbench.mock.job import Job

Channel = Literal["reasoning", "text", "tool", "refusal"]

LINE_ENDS = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}
_LAST_CHUNK = b"0\r\n\r\n"
_DELTAS = {
    "text": b'"delta":{"content":"',
    "refusal": b'"delta":{"refusal":"',
    "tool": b'"delta":{"tool_calls":[{"index":0,"function":{"arguments":"',
}


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def to_json(value: object) -> bytes:
    """Compact UTF-8 JSON."""
    return _encode(value).encode()


@lru_cache(maxsize=1024)
def json_text(text: str) -> bytes:
    """A JSON string; kept, because model names and finish reasons are few."""
    return to_json(text)


class Framing:
    """How one event becomes bytes: field syntax, line ends, and chunks where HTTP/1.1 is spoken."""

    __slots__ = ("_chunked", "around", "done", "end", "last", "line_end", "prefix")

    def __init__(self, *, line_ending: str, data_space: bool, chunked: bool) -> None:
        self.line_end = LINE_ENDS[line_ending]
        self.end = self.line_end * 2
        self.prefix = b"data: " if data_space else b"data:"
        self._chunked = chunked
        self.around = b"\r\n" if chunked else b""  # what stands behind a chunk's payload
        self.last = _LAST_CHUNK if chunked else b""  # what ends the body
        self.done = self.event(b"[DONE]")

    def chunk(self, payload: bytes) -> bytes:
        """`payload` as one HTTP chunk (as it is for a client that does not know chunks)."""
        return b"%x\r\n%b\r\n" % (len(payload), payload) if self._chunked else payload

    def event(self, data: bytes, name: bytes = b"") -> bytes:
        """One server-sent event with `data` (a single line), and its type where `name` is given."""
        kind = b"event: " + name + self.line_end if name else b""
        payload = b"%b%b%b%b" % (kind, self.prefix, data, self.end)
        return b"%x\r\n%b\r\n" % (len(payload), payload) if self._chunked else payload

    def comment(self, text: bytes) -> bytes:
        """An SSE comment, which clients must ignore."""
        return self.chunk(b": " + text + self.end)


@lru_cache(maxsize=64)
def framing_of(line_ending: str, data_space: bool, chunked: bool) -> Framing:
    """The framing of these settings; there are a dozen of them."""
    return Framing(line_ending=line_ending, data_space=data_space, chunked=chunked)


class Answer(Protocol):
    """The events of one stream in one API: framed bytes, empty where the API has no such event."""

    def opening(self) -> bytes:
        """What comes before the first token and carries none (role chunk, response.created, …)."""

    def piece(self, channel: Channel, text: bytes, num_sent: int, *, last: bool) -> bytes:
        """An event with `text` (JSON-escaped); `num_sent` counts tokens up to and with this one."""

    def closing(self) -> bytes:
        """The event with the finish reason."""

    def usage(self) -> bytes:
        """The event with the token counts, and whatever else ends the stream but [DONE]."""

    def error(self, message: str, code: int) -> bytes:
        """An error object as an event."""


def usage_counts(job: Job, num_sent: int) -> dict[str, Any]:
    """OpenAI's usage object after `num_sent` output tokens; details only where the mock was told of any."""
    responses = job.api == "responses"
    first, second = ("input", "output") if responses else ("prompt", "completion")
    counts: dict[str, Any] = {
        f"{first}_tokens": job.input_tokens,
        f"{second}_tokens": num_sent,
        "total_tokens": job.input_tokens + num_sent,
    }
    if responses or job.behaviour.cached_tokens is not None:
        counts[f"{first}_tokens_details"] = {"cached_tokens": job.cached_tokens}
    if responses or job.reasoning_tokens:
        counts[f"{second}_tokens_details"] = {"reasoning_tokens": min(num_sent, job.reasoning_tokens)}
    return counts


def error_object(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """OpenAI's error shape for an HTTP status."""
    kinds = {401: "authentication_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code or status}}


def tool_arguments(text: str) -> str:
    """The arguments of the mock's tool call: one JSON object around the generated words."""
    return to_json({"text": text}).decode()


@lru_cache(maxsize=256)
def _choice_object(content: bytes, finish: bytes) -> bytes:
    """A choice without output, and the end of the list that it stands in; kept, because there are few."""
    return b'{"index":0,%b,"logprobs":null,"finish_reason":%b}]' % (content, finish)


class ChunkAnswer:
    """Chat completion chunks, and the text chunks of the older completions API."""

    __slots__ = ("_cumulative", "_framing", "_heads", "_job", "_null_tail", "_start", "_unknown")

    def __init__(self, job: Job, framing: Framing, *, answer_id: str, created: int) -> None:
        self._job = job
        self._framing = framing
        kind = "chat.completion.chunk" if job.api == "chat" else "text_completion"
        top = f'{{"id":"{answer_id}","object":"{kind}","created":{created},"model":'
        self._start = top.encode() + json_text(job.model) + b',"choices":['
        self._heads: dict[str, bytes] = {}
        self._cumulative = job.include_usage and job.behaviour.usage == "every"
        # OpenAI's own server names the usage in every chunk of such a stream, as null until the last.
        self._unknown = b',"usage":null' if job.include_usage and job.behaviour.usage == "opt-in" else b""
        self._null_tail = self._tail(self._unknown)

    def _delta(self, key: str) -> bytes:
        """What stands before the text, by channel (`tool first` is a tool call's first event)."""
        if self._job.api == "completions":
            return b'"text":"'
        if key == "tool first":
            call = b'"delta":{"tool_calls":[{"index":0,"id":"call_%d","type":"function",' % self._job.ordinal
            return call + b'"function":{"name":"look_up","arguments":"'
        if key == "reasoning":
            return b'"delta":{"%b":"' % self._job.behaviour.reasoning_field.encode()
        return _DELTAS[key]

    def _head(self, key: str) -> bytes:
        head = self._framing.prefix + self._start + b'{"index":0,' + self._delta(key)
        self._heads[key] = head
        return head

    def _tail(self, usage: bytes) -> bytes:
        return b',"logprobs":null,"finish_reason":null}]' + usage + b"}" + self._framing.end

    def _choice(self, content: bytes, finish: bytes = b"null") -> bytes:
        usage = self._unknown
        if self._cumulative:
            sent = self._job.num_tokens if finish != b"null" else 0
            usage = b',"usage":' + to_json(usage_counts(self._job, sent))
        return self._framing.event(b"%b%b%b}" % (self._start, _choice_object(content, finish), usage))

    def opening(self) -> bytes:
        """The role chunk; nothing in the completions API."""
        if self._job.api == "completions":
            return b""
        return self._choice(b'"delta":{"role":"assistant","content":""}')

    def piece(self, channel: Channel, text: bytes, num_sent: int, *, last: bool) -> bytes:
        """One chunk with output."""
        key: str = channel
        close = b'"' if self._job.api == "completions" else b'"}'
        if channel == "tool" and self._job.api == "chat":
            key, text, close = self._tool(text, num_sent, last=last)
        tail = self._null_tail
        if self._cumulative or (last and self._job.include_usage and self._job.behaviour.usage == "last"):
            tail = self._tail(b',"usage":' + to_json(usage_counts(self._job, num_sent)))
        head = self._heads.get(key) or self._head(key)
        around = self._framing.around
        if not around:
            return head + text + close + tail
        return b"%x\r\n%b%b%b%b\r\n" % (
            len(head) + len(text) + len(close) + len(tail),
            head,
            text,
            close,
            tail,
        )

    def _tool(self, text: bytes, num_sent: int, *, last: bool) -> tuple[str, bytes, bytes]:
        """The arguments of a tool call, word by word, are one JSON object in the end."""
        first = num_sent - text.count(b" ") == self._job.reasoning_tokens
        text = (b'{\\"text\\":\\"' if first else b"") + text + (b'\\"}' if last else b"")
        return ("tool first" if first else "tool"), text, b'"}}]}'

    def closing(self) -> bytes:
        """The chunk with the finish reason and no output."""
        content = b'"text":""' if self._job.api == "completions" else b'"delta":{}'
        return self._choice(content, json_text(self._job.finish_reason))

    def usage(self) -> bytes:
        """The chunk without choices that carries the counts."""
        if not self._job.include_usage or self._job.behaviour.usage == "last":
            return b""
        counts = to_json(usage_counts(self._job, self._job.num_tokens))
        return self._framing.event(self._start + b'],"usage":' + counts + b"}")

    def error(self, message: str, code: int) -> bytes:
        """The error object that servers write into a stream which has already begun with 200."""
        return self._framing.event(to_json(error_object(code, message)))


def whole_answer(job: Job, texts: dict[Channel, str], *, answer_id: str, created: int) -> dict[str, Any]:
    """The JSON document of an answer that is not streamed (chat and completions)."""
    choice: dict[str, Any] = {"index": 0}
    if job.api == "completions":
        choice["text"] = texts.get("text", "")
    else:
        message: dict[str, Any] = {"role": "assistant", "content": texts.get("text")}
        if "reasoning" in texts:
            message[job.behaviour.reasoning_field] = texts["reasoning"]
        if "refusal" in texts:
            message["refusal"] = texts["refusal"]
        if "tool" in texts:
            call = {"name": "look_up", "arguments": tool_arguments(texts["tool"])}
            message["tool_calls"] = [{"id": f"call_{job.ordinal}", "type": "function", "function": call}]
        choice["message"] = message
    choice |= {"logprobs": None, "finish_reason": job.finish_reason}
    kind = "chat.completion" if job.api == "chat" else "text_completion"
    document = {"id": answer_id, "object": kind, "created": created, "model": job.model, "choices": [choice]}
    if job.include_usage:
        document["usage"] = usage_counts(job, job.num_tokens)
    return document
