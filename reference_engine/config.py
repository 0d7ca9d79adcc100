"""What the user chose: frozen settings, validated once, here, and passed down.

Nothing below reads flags, environment or files to find out how to behave. Knows no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

from reference_engine.errors import ConfigError
from reference_engine.model_config import ModelConfig

Device = Literal["cpu", "cuda"]
Dtype = Literal["float32", "bfloat16", "float16"]
KVCacheKind = Literal["paged", "contiguous", "none"]
Batching = Literal["continuous", "static"]
AttentionKind = Literal["fast", "plain"]

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# Below this many weights a layer takes less time than two threads need to find each other, the more so
# when a load generator runs on the same cores.
_SMALL = 20_000_000

# A step of so many tokens: long enough that a prompt is computed at nearly full speed, short enough that
# the streams beside it do not stand still. A GPU needs more to be busy.
_STEP_TOKENS: dict[Device, int] = {"cpu": 512, "cuda": 2048}
_BLOCK_SIZE: dict[Device, int] = {"cpu": 64, "cuda": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """What a user may say; None is chosen from the model and the device."""

    max_model_len: int | None = None
    max_num_seqs: int = 32
    max_num_batched_tokens: int | None = None
    kv_cache: KVCacheKind = "paged"
    block_size: int | None = None
    kv_cache_memory: int | None = None  # bytes
    gpu_memory_utilization: float = 0.9
    batching: Batching = "continuous"
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    attention: AttentionKind = "fast"
    device: Device = "cpu"
    dtype: Dtype = "float32"
    num_threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the engine may use: resolved (no "auto" left) and consistent with the model."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache: KVCacheKind
    block_size: int
    kv_cache_memory: int | None  # bytes; None: see `cache_size`
    gpu_memory_utilization: float
    batching: Batching
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    attention: AttentionKind
    device: Device
    dtype: Dtype
    num_threads: int | None  # None: one a core

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}")
        if self.num_threads is not None and self.num_threads < 1:
            raise ConfigError(f"--threads must be at least 1, not {self.num_threads}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError(
                f"--gpu-memory-utilization must be above 0 and at most 1, not {self.gpu_memory_utilization}"
            )
        if self.enable_prefix_caching and self.kv_cache != "paged":
            raise ConfigError(
                "--enable-prefix-caching needs --kv-cache paged: only blocks can be shared; drop one of them"
            )
        if self.enable_chunked_prefill and self.kv_cache == "none":
            raise ConfigError(
                "--enable-chunked-prefill needs a KV cache: without one there is nowhere to keep a chunk"
            )
        self._check_step()

    def _check_step(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is less than --max-num-seqs "
                f"{self.max_num_seqs}: every running sequence needs one token of each step"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < self.max_model_len:
            raise ConfigError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is less than --max-model-len "
                f"{self.max_model_len}: without chunked prefill a prompt is computed in one step, so the "
                "longest must fit. Raise the former, lower the latter, or allow chunks"
            )

    @classmethod
    def resolve(cls, model: ModelConfig, switches: Switches) -> EngineConfig:
        """Fill what the user left open from the model. Raises ConfigError for what cannot work."""
        longest, seqs, device = model.max_position_embeddings, switches.max_num_seqs, switches.device
        length = _given(switches.max_model_len, longest)
        if length > longest:
            raise ConfigError(
                f"--max-model-len {length} is more than the {longest} positions this model was made for"
            )
        is_chunked = _given(switches.enable_chunked_prefill, switches.kv_cache != "none")
        step = _STEP_TOKENS[device] if is_chunked else max(2048, length)
        is_small = model.num_parameters < _SMALL
        return cls(
            max_model_len=length,
            max_num_seqs=seqs,
            max_num_batched_tokens=_given(switches.max_num_batched_tokens, max(step, seqs)),
            kv_cache=switches.kv_cache,
            block_size=_given(switches.block_size, _BLOCK_SIZE[device]),
            kv_cache_memory=switches.kv_cache_memory,
            gpu_memory_utilization=switches.gpu_memory_utilization,
            batching=switches.batching,
            enable_prefix_caching=_given(switches.enable_prefix_caching, switches.kv_cache == "paged"),
            enable_chunked_prefill=is_chunked,
            attention=switches.attention,
            device=device,
            dtype=switches.dtype,
            num_threads=_given(switches.num_threads, 1 if is_small else None),
        )


T = TypeVar("T")


def _given(value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """Shape of the KV cache."""

    num_blocks: int
    block_size: int

    @property
    def num_tokens(self) -> int:
        """Positions in all."""
        return self.num_blocks * self.block_size


def bytes_per_token(model: ModelConfig, dtype: Dtype) -> int:
    """Keys and values of one position, in all layers."""
    per_layer = 2 * model.num_key_value_heads * model.head_dim * ITEM_BYTES[dtype]
    return model.num_hidden_layers * per_layer


def cache_size(model: ModelConfig, config: EngineConfig, available_bytes: int) -> CacheSize | None:
    """Blocks for `config`; None without a cache.

    As much as `--kv-cache-memory` says, else what is available, but no more than `max_num_seqs` sequences of
    `max_model_len` could use. With prefix caching what they leave keeps the prompts of finished requests, so
    that all of an amount that was asked for is of use.

    Raises ConfigError when not even one of them fits: what the
    engine takes it can serve.
    """
    if config.kv_cache == "none":
        return None
    block_size = config.block_size if config.kv_cache == "paged" else config.max_model_len
    per_sequence = -(-config.max_model_len // block_size)
    per_block = block_size * bytes_per_token(model, config.dtype)
    num_bytes = available_bytes if config.kv_cache_memory is None else config.kv_cache_memory
    num_blocks = num_bytes // per_block
    if config.kv_cache_memory is None or not config.enable_prefix_caching:
        num_blocks = min(num_blocks, config.max_num_seqs * per_sequence)
    if num_blocks < per_sequence:
        raise ConfigError(
            f"a KV cache of {num_bytes / 1e6:.0f} MB holds {num_bytes // per_block * block_size} tokens, "
            f"less than one sequence of --max-model-len {config.max_model_len}: raise --kv-cache-memory to "
            f"{-(-per_sequence * per_block // 10**6)} MB or lower --max-model-len"
        )
    return CacheSize(num_blocks=num_blocks, block_size=block_size)
