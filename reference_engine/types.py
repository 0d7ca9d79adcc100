"""The words the engine's parts speak to each other: plain frozen values, no torch, no text of HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# stop: end-of-sequence token or a stop string; length: max_tokens or the model's length was reached.
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose the next token. Defaults are greedy and change nothing."""

    max_tokens: int = 16
    temperature: float = 0.0  # 0 = greedy
    top_k: int = 0  # 0 = all
    top_p: float = 1.0
    seed: int = 0  # with temperature > 0: the same seed gives the same text, whatever else is running
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False  # control tokens are then never sampled, so that text goes on to max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Token ids to continue, and how. `request_id` is unique among the requests now alive."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEvent:
    """One sampled token.

    `text` is what can be shown because of it: often its own characters, nothing while half a character
    or the possible start of a stop string is held back, the rest at the end.
    """

    request_id: str
    token_id: int
    text: str
    num_output_tokens: int  # so far, this one included
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledChunk:
    """Tokens of one sequence to compute in one step: a whole prompt, or the last sampled token.

    Their keys and values go to positions `start ...` of KV slot `slot`, and one token is sampled
    from the last of them.
    """

    request_id: str
    slot: int
    start: int
    token_ids: tuple[int, ...]
    sampling: SamplingParams

    @property
    def end(self) -> int:
        """Context length after the step, which is also the position of the token sampled."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What one step computes, at most one chunk a sequence."""

    chunks: tuple[ScheduledChunk, ...]

    @property
    def num_tokens(self) -> int:
        """Rows of the step's matrix products."""
        return sum(len(chunk.token_ids) for chunk in self.chunks)
