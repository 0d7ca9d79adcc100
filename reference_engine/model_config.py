"""The shape of a network, read from a Hugging Face `config.json`. Knows no torch: `--help` stays quick.

What changes the arithmetic in a way that `model` lacks is refused, never ignored: a network that is
almost the right one answers fluently and wrongly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from reference_engine.errors import ModelError

# Read from config.json, in Hugging Face's spelling; without them there is no network to build.
_REQUIRED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings",
)  # fmt: skip
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# What transformers takes for a key that an architecture's config.json leaves out, where it is no formula.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "MistralForCausalLM": {"num_key_value_heads": 8, "sliding_window": 4096},
    "Qwen2ForCausalLM": {"num_key_value_heads": 32},
    "Qwen3ForCausalLM": {"num_key_value_heads": 32, "head_dim": 128},
}
# kind of scaling -> the numbers it cannot do without
_ROPE_KINDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
}
_GROWS = ": its frequencies change as a text grows, so that cached keys would have to be rotated again"
# Keys beside those of RopeScaling that change nothing.
_ROPE_OTHER_KEYS = {"rope_type", "type", "rope_theta", "mscale", "mscale_all_dim", "finetuned"}
_ROPE_OTHER_KEYS |= {"partial_rotary_factor", "short_factor", "long_factor"}  # looked at by themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How the rotary frequencies of a longer context are made of those of pretraining; see `rope`."""

    kind: str = "default"  # default, linear, llama3, yarn, or longrope with one list of divisors
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0  # cosines and sines are multiplied by it
    divisors: tuple[float, ...] = ()


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
    rope_scaling: RopeScaling = RopeScaling()
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False  # Qwen3: every query and key head is normed before it is rotated
    eos_token_ids: tuple[int, ...] = ()

    @property
    def num_parameters(self) -> int:
        """Weights, without the few of norms and biases."""
        heads = (2 * self.num_attention_heads + 2 * self.num_key_value_heads) * self.head_dim
        layer = self.hidden_size * (heads + 3 * self.intermediate_size)
        ends = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * layer + ends

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read `folder/config.json`, and the end tokens of `generation_config.json` where that is there.

        Raises ModelError naming the file and every key at fault.
        """
        path = folder / "config.json"
        raw = read_json(path)
        architecture = _architecture(raw)
        raw = {**_DEFAULTS.get(architecture or "", {}), **raw}
        wrong = [*_unsupported(architecture, raw), *_missing(architecture, raw), *_bad_sizes(raw)]
        if wrong:
            raise ModelError(f"{path}: " + "; ".join(wrong))
        num_heads, rope = int(raw["num_attention_heads"]), _rope(raw)
        has_bias = bool(raw.get("attention_bias"))
        return cls(
            **{key: int(raw[key]) for key in _REQUIRED},
            num_key_value_heads=int(raw.get("num_key_value_heads") or num_heads),
            head_dim=_head_dim(raw),
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta", raw.get("rope_theta") or 10_000.0)),
            rope_scaling=_scaling(raw, rope),
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=has_bias or architecture == "Qwen2ForCausalLM",
            o_bias=has_bias,
            mlp_bias=bool(raw.get("mlp_bias")),
            qk_norm=architecture == "Qwen3ForCausalLM",
            eos_token_ids=_eos_token_ids(folder, raw),
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


def _architecture(raw: Mapping[str, Any]) -> str | None:
    """None when the file names none."""
    found = raw.get("architectures")
    if isinstance(found, list) and found:
        return ", ".join(map(str, found))
    model_type = raw.get("model_type")
    return None if model_type is None else _ARCHITECTURES.get(str(model_type), str(model_type))


def _head_dim(raw: Mapping[str, Any]) -> int:
    return int(raw.get("head_dim") or int(raw["hidden_size"]) // int(raw["num_attention_heads"]))


def _half_a_head(raw: Mapping[str, Any]) -> int:
    """0 where the file does not tell, which is said elsewhere."""
    sizes = [raw.get(key) for key in ("hidden_size", "num_attention_heads")]
    return _head_dim(raw) // 2 if all(isinstance(size, int) and size > 0 for size in sizes) else 0


def _eos_token_ids(folder: Path, raw: Mapping[str, Any]) -> tuple[int, ...]:
    # Chat models end a turn with another token than a text, and often say so in generation_config.json only.
    path = folder / "generation_config.json"
    eos = read_json(path).get("eos_token_id") if path.exists() else None
    eos = raw.get("eos_token_id") if eos is None else eos
    return () if eos is None else tuple(map(int, eos)) if isinstance(eos, list) else (int(eos),)


def _missing(architecture: str | None, raw: Mapping[str, Any]) -> list[str]:
    keys = [key for key in _REQUIRED if raw.get(key) is None]
    if architecture is None:
        keys.insert(0, "architectures")
    return [f"missing {', '.join(keys)}"] if keys else []


def _bad_sizes(raw: Mapping[str, Any]) -> list[str]:
    """What is wrong with the numbers themselves, or between them."""
    keys = [*_REQUIRED, "num_key_value_heads", "head_dim"]
    given = {key: raw[key] for key in keys if raw.get(key) is not None}
    wrong = [
        f"{key} is {value!r}, not a positive whole number"
        for key, value in given.items()
        if not isinstance(value, int) or isinstance(value, bool) or value < 1
    ]
    if wrong or len(given) < len(_REQUIRED) or any(key not in given for key in _REQUIRED):
        return wrong
    heads, kv_heads = raw["num_attention_heads"], raw.get("num_key_value_heads") or raw["num_attention_heads"]
    if heads % kv_heads:
        wrong.append(f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}")
    if not raw.get("head_dim") and raw["hidden_size"] % heads:
        wrong.append(f"hidden_size {raw['hidden_size']} is no multiple of num_attention_heads {heads}")
    elif _head_dim(raw) % 2:
        wrong.append(f"head_dim {_head_dim(raw)} is odd: rotary embeddings turn pairs")
    return wrong


def _unsupported(architecture: str | None, raw: Mapping[str, Any]) -> list[str]:
    """One sentence for every key that would change the arithmetic in a way we lack."""
    wrong = []
    if architecture is not None and architecture not in _ARCHITECTURES.values():
        wrong.append(f"architectures is {architecture}; supported: {', '.join(_ARCHITECTURES.values())}")
    for key, only in (("hidden_act", "silu"), ("partial_rotary_factor", 1), ("quantization_config", None)):
        if (value := raw.get(key)) is not None and value != only:
            given = f"{value.get('quant_method', 'there')}" if isinstance(value, dict) else value
            wrong.append(f"{key} is {given}, only {'none' if only is None else only} is supported")
    may_have_bias = {
        "attention_bias": ("LlamaForCausalLM", "Qwen3ForCausalLM"),
        "mlp_bias": ("LlamaForCausalLM",),
    }
    wrong += [
        f"{key} is {raw[key]}, which {architecture} does not have"
        for key, known in may_have_bias.items()
        if raw.get(key) and architecture in _ARCHITECTURES.values() and architecture not in known
    ]
    return [*wrong, *_windows(architecture, raw), *_unsupported_rope(raw, _rope(raw))]


def _windows(architecture: str | None, raw: Mapping[str, Any]) -> list[str]:
    """Sliding windows are supported where they are so wide that they hide nothing."""
    window, length = raw.get("sliding_window"), raw.get("max_position_embeddings")
    is_off = raw.get("use_sliding_window", not str(architecture).startswith("Qwen")) is False
    if not window or not isinstance(length, int) or is_off or window >= length:
        return []
    return [
        (
            f"sliding_window is {window}, less than max_position_embeddings {length}, and windows are not "
            f"supported; with max_position_embeddings {window} the model is served up to there"
        )
    ]


def _rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    # transformers 5 gathers in rope_parameters what version 4 kept in rope_scaling and rope_theta.
    return {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}


def _unsupported_rope(raw: Mapping[str, Any], rope: Mapping[str, Any]) -> list[str]:
    kind = rope.get("rope_type", rope.get("type", "default"))
    where = "rope_parameters" if raw.get("rope_parameters") else "rope_scaling"
    if kind not in _ROPE_KINDS:
        why = _GROWS if kind == "dynamic" else ""
        return [f"{where} is of type {kind}; supported: {', '.join(_ROPE_KINDS)}{why}"]
    wrong = [f"{where}: {kind} needs {key}" for key in _ROPE_KINDS[kind] if rope.get(key) is None]
    known = {field.name for field in fields(RopeScaling)} | _ROPE_OTHER_KEYS
    wrong += [f"{where}.{key} is not known here" for key in sorted(set(rope) - known)]
    if rope.get("partial_rotary_factor", 1) != 1:
        wrong.append(f"{where}.partial_rotary_factor is {rope['partial_rotary_factor']}, only 1 is supported")
    if kind == "longrope" and rope.get("short_factor") != rope.get("long_factor"):
        wrong.append(f"{where}: longrope is supported only where long_factor equals short_factor{_GROWS}")
    elif kind == "longrope" and not wrong and len(rope["short_factor"]) != (half := _half_a_head(raw)):
        wrong.append(f"{where}: longrope needs {half} divisors, {len(rope['short_factor'])} are there")
    bad = [
        key
        for key, value in rope.items()
        if key in {"rope_theta", "factor", "low_freq_factor", "high_freq_factor", "attention_factor"}
        and value is not None
        and not (isinstance(value, int | float) and value > 0)
    ]
    return wrong + [f"{where}.{key} is {rope[key]!r}, not a positive number" for key in bad]


def _scaling(raw: Mapping[str, Any], rope: Mapping[str, Any]) -> RopeScaling:
    kind = rope.get("rope_type", rope.get("type", "default"))
    known = {field.name for field in fields(RopeScaling)} - {"attention_factor", "divisors"}
    given = {key: value for key, value in rope.items() if key in known and value is not None}
    original = raw.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings")
    given["original_max_position_embeddings"] = int(original or raw["max_position_embeddings"])
    factor = rope.get("attention_factor")
    if factor is None and kind in {"yarn", "longrope"}:
        factor = _attention_factor(kind, rope, raw["max_position_embeddings"], given)
    divisors = tuple(map(float, rope["short_factor"])) if kind == "longrope" else ()
    return RopeScaling(kind=kind, divisors=divisors, attention_factor=float(factor or 1), **given)


def _attention_factor(kind: str, rope: Mapping[str, Any], length: int, given: Mapping[str, Any]) -> float:
    """What transformers takes where the file gives none.

    YaRN: 0.1 ln s + 1 (Peng et al. 2023, equation 22), or the ratio of two such. LongRoPE: sqrt(1 + ln s /
    ln L) for L positions in pretraining (Ding et al. 2024, section 3.3).
    """
    original = given["original_max_position_embeddings"]
    if kind == "longrope":
        scale = rope.get("factor") or length / original
        return 1.0 if scale <= 1 else math.sqrt(1 + math.log(scale) / math.log(original))

    def mscale(weight: float) -> float:
        return 1.0 if rope["factor"] <= 1 else 0.1 * weight * math.log(rope["factor"]) + 1.0

    above, below = rope.get("mscale"), rope.get("mscale_all_dim")
    return mscale(above) / mscale(below) if above and below else mscale(1.0)
