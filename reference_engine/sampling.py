"""Logits to tokens. Each row is chosen alone, by its own parameters and its own random numbers, so
that neither its neighbours in the batch nor the order of steps can change what a request says.

What happens to a row, in this order: control tokens are left out (`ignore_eos`), penalties,
temperature, top_k, top_p of what top_k left, min_p, one random number. Greedy rows stop after the
penalties. Equally likely tokens go by id, the lowest first, so that a filter keeps the same ones on
every device. A row pays for what it asks: greedy rows are one argmax, and only a top_p that spreads
over more than `CANDIDATES` tokens needs the vocabulary sorted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from reference_engine.types import SampledToken, SampleRow, SamplingParams

CANDIDATES = 256  # tokens that top_p looks at before it looks at all
LEAST_TEMPERATURE = 1e-20  # below it float32 has no number that could be divided by
_MASK = (1 << 64) - 1
_NEVER = float("-inf")


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing else: SplitMix64 (Steele, Lea, Flood 2014), twice."""
    return _mix(_mix(seed & _MASK) + position) / 2.0**64 * (1 - 2.0**-53)


def _mix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def sample(logits: Tensor, rows: Sequence[SampleRow], control_ids: Tensor) -> list[SampledToken]:
    """One token for each row of `logits [S, V]`, which are overwritten.

    `control_ids` (end of sequence, chat roles) are never chosen where `ignore_eos` is set. The random
    number of a row is that of its seed and of the new token's position, `len(row.token_ids)`.
    """
    asked = [at for at, row in enumerate(rows) if row.sampling.num_logprobs is not None]
    own = logits[asked].float().log_softmax(-1) if asked else None  # before anything changes the logits
    chosen = _choose(_adjust(logits, rows, control_ids), rows)
    token_ids: list[int] = chosen.tolist()
    sampled = [SampledToken(token_id=token_id) for token_id in token_ids]
    if own is not None:
        reports = _with_logprobs(own, chosen[asked], [rows[at].sampling.num_logprobs or 0 for at in asked])
        for at, report in zip(asked, reports, strict=True):
            sampled[at] = report
    return sampled


def probabilities(logits: Tensor, rows: Sequence[SampleRow], control_ids: Tensor) -> Tensor:
    """How likely `sample` is to choose each token: `[S, V]` -> `[S, V]` in float32; rows add up to 1.

    `logits` are overwritten. A greedy row is 1 at the token it takes and 0 elsewhere.
    """
    values = _adjust(logits, rows, control_ids).float()
    warm = [at for at, row in enumerate(rows) if row.sampling.temperature > 0]
    probs = torch.zeros_like(values).scatter_(-1, values.argmax(-1, keepdim=True), 1.0)
    if warm:
        probs[warm] = _distribution(values[warm], [rows[at].sampling for at in warm])
    return probs


def _choose(values: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """`[S, V]` -> token ids `[S]`."""
    warm = [at for at, row in enumerate(rows) if row.sampling.temperature > 0]
    if not warm:
        return values.argmax(-1)
    is_all = len(warm) == len(rows)
    probs = _distribution((values if is_all else values[warm]).float(), [rows[at].sampling for at in warm])
    numbers = [uniform(rows[at].sampling.seed, len(rows[at].token_ids)) for at in warm]
    picked = _pick(probs, torch.tensor(numbers, device=values.device, dtype=torch.float64))
    return picked if is_all else values.argmax(-1).index_copy_(0, _on(values, warm), picked)


def _pick(probs: Tensor, u: Tensor) -> Tensor:
    """Inverse of the cumulative distribution: `probs [S, V]`, `u [S]` -> `[S]`."""
    cumulative = probs.double().cumsum(-1)
    # Scaled by the real total, so that rounding can never point past the last likely token.
    return torch.searchsorted(cumulative, u[:, None] * cumulative[:, -1:], right=True).squeeze(-1)


# What comes before the temperature.


def _adjust(logits: Tensor, rows: Sequence[SampleRow], control_ids: Tensor) -> Tensor:
    """`[S, V]` without control tokens where the end is ignored, and with penalties, in float32 if any."""
    endless = [at for at, row in enumerate(rows) if row.sampling.ignore_eos]
    if len(endless) == len(rows):
        logits.index_fill_(-1, control_ids, _NEVER)
    elif endless:
        logits[_on(logits, endless)[:, None], control_ids] = _NEVER
    penal = [at for at, row in enumerate(rows) if row.sampling.has_penalty]
    if not penal:
        return logits
    values = logits.float()
    values[penal] = _penalize(values[penal], [rows[at] for at in penal])
    return values


def _penalize(values: Tensor, rows: Sequence[SampleRow]) -> Tensor:
    """`[P, V]` -> `[P, V]`.

    Repetition (Keskar et al. 2019, eq. 2, made to hold for negative logits too): divided by the penalty
    if positive, multiplied if negative, for tokens of prompt and output. Frequency and presence
    (OpenAI's API): subtracted once for each, and once for any, occurrence in the output.
    """
    num_rows, num_tokens = values.shape
    longest = max(len(row.token_ids) for row in rows)
    # Rows are padded with a token beyond the vocabulary, whose column is cut off again.
    padded = [[*row.token_ids, *[num_tokens] * (longest - len(row.token_ids))] for row in rows]
    ids = torch.tensor(padded, dtype=torch.long, device=values.device)
    is_prompt = (
        torch.arange(longest, device=values.device)
        < _on(values, [r.num_prompt_tokens for r in rows])[:, None]
    )
    blank = values.new_zeros(num_rows, num_tokens + 1)
    seen = blank.scatter(-1, ids, 1.0)[:, :num_tokens] > 0
    output_ids = ids.masked_fill(is_prompt, num_tokens)
    counts = blank.scatter_add(-1, output_ids, blank.new_ones(()).expand_as(ids))[:, :num_tokens]

    def column(numbers: list[float]) -> Tensor:
        return torch.tensor(numbers, device=values.device)[:, None]

    repetition = column([row.sampling.repetition_penalty for row in rows])
    values = torch.where(seen, torch.where(values > 0, values / repetition, values * repetition), values)
    frequency = column([row.sampling.frequency_penalty for row in rows])
    presence = column([row.sampling.presence_penalty for row in rows])
    return values - frequency * counts - presence * (counts > 0)


# Temperature and filters.


def _distribution(values: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Probabilities `[R, V]` of rows that are not greedy."""
    num_tokens = values.shape[-1]
    heat = [[max(p.temperature, LEAST_TEMPERATURE)] for p in params]
    # The likeliest token becomes 0 first: no temperature can then make an infinite number of it.
    scaled = (values - values.amax(-1, keepdim=True)) / torch.tensor(heat, device=values.device)
    filtered = [at for at, p in enumerate(params) if 0 < p.top_k < num_tokens or p.top_p < 1]
    least = [math.log(p.min_p) if p.min_p > 0 else _NEVER for p in params]
    floors = torch.tensor(least, device=values.device)[:, None] if max(least) > _NEVER else None
    is_unlikely = scaled < floors if floors is not None else None
    if filtered:
        scaled[filtered] = _filter(scaled[filtered], [params[at] for at in filtered])
    if is_unlikely is not None:
        scaled = scaled.masked_fill(is_unlikely, _NEVER)
    return scaled.softmax(-1)


def _filter(scaled: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """`[R, V]`, minus infinity where top_k or top_p leaves a token out."""
    num_tokens = scaled.shape[-1]
    width = min(num_tokens, max(p.top_k or CANDIDATES for p in params))
    counts, floors, is_enough = _num_kept(scaled, params, width)
    if not is_enough.all():
        more = (~is_enough).nonzero().squeeze(-1)
        counts[more], floors[more], _ = _num_kept(
            scaled[more], [params[at] for at in more.tolist()], num_tokens
        )
    return scaled.masked_fill(~_is_among_likeliest(scaled, counts, floors), _NEVER)


def _num_kept(scaled: Tensor, params: Sequence[SamplingParams], width: int) -> tuple[Tensor, Tensor, Tensor]:
    """How many of the likeliest tokens each row keeps `[R]`, the value of the last of them `[R]`, and
    whether `width` candidates were enough to know `[R]`.
    """
    num_tokens = scaled.shape[-1]
    values = scaled.topk(width, dim=-1).values
    limit = _on(scaled, [p.top_k if 0 < p.top_k < num_tokens else num_tokens for p in params])
    is_within = torch.arange(width, device=scaled.device) < limit[:, None]
    probs = (values.double() - scaled.logsumexp(-1, keepdim=True).double()).exp() * is_within
    cumulative = probs.cumsum(-1)
    total = torch.where(limit <= width, cumulative[:, -1], 1.0)
    top_p = torch.tensor([p.top_p for p in params], device=scaled.device, dtype=torch.float64)
    # A token stays if those before it do not make up top_p yet; the first always does.
    is_kept = (pad(cumulative[:, :-1], (1, 0)) < (top_p * total)[:, None]) & is_within
    counts = is_kept.sum(-1).clamp(min=1)
    is_enough = (limit <= width) | (cumulative[:, -1] >= top_p * total) | (width == num_tokens)
    return counts, values.gather(-1, counts[:, None] - 1).squeeze(-1), is_enough


def _is_among_likeliest(values: Tensor, counts: Tensor, floors: Tensor) -> Tensor:
    """Which `counts [R]` tokens of `values [R, V]` are the likeliest; `floors [R]` are the least of them."""
    is_kept = values >= floors[:, None]
    crowded = (is_kept.sum(-1) > counts).nonzero().squeeze(-1)
    if len(crowded):  # more tokens are as likely as the last: those with the lowest ids are kept
        is_tied = values[crowded] == floors[crowded, None]
        room = counts[crowded] - (is_kept[crowded] & ~is_tied).sum(-1)
        is_kept[crowded] &= ~is_tied | (is_tied.cumsum(-1) <= room[:, None])
    return is_kept


# Log-probabilities.


def _with_logprobs(own: Tensor, chosen: Tensor, counts: Sequence[int]) -> list[SampledToken]:
    """`own [R, V]` are the model's log-probabilities, `chosen [R]` the tokens, `counts` how many to name."""
    logprobs: list[float] = own.gather(-1, chosen[:, None]).squeeze(-1).tolist()
    token_ids: list[int] = chosen.tolist()
    tops = _likeliest(own, min(max(counts), own.shape[-1]))
    return [
        SampledToken(token_id=token_id, logprob=logprob, top_logprobs=tuple(top[:count]))
        for token_id, logprob, top, count in zip(token_ids, logprobs, tops, counts, strict=True)
    ]


def _likeliest(values: Tensor, count: int) -> list[list[tuple[int, float]]]:
    """The `count` likeliest tokens of each row of `[R, V]` with their values, in one order only."""
    num_rows = len(values)
    if count == 0:
        return [[]] * num_rows
    floors = values.topk(count, dim=-1).values[:, -1]
    counts = torch.full((num_rows,), count, device=values.device)
    ids = _is_among_likeliest(values, counts, floors).nonzero()[:, 1].view(num_rows, count)
    ordered, order = values.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    pairs = zip(ids.gather(-1, order).tolist(), ordered.tolist(), strict=True)
    return [list(zip(row_ids, row_values, strict=True)) for row_ids, row_values in pairs]


def _on(like: Tensor, numbers: Sequence[int]) -> Tensor:
    """Whole numbers beside `like`."""
    return torch.tensor(numbers, dtype=torch.long, device=like.device)
