"""Rotary position embeddings (Su et al. 2021, section 3.4.2), with the scalings for longer contexts.

Pairs are (i, i + D/2), as in Hugging Face checkpoints, not neighbours as in the paper. Nothing is
tabulated: a step computes the cosines of the positions it has, which costs less than a table of 131,072
of them takes memory.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reference_engine.model_config import ModelConfig, RopeScaling


def signed_frequencies(config: ModelConfig) -> Tensor:
    """Radians a position, `[D]` in double precision: negative for the first half of a head.

    The sign is that of the sine with which a number's partner is multiplied, see `rotate`.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    frequencies = scaled(config.rope_theta**-exponents, config.rope_theta, config.rope_scaling)
    return torch.cat((-frequencies, frequencies))


def tables(
    positions: Tensor, frequencies: Tensor, factor: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines, each `[*, 1, D]`, for positions `[*]`; both times `factor`.

    The angles are doubles: at position 100,000 a float is off by a hundredth of a radian.
    """
    angles = positions[..., None, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    if factor != 1.0:
        cos, sin = cos * factor, sin * factor
    return cos.to(dtype), sin.to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads `x [*, heads, D]` by tables `[*, 1, D]`: each number times cos, plus its partner's sin."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def scaled(frequencies: Tensor, theta: float, scaling: RopeScaling) -> Tensor:
    """The frequencies `[D/2]` under a scaling, as transformers computes them."""
    match scaling.kind:
        case "default":
            return frequencies
        case "linear":  # Chen et al. 2023: positions are squeezed
            return frequencies / scaling.factor
        case "longrope":  # Ding et al. 2024: every frequency has a divisor of its own
            return frequencies / torch.tensor(scaling.divisors, dtype=frequencies.dtype)
        case "llama3":
            return _llama3(frequencies, scaling)
        case "yarn":
            return _yarn(frequencies, theta, scaling)
        case kind:
            raise ValueError(kind)


def _llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1 (Meta's llama-models, `apply_scaling`): slow ones are divided, fast ones kept.

    In between, by how many turns fit into the original context, from low_freq_factor to high_freq_factor.
    """
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def _yarn(frequencies: Tensor, theta: float, scaling: RopeScaling) -> Tensor:
    """YaRN (Peng et al. 2023, section 3.2): fast frequencies are kept, slow ones divided.

    In between a ramp over the index, from where a frequency makes beta_fast turns in the original context
    to where it makes beta_slow.
    """
    count = len(frequencies)

    def index(turns: float) -> float:
        length = scaling.original_max_position_embeddings / (turns * 2 * math.pi)
        return count * math.log(length) / math.log(theta)

    low, high = index(scaling.beta_fast), index(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * count - 1)
    ramp = torch.arange(count, dtype=frequencies.dtype) - low
    divided = (ramp / ((high - low) or 0.001)).clamp(0, 1)
    return frequencies * (1 - divided + divided / scaling.factor)
