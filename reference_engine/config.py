"""What the user chose: frozen settings, validated once, here, and passed down.

Nothing below reads flags, environment or files to find out how to behave. Knows no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reference_engine.errors import ConfigError
from reference_engine.model_config import ModelConfig

Device = Literal["cpu", "cuda"]
Dtype = Literal["float32", "bfloat16", "float16"]

# Below this many weights a layer takes less time than two threads need to find each other, the more so
# when a load generator runs on the same cores.
_SMALL = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What the engine may use: resolved (no "auto" left) and consistent with the model."""

    max_model_len: int
    max_num_seqs: int = 32
    max_num_batched_tokens: int
    device: Device = "cpu"
    dtype: Dtype = "float32"
    num_threads: int | None = None  # None: one a core

    def __post_init__(self) -> None:
        for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(self, name)}")
        if self.num_threads is not None and self.num_threads < 1:
            raise ConfigError(f"--threads must be at least 1, not {self.num_threads}")
        if self.max_num_batched_tokens < max(self.max_model_len, self.max_num_seqs):
            raise ConfigError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is less than --max-model-len "
                f"{self.max_model_len} or --max-num-seqs {self.max_num_seqs}: a prompt is computed in one "
                "step here, so the longest prompt must fit. Raise the former or lower the latter."
            )

    @classmethod
    def resolve(
        cls,
        model: ModelConfig,
        *,
        max_model_len: int | None = None,
        max_num_seqs: int = 32,
        max_num_batched_tokens: int | None = None,
        device: Device = "cpu",
        dtype: Dtype = "float32",
        num_threads: int | None = None,
    ) -> EngineConfig:
        """Fill what the user left open from the model. Raises ConfigError for what cannot work."""
        longest = model.max_position_embeddings
        length = longest if max_model_len is None else max_model_len
        if length > longest:
            raise ConfigError(
                f"--max-model-len {length} is more than the {longest} positions this model was made for"
            )
        return cls(
            max_model_len=length,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens or max(length, max_num_seqs, 2048),
            device=device,
            dtype=dtype,
            num_threads=1 if num_threads is None and model.num_parameters < _SMALL else num_threads,
        )
