"""A request's bytes: the HTTP head once for a run, the JSON body once for each request. No I/O.

Bodies follow OpenAI's API reference (chat completions, completions, responses). What the user put under
`target.body` is merged last, so that it wins over anything set here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import orjson

from llmbench.client.body import a_text
from llmbench.client.exchange import Outgoing
from llmbench.scenario.address import Address

Api = Literal["chat", "completions", "responses"]


@dataclass(frozen=True, kw_only=True)
class Destination:
    """Where requests go and what their heads carry. `headers` may hold secrets: never print it."""

    address: Address
    api: Api
    headers: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return f"Destination({self.address.url(self.api)})"

    @cached_property
    def _head(self) -> bytes:
        """The head up to the headers that differ between requests, each line ended."""
        lines = [f"POST {self.address.path(self.api)} HTTP/1.1"]
        if not self._has("host"):
            lines.append(f"Host: {self.address.authority}")
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "".join(f"{line}\r\n" for line in lines).encode("latin-1")

    def _has(self, name: str) -> bool:
        return any(one.lower() == name for one, _ in self.headers)

    @cached_property
    def names_requests(self) -> bool:
        """Whether requests carry our X-Request-Id: unless the user's headers have one."""
        return not self._has("x-request-id")

    def headers_of(self, request_id: str) -> list[tuple[str, str]]:
        """The headers of one request, for a transport that frames it itself."""
        return [*self.headers, ("X-Request-Id", request_id)] if self.names_requests else [*self.headers]

    def frame(self, index: int, request_id: str, payload: bytes) -> Outgoing:
        """The whole HTTP/1.1 message of one request (RFC 9112)."""
        name = b"X-Request-Id: %b\r\n" % request_id.encode("ascii") if self.names_requests else b""
        message = b"%b%bContent-Length: %d\r\n\r\n%b" % (self._head, name, len(payload), payload)
        return Outgoing(
            index=index, request_id=request_id, message=message, body_start=len(message) - len(payload)
        )


def request_headers(
    *, api_key: str | None, extra: Mapping[str, str], stream: bool, agent: str
) -> tuple[tuple[str, str], ...]:
    """Headers of every request. The user's own win over ours, whatever their case.

    No compression is offered: a compressor may hold tokens back.
    """
    headers = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream" if stream else "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": agent,
    }
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    names = {name.lower() for name in extra}
    kept = [(name, value) for name, value in headers.items() if name.lower() not in names]
    return (*kept, *extra.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyStyle:
    """What a run's bodies have in common: the model's name and what this server understands."""

    api: Api
    model: str
    stream: bool = True
    usage: bool = True
    ignore_eos: bool = False
    extra: Mapping[str, Any]


def render_body(
    style: BodyStyle,
    *,
    prompt: str | None = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
    max_tokens: int | None = None,
    own: Mapping[str, Any] | None = None,
) -> bytes:
    """The JSON body of one request, from a prompt or from messages (one of the two). `own` is what this
    request alone adds (tools, say); the user's `target.body` wins over it.
    """
    body: dict[str, Any] = {"model": style.model}
    if style.api == "chat":
        body["messages"] = messages if messages is not None else [{"role": "user", "content": prompt}]
    elif style.api == "completions":
        body["prompt"] = prompt if prompt is not None else flatten_messages(messages or ())
    else:
        body["input"] = messages if messages is not None else prompt
    if max_tokens is not None:
        body["max_output_tokens" if style.api == "responses" else "max_tokens"] = max_tokens
    if style.ignore_eos:
        body["ignore_eos"] = True
    body["stream"] = style.stream
    if style.stream and style.usage and style.api != "responses":
        body["stream_options"] = {"include_usage": True}
    if own:
        body.update(own)
    body.update(style.extra)
    return orjson.dumps(body)


def flatten_messages(messages: Sequence[Mapping[str, Any]]) -> str:
    """Messages as plain text, for an API that knows only prompts."""
    return "\n".join(a_text(message.get("content")) for message in messages)
