"""OpenAI's request bodies: JSON in, checked fields and `SamplingParams` out. `answers` are the way back.

Knows no HTTP and no engine. A field that would change the answer and is not implemented is refused,
never silently dropped; fields nobody here has heard of are ignored, as other servers do.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from reference_engine.errors import RequestError
from reference_engine.types import SamplingParams

MAX_CHOICES = 128  # choices of one prompt, as OpenAI has it; and of all prompts of a body together
MAX_STOPS = 16
MAX_LOGPROBS = 20  # as OpenAI's chat and vLLM have it
MAX_FAULTS = 8  # reported at once

# Known to the field, not to this engine: field -> the values that ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "allowed_token_ids": (None,),
    "audio": (None,),
    "bad_words": (None, []),
    "best_of": (None, 1),
    "echo": (None, False),
    "function_call": (None, "none", "auto"),
    "functions": (None, []),
    "grammar": (None, ""),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "include_stop_str_in_output": (None, False),
    "length_penalty": (None, 1),
    "logit_bias": (None, {}),
    "min_tokens": (None, 0),
    "modalities": (None, ["text"]),
    "prompt_embeds": (None,),
    "prompt_logprobs": (None,),
    "response_format": (None, {"type": "text"}),
    "skip_special_tokens": (None, True),
    "structured_outputs": (None,),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "truncate_prompt_tokens": (None,),
    "typical_p": (None, 1),
    "use_beam_search": (None, False),
}
_CHAT_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **_NEUTRAL,
    "add_generation_prompt": (None, True),
    "add_special_tokens": (None, False),
    "chat_template": (None,),
    "chat_template_kwargs": (None, {}),
    "continue_final_message": (None, False),
    "documents": (None, []),
}
_TEXT_NEUTRAL: dict[str, tuple[Any, ...]] = {**_NEUTRAL, "add_special_tokens": (None, True)}

# A number that no answer to a fault has to print in full, and that fits any counter.
Count = Annotated[int, Field(ge=1, lt=2**31)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class StreamOptions(BaseModel):
    """`stream_options`; `continuous_usage_stats` is vLLM's: usage so far with every chunk."""

    model_config = ConfigDict(strict=True)
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(BaseModel):
    """What chat and completion bodies share."""

    model_config = ConfigDict(strict=True)
    neutral: ClassVar[dict[str, tuple[Any, ...]]]
    model: str | None = None
    max_tokens: Count | None = None
    temperature: float | None = Field(None, ge=0, le=100, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    top_p: float | None = Field(None, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=1024, fail_fast=True)] | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    ignore_eos: bool | None = None
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, body: Any) -> Any:
        if isinstance(body, dict):
            for key, neutral in cls.neutral.items():
                if key in body and body[key] not in neutral:
                    raise RequestError(f"{key} is not supported by this engine; leave it out", param=key)
        return body

    @property
    def is_usage_streamed(self) -> bool:
        """Was the extra usage chunk asked for?"""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def is_usage_continuous(self) -> bool:
        """Was usage asked for in every chunk? As vLLM has it, only together with the extra chunk."""
        return self.is_usage_streamed and bool(
            self.stream_options and self.stream_options.continuous_usage_stats
        )

    @property
    def num_logprobs(self) -> int | None:
        """None: no log-probabilities; else how many of the likeliest beside the chosen token's."""
        raise NotImplementedError

    def asked_tokens(self) -> int | None:
        """The most tokens to generate; None leaves it to the endpoint."""
        return self.max_tokens

    def sampling(self, default_max_tokens: int) -> SamplingParams:
        """Defaults are OpenAI's: temperature 1, no filters, a seed nobody knows. Raises RequestError."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if "" in stop:
            raise RequestError("stop: a stop string must not be empty", param="stop")
        return SamplingParams(
            max_tokens=self.asked_tokens() or default_max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_k=max(self.top_k or 0, 0),
            top_p=1.0 if self.top_p is None else self.top_p,
            min_p=self.min_p or 0.0,
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            seed=secrets.randbits(64) if self.seed is None else self.seed,
            stop=tuple(stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            num_logprobs=self.num_logprobs,
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
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]

    def flat(self) -> dict[str, str]:
        """As chat templates expect it: content is one string."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": text}


Messages = Annotated[list[Message], Field(min_length=1, fail_fast=True)]


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`."""

    neutral = _CHAT_NEUTRAL
    messages: Messages
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @property
    def num_logprobs(self) -> int | None:
        """OpenAI has two fields for it here."""
        if not self.logprobs:
            if self.top_logprobs:
                raise RequestError("top_logprobs: only together with logprobs: true", param="top_logprobs")
            return None
        return self.top_logprobs or 0

    def asked_tokens(self) -> int | None:
        """`max_completion_tokens` is the newer name and wins."""
        return self.max_completion_tokens or self.max_tokens


class CompletionBody(GenerationBody):
    """`POST /v1/completions`."""

    neutral = _TEXT_NEUTRAL
    prompt: Any
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @property
    def num_logprobs(self) -> int | None:
        """OpenAI has one field for it here."""
        return self.logprobs

    def prompts(self) -> list[str | list[int]]:
        """Each text, or token ids. Raises RequestError.

        Checked by hand: each of the four shapes tried in turn would report a fault for every element.
        """
        prompt = self.prompt
        if isinstance(prompt, str) or _is_token_ids(prompt):
            return [prompt]
        if not isinstance(prompt, list) or not all(isinstance(p, str) or _is_token_ids(p) for p in prompt):
            raise RequestError("prompt: must be text, token ids, or a list of either", param="prompt")
        if len(prompt) * (self.n or 1) > MAX_CHOICES:
            message = (
                f"prompt: {len(prompt)} prompts, n {self.n or 1}; at most {MAX_CHOICES} choices a request"
            )
            raise RequestError(message, param="prompt")
        return prompt


def _is_token_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(type(token) is int and 0 <= token < 2**31 for token in prompt)


class TokenizeBody(BaseModel):
    """`POST /tokenize`: exactly one of `prompt` and `messages`."""

    model_config = ConfigDict(strict=True)
    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_generation_prompt: bool = True

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeBody(BaseModel):
    """`POST /detokenize`."""

    model_config = ConfigDict(strict=True)
    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


Body = TypeVar("Body", bound=BaseModel)


def parse_body(kind: type[Body], raw: bytes) -> Body:
    """Validate a JSON body. Raises RequestError naming the fields at fault."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)[:MAX_FAULTS]
        named = [(".".join(str(part) for part in fault["loc"]), fault["msg"]) for fault in faults]
        message = "; ".join(f"{where}: {what}" if where else what for where, what in named)
        raise RequestError(message, param=named[0][0].split(".")[0] or None) from None
