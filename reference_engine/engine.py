"""The engine on one page: requests in, tokens out, one step at a time.

Synchronous and single-threaded: whoever owns it calls `add`, `abort` and `step` from one thread. It
takes token ids and gives token ids with their text; it knows nothing of HTTP or conversations.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from reference_engine.blocks import BlockPool
from reference_engine.config import CacheSize, EngineConfig, cache_size
from reference_engine.errors import ConfigError, RequestError
from reference_engine.memory import available_bytes
from reference_engine.model import Decoder
from reference_engine.model_config import ModelConfig
from reference_engine.packing import can_pack, pack_linears
from reference_engine.runner import Runner
from reference_engine.scheduler import Policy, Scheduler
from reference_engine.tokenizer import IncrementalDecoder, StopStrings, TextTokenizer
from reference_engine.types import (
    EngineStats,
    FinishReason,
    GenerationRequest,
    RequestTimings,
    SampledToken,
    ScheduledChunk,
    TokenEvent,
)
from reference_engine.weights import load_decoder


@dataclass(slots=True)
class _Life:
    """What the engine keeps of a request beside the scheduler: its text so far, and its times."""

    decoder: IncrementalDecoder
    stop: StopStrings
    added_s: float
    started_s: float | None = None
    first_token_s: float | None = None


class Engine:
    """Schedules, computes, and turns tokens into text."""

    def __init__(self, model: Decoder, tokenizer: TextTokenizer, config: EngineConfig) -> None:
        self.config = config
        self.model_config = model.config
        self.tokenizer = tokenizer
        self.cache_size = cache_size(model.config, config, available_bytes(config))
        eos = model.config.eos_token_ids
        self.runner = Runner(model, config, self.cache_size, tuple({*eos, *tokenizer.control_ids}))
        self.scheduler = make_scheduler(config, self.cache_size, eos)
        self._lives: dict[str, _Life] = {}
        self._num_steps = self._num_prompt_tokens = self._num_generation_tokens = 0

    @classmethod
    def load(cls, folder: Path, config: EngineConfig, tokenizer: TextTokenizer | None = None) -> Engine:
        """Read weights and tokenizer from a Hugging Face folder. Raises ModelError, ConfigError."""
        if config.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("--device cuda: this torch finds no CUDA device; use --device cpu")
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        dtype: torch.dtype = getattr(torch, config.dtype)
        model = load_decoder(folder, ModelConfig.from_folder(folder), device=config.device, dtype=dtype)
        if can_pack(config.device, dtype):
            pack_linears(model)
        return cls(model, tokenizer or TextTokenizer.from_folder(folder), config)

    @property
    def has_work(self) -> bool:
        """Is any request alive?"""
        return self.scheduler.has_work

    @property
    def stats(self) -> EngineStats:
        """How it stands after the latest step."""
        scheduler = self.scheduler
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=scheduler.num_waiting,
            kv_cache_usage=scheduler.usage,
            num_steps=self._num_steps,
            num_preemptions=scheduler.num_preemptions,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generation_tokens=self._num_generation_tokens,
            prefix_cache_queries=scheduler.prefix_cache_queries,
            prefix_cache_hits=scheduler.prefix_cache_hits,
        )

    def add(self, request: GenerationRequest) -> None:
        """Queue a request. Raises RequestError if it can never be served."""
        self.check(request)
        self.scheduler.add(request)
        self._lives[request.request_id] = _Life(
            IncrementalDecoder(self.tokenizer), StopStrings(request.sampling.stop), time.perf_counter()
        )

    def check(self, request: GenerationRequest) -> None:
        """Raise RequestError for a request that can never be served. Safe from any thread."""
        check_request(
            request, max_model_len=self.config.max_model_len, vocab_size=self.model_config.vocab_size
        )

    def abort(self, request_id: str) -> None:
        """Forget a request; its blocks are free for the next step. Unknown ids are fine: it just ended."""
        self.scheduler.abort(request_id)
        self._lives.pop(request_id, None)

    def step(self) -> list[TokenEvent]:
        """Compute one step: one new token for every sequence whose prompt is complete."""
        plan = self.scheduler.schedule()
        if not plan.chunks:
            return []
        begun_s = time.perf_counter()
        for chunk in plan.chunks:
            life = self._lives[chunk.request_id]
            life.started_s = life.started_s or begun_s
        outcomes = self.runner.run(plan)
        self._num_steps += 1
        ended_s = time.perf_counter()
        events = [self._commit(chunk, token, ended_s) for chunk, token in outcomes]
        return [event for event in events if event is not None]

    def _commit(self, chunk: ScheduledChunk, token: SampledToken | None, now_s: float) -> TokenEvent | None:
        request_id = chunk.request_id
        if token is None:
            self.scheduler.commit(chunk, None)
            return None
        sequence, life = self.scheduler.running[request_id], self._lives[request_id]
        reason = self.scheduler.commit(chunk, token.token_id)
        text, is_stopped = _show(life, token.token_id, reason)
        if is_stopped and reason is None:
            self.scheduler.finish(request_id)
        reason = "stop" if is_stopped else reason
        self._num_generation_tokens += 1
        if life.first_token_s is None:
            life.first_token_s = now_s
            self._num_prompt_tokens += sequence.num_prompt_tokens
        if reason is not None:
            del self._lives[request_id]
        return TokenEvent(
            request_id=request_id,
            token_id=token.token_id,
            text=text,
            num_output_tokens=sequence.num_output_tokens,
            logprob=token.logprob,
            top_logprobs=token.top_logprobs,
            finish_reason=reason,
            num_cached_tokens=sequence.num_cached_tokens or 0,
            timings=None if reason is None else _timings(life, now_s),
        )


def make_scheduler(config: EngineConfig, size: CacheSize | None, eos_token_ids: tuple[int, ...]) -> Scheduler:
    """The scheduler and its block pool, as configured."""
    policy = Policy(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        eos_token_ids=eos_token_ids,
        batching=config.batching,
        is_chunked=config.enable_chunked_prefill,
        has_prefix_cache=config.enable_prefix_caching,
    )
    return Scheduler(policy, BlockPool(size.num_blocks, size.block_size) if size is not None else None)


def _show(life: _Life, token_id: int, reason: FinishReason | None) -> tuple[str, bool]:
    """The text this token lets out, all that is left if it is the last, and "a stop string came"."""
    new = life.decoder.push(token_id)
    if reason is not None:
        new += life.decoder.flush()
    text, is_stopped = life.stop.push(new)
    if reason is not None and not is_stopped:
        text += life.stop.flush()
    return text, is_stopped


def _timings(life: _Life, now_s: float) -> RequestTimings:
    assert life.started_s is not None
    assert life.first_token_s is not None
    return RequestTimings(
        queue_s=life.started_s - life.added_s,
        prefill_s=life.first_token_s - life.started_s,
        decode_s=now_s - life.first_token_s,
    )


def check_request(request: GenerationRequest, *, max_model_len: int, vocab_size: int) -> None:
    """Raise RequestError, with the numbers, for a request that no schedule could serve."""
    prompt, sampling = request.prompt_token_ids, request.sampling
    num_tokens = len(prompt) + sampling.max_tokens
    if not prompt:
        raise RequestError("the prompt has no tokens; one is needed to continue from", param="prompt")
    if wrong := [token for token in prompt if not 0 <= token < vocab_size]:
        raise RequestError(f"token id {wrong[0]} is outside the vocabulary of {vocab_size}", param="prompt")
    if num_tokens > max_model_len:
        raise RequestError(
            f"this model's maximum context length is {max_model_len} tokens, but {len(prompt)} prompt "
            f"tokens and max_tokens {sampling.max_tokens} were asked for ({num_tokens} in all); "
            "shorten the prompt, lower max_tokens, or start the engine with a larger --max-model-len",
            param="max_tokens" if len(prompt) < max_model_len else "prompt",
        )
