"""How many tokens: what `usage` says, and how they lie over the events of a stream. Pure arithmetic."""

from __future__ import annotations

from typing import Any

from llmbench.client.answer import Answer

_MOST_TOKENS = 2**31 - 1
"""More than any answer has: a larger count is no count (and would not fit the tables)."""


def read_usage(answer: Answer, usage: Any) -> None:
    """Takes over the counts of a usage object (chat, completions and responses name them differently)."""
    if not isinstance(usage, dict):
        return
    answer.input_tokens = _count(usage, "prompt_tokens", "input_tokens")
    answer.output_tokens = _count(usage, "completion_tokens", "output_tokens")
    inputs = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    outputs = usage.get("completion_tokens_details") or usage.get("output_tokens_details")
    if inputs:
        answer.cached_tokens = _count(inputs, "cached_tokens")
    if outputs:
        answer.reasoning_tokens = _count(outputs, "reasoning_tokens")


def _count(usage: Any, *names: str) -> int | None:
    for name in names:
        value = usage.get(name) if isinstance(usage, dict) else None
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS:
            return value
    return None


def says_each(counts: list[int], num_events: int, total: int) -> bool:
    """Whether there is a cumulative count for every event, rising to the total."""
    if len(counts) != num_events or not counts or counts[-1] != total:
        return False
    return all(b > a for a, b in zip([0, *counts], counts, strict=False))


def share_tokens(total: int, sizes: list[int], counts: list[int]) -> list[int]:
    """Tokens of each event. Shapes: `sizes` [M], `counts` up to [M] -> [M]; every event gets at least 1.

    1. As many tokens as events: one each.
    2. Every event said its cumulative count (continuous usage): the differences, exactly.
    3. More tokens than events (speculative decoding, stream intervals): one each, the rest in proportion
       to the events' lengths, largest remainder first. An assumption, and marked as one.
    4. Fewer tokens than events (a character split over events): one each; the sum then exceeds `total`,
       and times per token use `total`.
    """
    num_events = len(sizes)
    spare = total - num_events
    if spare == 0:
        return [1] * num_events
    if says_each(counts, num_events, total):
        return [b - a for a, b in zip([0, *counts], counts, strict=False)]
    if spare < 0:
        return [1] * num_events
    weight = sum(sizes)
    shares = [spare * size / weight for size in sizes] if weight else [spare / num_events] * num_events
    tokens = [1 + int(share) for share in shares]
    order = sorted(range(num_events), key=lambda i: (int(shares[i]) - shares[i], i))
    for i in order[: total - sum(tokens)]:
        tokens[i] += 1
    return tokens
