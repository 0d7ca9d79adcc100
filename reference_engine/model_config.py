"""The shape of a network, read from a Hugging Face `config.json`. Knows no torch: `--help` stays quick."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from reference_engine.errors import ModelError

# Read from config.json, in Hugging Face's spelling; without them there is no network to build.
_REQUIRED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a Llama-family decoder, named as in Hugging Face's `config.json`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    tie_word_embeddings: bool = False
    eos_token_ids: tuple[int, ...] = ()

    @property
    def num_parameters(self) -> int:
        """Weights, without the few of the norms."""
        heads = (2 * self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim
        layer = self.hidden_size * (heads + 3 * self.intermediate_size)
        ends = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * layer + ends

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read `folder/config.json`. Raises ModelError naming the file and the key at fault."""
        path = folder / "config.json"
        raw = read_json(path)
        if missing := [key for key in _REQUIRED if key not in raw]:
            raise ModelError(f"{path}: missing {', '.join(missing)}")
        _refuse_unsupported(path, raw)
        num_heads = int(raw["num_attention_heads"])
        eos = raw.get("eos_token_id")
        return cls(
            vocab_size=int(raw["vocab_size"]),
            hidden_size=int(raw["hidden_size"]),
            intermediate_size=int(raw["intermediate_size"]),
            num_hidden_layers=int(raw["num_hidden_layers"]),
            num_attention_heads=num_heads,
            num_key_value_heads=int(raw.get("num_key_value_heads") or num_heads),
            head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // num_heads),
            max_position_embeddings=int(raw["max_position_embeddings"]),
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope_theta=_rope_theta(raw),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            eos_token_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (int(eos),),
        )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ModelError naming the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; a model folder needs it") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object")
    return cast(dict[str, Any], value)


def _rope_theta(raw: dict[str, Any]) -> float:
    # transformers 5 moved the base into rope_parameters.
    return float((raw.get("rope_parameters") or {}).get("rope_theta", raw.get("rope_theta", 10_000.0)))


def _refuse_unsupported(path: Path, raw: dict[str, Any]) -> None:
    """Raise for every key of `config.json` that would change the arithmetic in a way we lack."""
    architectures = raw.get("architectures") or ["LlamaForCausalLM"]
    rope = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    rope_kind = rope.get("rope_type", rope.get("type", "default"))
    found = {
        "architectures": (architectures, architectures == ["LlamaForCausalLM"], "LlamaForCausalLM"),
        "hidden_act": (raw.get("hidden_act"), raw.get("hidden_act", "silu") == "silu", "silu"),
        "attention_bias": (raw.get("attention_bias"), not raw.get("attention_bias"), "false"),
        "mlp_bias": (raw.get("mlp_bias"), not raw.get("mlp_bias"), "false"),
        "rope scaling": (rope_kind, rope_kind == "default", "default"),
    }
    wrong = [
        f"{key} is {value}, only {supported} is supported"
        for key, (value, is_supported, supported) in found.items()
        if not is_supported
    ]
    if wrong:
        raise ModelError(f"{path}: " + "; ".join(wrong))
