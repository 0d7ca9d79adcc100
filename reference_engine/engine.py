"""The engine on one page: requests in, tokens out, one step at a time.

Synchronous and single-threaded: whoever owns it calls `add`, `abort` and `step` from one thread. It
takes token ids and gives token ids with their text; it knows nothing of HTTP, clocks or conversations.
"""

from __future__ import annotations

from pathlib import Path

import torch

from reference_engine.config import EngineConfig
from reference_engine.errors import ConfigError, RequestError
from reference_engine.model import Decoder
from reference_engine.model_config import ModelConfig
from reference_engine.packing import can_pack, pack_linears
from reference_engine.runner import Runner
from reference_engine.scheduler import Scheduler
from reference_engine.tokenizer import IncrementalDecoder, StopStrings, TextTokenizer
from reference_engine.types import FinishReason, GenerationRequest, ScheduledChunk, TokenEvent
from reference_engine.weights import load_decoder


class Engine:
    """Schedules, computes, and turns tokens into text."""

    def __init__(self, model: Decoder, tokenizer: TextTokenizer, config: EngineConfig) -> None:
        self.config = config
        self.model_config = model.config
        self.tokenizer = tokenizer
        eos = model.config.eos_token_ids
        self.runner = Runner(model, config, tuple({*eos, *tokenizer.control_ids}))
        self.scheduler = Scheduler(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=config.max_model_len,
            eos_token_ids=eos,
        )
        self._texts: dict[str, tuple[IncrementalDecoder, StopStrings]] = {}

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

    def add(self, request: GenerationRequest) -> None:
        """Queue a request. Raises RequestError if it can never be served."""
        self.check(request)
        self.scheduler.add(request)
        self._texts[request.request_id] = (
            IncrementalDecoder(self.tokenizer),
            StopStrings(request.sampling.stop),
        )

    def check(self, request: GenerationRequest) -> None:
        """Raise RequestError for a request that can never be served. Safe from any thread."""
        check_request(
            request, max_model_len=self.config.max_model_len, vocab_size=self.model_config.vocab_size
        )

    def abort(self, request_id: str) -> None:
        """Forget a request; its slot is free for the next step. Unknown ids are fine: it just ended."""
        self.scheduler.abort(request_id)
        self._texts.pop(request_id, None)

    def step(self) -> list[TokenEvent]:
        """Compute one step: one new token for every sequence in it."""
        plan = self.scheduler.schedule()
        if not plan.chunks:
            return []
        return [self._commit(chunk, token_id) for chunk, token_id in self.runner.run(plan)]

    def _commit(self, chunk: ScheduledChunk, token_id: int) -> TokenEvent:
        request_id = chunk.request_id
        num_output_tokens = self.scheduler.running[request_id].num_output_tokens + 1
        reason = self.scheduler.commit(chunk, token_id)
        text, is_stopped = self._show(request_id, token_id, reason)
        if is_stopped and reason is None:
            self.scheduler.finish(request_id)
        if is_stopped:
            reason = "stop"
        if reason is not None:
            del self._texts[request_id]
        return TokenEvent(
            request_id=request_id,
            token_id=token_id,
            text=text,
            num_output_tokens=num_output_tokens,
            finish_reason=reason,
        )

    def _show(self, request_id: str, token_id: int, reason: FinishReason | None) -> tuple[str, bool]:
        """The text this token lets out, all that is left if it is the last, and "a stop string came"."""
        decoder, stop = self._texts[request_id]
        new = decoder.push(token_id)
        if reason is not None:
            new += decoder.flush()
        text, is_stopped = stop.push(new)
        if reason is not None and not is_stopped:
            text += stop.flush()
        return text, is_stopped


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
