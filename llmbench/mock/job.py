"""One generation request, read and decided: how many tokens go in and come out, and why the answer ends.

`read_job` is pure: a decoded body and the behaviour in force become a `Job`, or a `Refusal` that says
which HTTP status and message the client gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from llmbench.mock.options import Behaviour
from llmbench.mock.tokens import ANSWER_OVERHEAD_TOKENS, MESSAGE_OVERHEAD_TOKENS, count_tokens

Api = Literal["chat", "completions", "responses"]

MAX_TOKEN_KEYS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


class Refusal(Exception):
    """A request that is answered with an HTTP error: status and the parts of OpenAI's error object."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A request as the mock will answer it. Counts are tokens."""

    api: Api
    ordinal: int
    model: str
    prompt: str
    stream: bool
    include_usage: bool
    input_tokens: int
    num_tokens: int
    finish_reason: str
    behaviour: Behaviour

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that cost no prefill."""
        return min(self.behaviour.cached_tokens or 0, self.input_tokens)

    @property
    def reasoning_tokens(self) -> int:
        """How many of the first output tokens are reasoning; the completions API has none."""
        return 0 if self.api == "completions" else min(self.behaviour.reasoning_tokens, self.num_tokens)


def content_text(content: object) -> str:
    """The text of a message's content: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return " ".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return ""


def messages_text(messages: object, param: str) -> tuple[str, int]:
    """(prompt text, prompt tokens) of chat messages, template included; Refusal where there are none."""
    if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
        raise Refusal(400, f"'{param}' must be a list of messages that is not empty", param=param)
    texts = [content_text(message.get("content")) for message in messages]
    tokens = sum(map(count_tokens, texts)) + len(texts) * MESSAGE_OVERHEAD_TOKENS + ANSWER_OVERHEAD_TOKENS
    return "\n".join(texts), tokens


def prompt_text(prompt: object) -> tuple[str, int]:
    """(prompt text, prompt tokens) of a completions prompt: text, token ids, or a list of either as one."""
    if isinstance(prompt, str):
        return prompt, count_tokens(prompt)
    if isinstance(prompt, list) and prompt:
        if all(isinstance(item, int) for item in prompt):
            return " ".join(map(str, prompt)), len(prompt)
        parts = [prompt_text(item) for item in prompt]
        return "\n".join(text for text, _ in parts), sum(tokens for _, tokens in parts)
    raise Refusal(400, "'prompt' must be text or a list of token ids", param="prompt")


def _read_prompt(api: Api, body: Mapping[str, Any]) -> tuple[str, int]:
    if api == "chat":
        return messages_text(body.get("messages"), "messages")
    if api == "completions":
        return prompt_text(body.get("prompt"))
    asked = body.get("input")
    messages = [{"content": asked}] if isinstance(asked, str) else asked
    if body.get("instructions") and isinstance(messages, list):
        messages = [{"content": body["instructions"]}, *messages]
    return messages_text(messages, "input")


def _asked_maximum(body: Mapping[str, Any]) -> int | None:
    for key in MAX_TOKEN_KEYS:
        asked = body.get(key)
        if asked is None:
            continue
        if not isinstance(asked, int) or isinstance(asked, bool) or asked < 0:
            raise Refusal(400, f"'{key}' must be a whole number of at least 0, not {asked!r}", param=key)
        return asked
    return None


def _length(body: Mapping[str, Any], behaviour: Behaviour) -> tuple[int, str]:
    """(output tokens, why it ends there)."""
    maximum = None if behaviour.ignore_max else _asked_maximum(body)
    tokens, reason = (behaviour.tokens, "stop") if maximum is None else (maximum, "length")
    if behaviour.stop_after is not None and behaviour.stop_after < tokens and not body.get("ignore_eos"):
        tokens, reason = behaviour.stop_after, "stop"
    if behaviour.answer == "tool" and reason == "stop":
        reason = "tool_calls"
    return tokens, reason if behaviour.finish_reason == "auto" else behaviour.finish_reason


def _include_usage(body: Mapping[str, Any], behaviour: Behaviour) -> bool:
    if behaviour.usage != "opt-in":
        return behaviour.usage != "none"
    asked = body.get("stream_options")
    return isinstance(asked, dict) and bool(asked.get("include_usage"))


def read_job(
    api: Api,
    body: Mapping[str, Any],
    behaviour: Behaviour,
    *,
    ordinal: int,
    model: str,
    max_model_len: int | None,
) -> Job:
    """The job of a decoded request body; `model` is used where the body names none. Raises Refusal."""
    for key in behaviour.reject:
        if key in body:
            raise Refusal(
                400, f"Unrecognized request argument supplied: {key}", param=key, code="unknown_parameter"
            )
    prompt, input_tokens = _read_prompt(api, body)
    num_tokens, finish_reason = _length(body, behaviour)
    if max_model_len is not None and input_tokens + num_tokens > max_model_len:
        raise Refusal(
            400,
            f"This model's maximum context length is {max_model_len} tokens, but {input_tokens} of prompt "
            f"and {num_tokens} of output were asked for",
            param="messages" if api == "chat" else "prompt",
            code="context_length_exceeded",
        )
    return Job(
        api=api,
        ordinal=ordinal,
        model=str(body.get("model") or model),
        prompt=prompt,
        stream=bool(body.get("stream")),
        # Neither the responses API nor a plain answer has an opt-in: their usage comes unless told otherwise.
        include_usage=_include_usage(body, behaviour)
        or (behaviour.usage == "opt-in" and (api == "responses" or not body.get("stream"))),
        input_tokens=input_tokens,
        num_tokens=num_tokens,
        finish_reason=finish_reason,
        behaviour=behaviour,
    )
