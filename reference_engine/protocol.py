"""OpenAI's shapes: request bodies in, `SamplingParams` out; answers, chunks and errors as plain dicts.

Knows no HTTP and no engine. A field that would change the answer and is not implemented is refused,
never silently dropped; fields nobody here has heard of are ignored, as other servers do.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from reference_engine.errors import RequestError
from reference_engine.types import FinishReason, SamplingParams

# Known to the field, not to this engine: field -> the values that ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (None, 1),
    "best_of": (None, 1),
    "min_p": (None, 0),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "top_logprobs": (None, 0),
    "echo": (None, False),
    "suffix": (None, ""),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "min_tokens": (None, 0),
    "stop_token_ids": (None, []),
}


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(strict=True)
    include_usage: bool = False


class GenerationBody(BaseModel):
    """What chat and completion bodies share."""

    model_config = ConfigDict(strict=True)
    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=-1)
    top_p: float | None = Field(None, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, body: Any) -> Any:
        if isinstance(body, dict):
            for key, neutral in _NEUTRAL.items():
                if body.get(key) not in neutral:
                    raise RequestError(f"{key} is not supported by this engine; leave it out", param=key)
        return body

    @property
    def is_usage_streamed(self) -> bool:
        """Was the extra usage chunk asked for?"""
        return self.stream_options is not None and self.stream_options.include_usage

    def asked_tokens(self) -> int | None:
        """The most tokens to generate; None leaves it to the endpoint."""
        return self.max_tokens

    def sampling(self, default_max_tokens: int) -> SamplingParams:
        """Defaults are OpenAI's: temperature 1, no filters, a seed nobody knows."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if "" in stop:
            raise RequestError("stop: a stop string must not be empty", param="stop")
        return SamplingParams(
            max_tokens=self.asked_tokens() or default_max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(self.top_k or 0, 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=secrets.randbits(64) if self.seed is None else self.seed,
            stop=tuple(stop),
            ignore_eos=self.ignore_eos,
        )


class TextPart(BaseModel):
    """One part of a message's content; only text has a meaning here."""

    model_config = ConfigDict(strict=True)
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(strict=True)
    role: Literal["system", "user", "assistant"]
    content: str | list[TextPart]

    def flat(self) -> dict[str, str]:
        """As chat templates expect it: content is one string."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": text}


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)

    def asked_tokens(self) -> int | None:
        """`max_completion_tokens` is the newer name and wins."""
        return self.max_completion_tokens or self.max_tokens


class CompletionBody(GenerationBody):
    """`POST /v1/completions`. A list of one prompt is taken for that prompt; longer lists are refused."""

    prompt: str | list[int] | list[str] | list[list[int]]

    def one_prompt(self) -> str | list[int]:
        """Text, or token ids."""
        if isinstance(self.prompt, str) or not self.prompt:
            return self.prompt  # type: ignore[return-value]  # an empty list is a prompt without tokens
        first = self.prompt[0]
        if isinstance(first, int):
            return self.prompt  # type: ignore[return-value]  # pydantic made sure that all are
        if len(self.prompt) > 1:
            raise RequestError("only one prompt a request; send several requests", param="prompt")
        return first


class TokenizeBody(BaseModel):
    """`POST /tokenize`: exactly one of `prompt` and `messages`."""

    model_config = ConfigDict(strict=True)
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    add_generation_prompt: bool = True

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeBody(BaseModel):
    """`POST /detokenize`."""

    model_config = ConfigDict(strict=True)
    tokens: list[int]


Body = TypeVar("Body", bound=BaseModel)


def parse_body(kind: type[Body], raw: bytes) -> Body:
    """Validate a JSON body. Raises RequestError naming every field at fault."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        named = [(".".join(str(part) for part in fault["loc"]), fault["msg"]) for fault in faults]
        message = "; ".join(f"{where}: {what}" if where else what for where, what in named)
        raise RequestError(message, param=named[0][0].split(".")[0] or None) from None


def error_body(
    message: str, *, status: int, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """OpenAI's error shape."""
    kinds = {401: "authentication_error", 404: "not_found_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code or status}}


def usage(num_prompt_tokens: int, num_output_tokens: int) -> dict[str, int]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": num_prompt_tokens + num_output_tokens,
    }


class Shape:
    """The answers to one request, chat or completion: whole, or as the chunks of a stream."""

    def __init__(self, *, is_chat: bool, request_id: str, created_s: int, model: str) -> None:
        self._is_chat = is_chat
        self._head = {"id": request_id, "created": created_s, "model": model}

    def opening(self) -> dict[str, Any] | None:
        """The role chunk that begins a chat stream."""
        return self._chunk({"delta": {"role": "assistant", "content": ""}}, None) if self._is_chat else None

    def piece(self, text: str) -> dict[str, Any]:
        """A chunk of text."""
        return self._chunk({"delta": {"content": text}} if self._is_chat else {"text": text}, None)

    def closing(self, reason: FinishReason) -> dict[str, Any]:
        """The chunk that says why the text ended."""
        return self._chunk({"delta": {}} if self._is_chat else {"text": ""}, reason)

    def usage_chunk(self, counts: dict[str, int]) -> dict[str, Any]:
        """The chunk after the last, without choices."""
        return {**self._head, "object": self._object(is_chunk=True), "choices": [], "usage": counts}

    def whole(self, texts: Sequence[str], reason: FinishReason, counts: dict[str, int]) -> dict[str, Any]:
        """The answer of a request that does not stream."""
        text = "".join(texts)
        content = {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": reason}
        return {**self._head, "object": self._object(is_chunk=False), "choices": [choice], "usage": counts}

    def _chunk(self, content: dict[str, Any], reason: FinishReason | None) -> dict[str, Any]:
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": reason}
        return {**self._head, "object": self._object(is_chunk=True), "choices": [choice]}

    def _object(self, *, is_chunk: bool) -> str:
        if not self._is_chat:
            return "text_completion"
        return "chat.completion.chunk" if is_chunk else "chat.completion"
