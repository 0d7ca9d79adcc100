"""A small random network for what needs no sense, and the bundled model for what does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

from reference_engine.catalog import BUNDLED
from reference_engine.config import EngineConfig, Switches
from reference_engine.engine import Engine
from reference_engine.model import Decoder
from reference_engine.model_config import ModelConfig
from reference_engine.tokenizer import TextTokenizer
from reference_engine.types import GenerationRequest, SamplingParams, TokenEvent

MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="session")
def tiny_folder() -> Path:
    return BUNDLED["tiny"]


@pytest.fixture(scope="session")
def tokenizer(tiny_folder: Path) -> TextTokenizer:
    return TextTokenizer.from_folder(tiny_folder)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)  # small matrices, and other tests on the other cores


@pytest.fixture(scope="session")
def small_config() -> ModelConfig:
    """Uneven on purpose: 3 query heads share a key head, and heads are wider than width / heads."""
    return ModelConfig(
        vocab_size=3072,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=96,
        eos_token_ids=(0,),
    )


@pytest.fixture(scope="session")
def small_decoder(small_config: ModelConfig) -> Decoder:
    """Random weights, large enough that tokens differ and no two logits are close."""
    torch.manual_seed(1)
    model = Decoder(small_config).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.5)
    return model


@pytest.fixture(scope="session")
def make_small_engine(small_decoder: Decoder, tokenizer: TextTokenizer) -> MakeEngine:
    def make(**switches: object) -> Engine:
        config = EngineConfig.resolve(small_decoder.config, Switches(**{"max_num_seqs": 4, **switches}))
        return Engine(small_decoder, tokenizer, config)

    return make


@pytest.fixture(scope="session")
def make_tiny_engine(tiny_folder: Path) -> MakeEngine:
    def make(**switches: object) -> Engine:
        config = EngineConfig.resolve(ModelConfig.from_folder(tiny_folder), Switches(**switches))
        return Engine.load(tiny_folder, config)

    return make


@pytest.fixture(scope="session")
def request_of() -> Callable[..., GenerationRequest]:
    def make(name: str, prompt: Iterable[int], **sampling: object) -> GenerationRequest:
        return GenerationRequest(
            request_id=name,
            prompt_token_ids=tuple(prompt),
            sampling=SamplingParams(**{"max_tokens": 12, "ignore_eos": True, **sampling}),
        )

    return make


@pytest.fixture(scope="session")
def finish() -> Callable[[Engine], dict[str, list[TokenEvent]]]:
    """Step until nothing is left; the events of each request."""

    def run(engine: Engine) -> dict[str, list[TokenEvent]]:
        events: dict[str, list[TokenEvent]] = {}
        while engine.has_work:
            for event in engine.step():
                events.setdefault(event.request_id, []).append(event)
            engine.scheduler.check_integrity()
        return events

    return run
