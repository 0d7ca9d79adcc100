"""The words the engine's parts speak to each other: plain frozen values, no torch, no text of HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# stop: end-of-sequence token, a stop token or a stop string; length: max_tokens or the model's length.
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose the next token. Defaults are greedy and change nothing.

    Penalties are those of OpenAI's API (presence, frequency: over the output) and of CTRL (Keskar et al.
    2019, repetition: over prompt and output); min_p is that of Nguyen et al. 2024.
    """

    max_tokens: int = 16
    temperature: float = 0.0  # 0 = greedy
    top_k: int = 0  # 0 = all
    top_p: float = 1.0
    min_p: float = 0.0  # tokens less likely than this share of the likeliest are left out
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0  # with temperature > 0: the same seed gives the same text, whatever else is running
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False  # control tokens are then never sampled, so that text goes on to max_tokens
    num_logprobs: int | None = None  # None: none; 0: of the chosen token; n: of the n likeliest as well

    @property
    def has_penalty(self) -> bool:
        """Must the tokens so far be looked at?"""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Token ids to continue, and how. `request_id` is unique among the requests now alive.

    `shares_prompt_with` names an earlier request with the very same prompt: this one waits until that
    prompt is computed and takes its blocks instead of computing it again (OpenAI's `n`).
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    priority: int = 0  # lower goes first; equals go in order of arrival
    shares_prompt_with: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRow:
    """One row of logits to sample from, and all that the choice depends on."""

    sampling: SamplingParams
    token_ids: Sequence[int]  # prompt and output so far; the scheduler's own list: read, never kept
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledToken:
    """A chosen token; log-probabilities (natural) when asked for.

    They are those of the model itself: after no temperature, filter or penalty.
    """

    token_id: int
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()  # the likeliest first


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimings:
    """Where the time of a finished request went, in seconds.

    Their sum is the time from `Engine.add` to the last token. Time spent preempted counts as decode.
    """

    queue_s: float  # from being added to the first step that computed any of it
    prefill_s: float  # from there to the first token
    decode_s: float  # from the first token to the last


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
    logprob: float | None = None
    top_logprobs: tuple[tuple[int, float], ...] = ()
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0  # prompt tokens that the prefix cache had, as of the first admission
    timings: RequestTimings | None = None  # with the last event


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledChunk:
    """Tokens of one sequence to compute in one step: (a part of) its prompt, or the last sampled token.

    Their keys and values go to positions `start ... end - 1`; position p lives in block
    `block_table[p // block_size]` at offset `p % block_size`. Without a cache the table is empty and
    `start` is 0.
    """

    request_id: str
    start: int
    token_ids: tuple[int, ...]
    block_table: tuple[int, ...]
    sample: SampleRow | None  # None: more of the prompt follows in a later step, nothing is sampled

    @property
    def end(self) -> int:
        """Context length after the step, which is also the position of the token sampled."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What one step computes, at most one chunk a sequence.

    `copies` are (from, to) blocks to be copied before anything is computed: copy on write.
    """

    chunks: tuple[ScheduledChunk, ...]
    copies: tuple[tuple[int, int], ...] = ()

    @property
    def num_tokens(self) -> int:
        """Rows of the step's matrix products."""
        return sum(len(chunk.token_ids) for chunk in self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """How the engine stands, and running totals since it started."""

    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0  # share of blocks that living sequences hold
    num_steps: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0  # computed or found in the prefix cache
    num_generation_tokens: int = 0
    prefix_cache_queries: int = 0  # prompt tokens looked up
    prefix_cache_hits: int = 0  # of them, found
