"""Logits to tokens. Each row is chosen alone, by its own parameters and its own random numbers, so
that neither its neighbours in the batch nor the order of steps can change what a request says.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from reference_engine.types import SamplingParams

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing else: SplitMix64 (Steele, Lea, Flood 2014), twice."""
    return _mix(_mix(seed & _MASK) + position) / 2.0**64 * (1 - 2.0**-53)


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def sample(
    logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int], control_ids: Tensor
) -> list[int]:
    """One token id for each row of `logits [S, V]`; `positions` are those of the new tokens.

    `control_ids` (end of sequence, chat roles) are never chosen where `ignore_eos` is set.
    """
    logits = logits.float()
    if endless := [row for row, p in enumerate(params) if p.ignore_eos]:
        logits[torch.tensor(endless, device=logits.device)[:, None], control_ids] = float("-inf")
    tokens: list[int] = logits.argmax(-1).tolist()
    # Rows with filters need sorting, the others do not; a row's kind never depends on its neighbours.
    warm = [row for row, p in enumerate(params) if p.temperature > 0]
    plain = [row for row in warm if not _has_filter(params[row])]
    filtered = [row for row in warm if _has_filter(params[row])]
    for rows, choose in ((plain, _sample_plain), (filtered, _sample_filtered)):
        if rows:
            chosen = [params[row] for row in rows]
            u = [uniform(params[row].seed, positions[row]) for row in rows]
            temperature = torch.tensor([p.temperature for p in chosen], device=logits.device)
            probs = torch.softmax(logits[rows] / temperature[:, None], dim=-1)
            picked = choose(probs, torch.tensor(u, device=logits.device, dtype=torch.float64), chosen)
            for row, token in zip(rows, picked.tolist(), strict=True):
                tokens[row] = token
    return tokens


def _has_filter(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1


def _sample_plain(probs: Tensor, u: Tensor, _params: Sequence[SamplingParams]) -> Tensor:
    """Inverse of the cumulative distribution: `probs [S, V]`, `u [S]` -> `[S]`."""
    cumulative = probs.double().cumsum(-1)
    # Scaled by the real total, so that rounding can never point past the last likely token.
    return torch.searchsorted(cumulative, u[:, None] * cumulative[:, -1:], right=True).squeeze(-1)


def _sample_filtered(probs: Tensor, u: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The same over the `top_k` likeliest tokens that make up `top_p` (the first is always kept)."""
    probs, order = probs.sort(dim=-1, descending=True, stable=True)
    num_tokens = probs.shape[-1]
    top_k = torch.tensor([p.top_k or num_tokens for p in params], device=probs.device)
    top_p = torch.tensor([p.top_p for p in params], device=probs.device, dtype=torch.float64)
    probs = probs * (torch.arange(num_tokens, device=probs.device) < top_k[:, None])
    before = probs.double().cumsum(-1) - probs
    kept = probs * (before < top_p[:, None] * probs.sum(-1, dtype=torch.float64)[:, None])
    kept[:, 0] = probs[:, 0]
    return order.gather(-1, _sample_plain(kept, u, params)[:, None]).squeeze(-1)
