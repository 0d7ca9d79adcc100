"""OpenAI's answers: what one HTTP request gets back, whole or as the events of a stream; errors.

Knows no HTTP and no engine; it is fed with the `TokenEvent`s of one or more choices. Beyond OpenAI's
shape there is one key, `timings`, beside `usage`: seconds in the queue, of the prompt, of the answer.

All of a stream's events but the text and its numbers are the same, so they are rendered once; what is
left to do for a token is to quote its text. JSON is ASCII throughout: no client can take a line
separator within a text for the end of a line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from reference_engine.token_text import TokenText
from reference_engine.types import TokenEvent

LEAST_LOGPROB = -9999.0  # as OpenAI has it; JSON knows no infinity
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every chunk of an answer repeats, and which extras were asked for."""

    request_id: str
    created_s: int
    model: str
    is_chat: bool
    token_text: TokenText | None = None  # with log-probabilities: how tokens look
    is_usage_streamed: bool = False
    is_usage_continuous: bool = False


@dataclass(slots=True)
class _Choice:
    """One choice so far."""

    index: int
    before: str = ""  # the event of a stream up to its text
    texts: list[str] = field(default_factory=list)  # only where the answer is not streamed
    tokens: list[TokenEvent] = field(default_factory=list)  # whose log-probabilities are not told yet
    num_chars: int = 0  # of the tokens told
    last: TokenEvent | None = None


class Answer:
    """The choices of one HTTP request: `n` for each prompt, in the order of the prompts.

    `names [prompts * n]` are the engine's ids of the choices, `prompt_sizes` the prompts' tokens.
    """

    def __init__(self, head: Head, *, names: Sequence[str], prompt_sizes: Sequence[int]) -> None:
        self.head = head
        self._num_prompt_tokens = sum(prompt_sizes)
        self._choices = {name: _Choice(index) for index, name in enumerate(names)}
        self._firsts = list(self._choices.values())[:: len(names) // len(prompt_sizes)]  # of each prompt
        self.num_unfinished = len(names)
        self._num_output_tokens = 0
        self._last: TokenEvent | None = None
        self._fields = {"id": head.request_id, "created": head.created_s, "model": head.model}
        # {"id":...,"choices":[ and ]} around what differs from chunk to chunk
        self._start = (
            f"data: {_dumps({**self._fields, 'object': self._object(is_chunk=True), 'choices': []})[:-2]}"
        )
        self._content = '"delta":{"content":' if head.is_chat else '"text":'
        self._content_end = "}" if head.is_chat else ""
        for choice in self._choices.values():
            choice.before = f'{self._start}{{"index":{choice.index},{self._content}'
        usage = ',"usage":null' if head.is_usage_streamed else ""  # as OpenAI has it
        self._after = f'{self._content_end},"logprobs":null,"finish_reason":null}}]{usage}}}\n\n'
        self._is_plain = head.token_text is None and not head.is_usage_continuous

    # Streamed.

    def event(self, event: TokenEvent) -> bytes:
        """What a token adds to the stream: nothing if it shows no text (yet) and is not the last."""
        choice = self._choices[event.request_id]
        if choice.last is None or event.finish_reason is not None or not self._is_plain:
            return self._special_event(choice, event)
        choice.last = event
        self._num_output_tokens += 1
        return f"{choice.before}{quote(event.text)}{self._after}".encode() if event.text else b""

    def _special_event(self, choice: _Choice, event: TokenEvent) -> bytes:
        """The first (with the role), the last, and all where there are log-probabilities or usage."""
        is_first = choice.last is None
        self._take(choice, event)
        out = ""
        if is_first and self.head.is_chat:
            out += self._chunk(choice.index, '"delta":{"role":"assistant","content":""}')
        if event.text:
            text = f"{self._content}{quote(event.text)}{self._content_end}"
            out += self._chunk(choice.index, text, logprobs=self._logprobs(choice))
        if event.finish_reason is not None:
            content = '"delta":{}' if self.head.is_chat else '"text":""'
            out += self._chunk(choice.index, content, self._logprobs(choice), event.finish_reason)
        return out.encode()

    def ending(self) -> bytes:
        """The events after the last token's."""
        if not self.head.is_usage_streamed:
            return DONE
        usage = _dumps({"usage": self.usage(), "timings": self.timings()})
        return f"{self._start}],{usage[1:]}\n\n".encode() + DONE

    def _chunk(
        self, index: int, content: str, logprobs: dict[str, Any] | None = None, reason: str | None = None
    ) -> str:
        usage = ""
        if self.head.is_usage_streamed:
            counts = self.usage() if self.head.is_usage_continuous else None
            usage = f',"usage":{_dumps(counts)}'
        rest = f'"logprobs":{_dumps(logprobs)},"finish_reason":{_dumps(reason)}'
        return f'{self._start}{{"index":{index},{content},{rest}}}]{usage}}}\n\n'

    # Whole.

    def add(self, event: TokenEvent) -> None:
        """Keep a token for `whole`."""
        choice = self._choices[event.request_id]
        self._take(choice, event)
        choice.texts.append(event.text)

    def whole(self) -> dict[str, Any]:
        """The answer of a request that does not stream, once all choices have ended."""
        return {
            **self._fields,
            "object": self._object(is_chunk=False),
            "choices": [self._whole_choice(choice) for choice in self._choices.values()],
            "usage": self.usage(),
            "timings": self.timings(),
        }

    def _whole_choice(self, choice: _Choice) -> dict[str, Any]:
        text = "".join(choice.texts)
        content = {"message": {"role": "assistant", "content": text}} if self.head.is_chat else {"text": text}
        reason = choice.last.finish_reason if choice.last is not None else None
        return {
            "index": choice.index,
            **content,
            "logprobs": self._logprobs(choice),
            "finish_reason": reason,
        }

    # Both.

    def usage(self) -> dict[str, Any]:
        """OpenAI's `usage` so far; a prompt counts once, however many choices it has."""
        cached = sum(choice.last.num_cached_tokens for choice in self._firsts if choice.last is not None)
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": self._num_output_tokens,
            "total_tokens": self._num_prompt_tokens + self._num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def timings(self) -> dict[str, float] | None:
        """Where the time of the choice that ended last went, in seconds."""
        timings = self._last.timings if self._last is not None else None
        if timings is None:
            return None
        names = ("queue_s", "prefill_s", "decode_s")
        return {name: round(getattr(timings, name), 6) for name in names}

    def _take(self, choice: _Choice, event: TokenEvent) -> None:
        choice.last = event
        self._num_output_tokens += 1
        if self.head.token_text is not None:
            choice.tokens.append(event)
        if event.finish_reason is not None:
            self._last = event
            self.num_unfinished -= 1

    def _object(self, *, is_chunk: bool) -> str:
        if not self.head.is_chat:
            return "text_completion"
        return "chat.completion.chunk" if is_chunk else "chat.completion"

    def _logprobs(self, choice: _Choice) -> dict[str, Any] | None:
        """Log-probabilities of the tokens since they were last told, those without text included."""
        look = self.head.token_text
        if look is None:
            return None
        events, choice.tokens = choice.tokens, []
        if self.head.is_chat:
            return {"content": [_chat_token(look, event) for event in events]}
        answer: dict[str, list[Any]] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for event in events:
            answer["tokens"].append(look.text(event.token_id))
            answer["token_logprobs"].append(_finite(event.logprob))
            # A dict by text, as OpenAI has it: of tokens that look the same, the likelier one.
            tops = [*event.top_logprobs, (event.token_id, event.logprob)]
            answer["top_logprobs"].append({look.text(t): _finite(value) for t, value in reversed(tops)})
            answer["text_offset"].append(choice.num_chars)
            choice.num_chars += look.num_chars(event.token_id)
        return answer


def _chat_token(look: TokenText, event: TokenEvent) -> dict[str, Any]:
    tops = [_named(look, token_id, value) for token_id, value in event.top_logprobs]
    return {**_named(look, event.token_id, event.logprob), "top_logprobs": tops}


def _named(look: TokenText, token_id: int, logprob: float | None) -> dict[str, Any]:
    return {"token": look.text(token_id), "logprob": _finite(logprob), "bytes": list(look.raw(token_id))}


def _finite(logprob: float | None) -> float:
    return LEAST_LOGPROB if logprob is None else max(logprob, LEAST_LOGPROB)


def error_body(
    message: str, *, status: int, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """OpenAI's error shape."""
    kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code or status}}


def error_event(message: str) -> bytes:
    """An error in a stream, whose status is out already."""
    return f"data: {_dumps(error_body(message, status=500))}\n\n".encode()


def _dumps(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
