"""Make a sample trace in the format of Azure LLM 2023 or Mooncake, with rates and lengths of that kind.

    python -m llmbench.workload.sample scenarios/data/azure-sample.csv
    python -m llmbench.workload.sample --as mooncake scenarios/data/mooncake-sample.jsonl

The real files stay with their publisher; these samples are drawn from distributions of our own choosing.
Arrivals are bursty: exponential gaps whose rate switches between calm and busy spells (a Markov-modulated
Poisson process). Lengths are lognormal: prompts in two populations (short turns, long conversations),
answers in one. In Mooncake's format requests are turns of conversations: all begin with one system prompt,
and a later turn with everything that its conversation had said before.

Only `random.Random.random` is drawn on, whose sequence Python guarantees from version to version; everything
else is computed here. The same arguments therefore make the same bytes everywhere.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from llmbench.workload.traces.azure import HEADER


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Lognormal lengths in tokens: the median, the sigma of the logarithm, and the bounds of the clip."""

    median: float
    sigma: float
    least: int
    most: int


SHORT_TURNS = Population(median=420, sigma=0.75, least=4, most=4_000)
LONG_CONVERSATIONS = Population(median=2_100, sigma=0.6, least=200, most=14_000)
ANSWERS = Population(median=130, sigma=0.85, least=7, most=1_000)
LONG_SHARE = 0.35

CALM_RATE_PER_S = 3.2
BUSY_RATE_PER_S = 11.0
CALM_SPELL_S = 12.0
BUSY_SPELL_S = 4.0

NEW_CONVERSATION_SHARE = 0.45  # of Mooncake's requests; the others are the next turn of an open one
SYSTEM_TOKENS = 512
LONGEST_CONTEXT = 32_000
BLOCK_TOKENS = 512
OPEN_CONVERSATIONS = 24

DEFAULT_SEED = 2023
DEFAULT_ROWS = 800


def sample_csv(*, seed: int = DEFAULT_SEED, num_rows: int = DEFAULT_ROWS) -> bytes:
    """The whole file: the header and `num_rows` rows, CRLF line ends as in the source."""
    rng = Random(seed)
    lines = [HEADER]
    for ticks in _arrival_ticks(rng, num_rows):
        prompts = LONG_CONVERSATIONS if rng.random() < LONG_SHARE else SHORT_TURNS
        lines.append(f"{_timestamp(ticks)},{_length(rng, prompts)},{_length(rng, ANSWERS)}")
    return ("\r\n".join(lines) + "\r\n").encode("ascii")


def sample_jsonl(*, seed: int = DEFAULT_SEED, num_rows: int = DEFAULT_ROWS) -> bytes:
    """The whole file in Mooncake's format: `num_rows` lines, instants in milliseconds."""
    rng = Random(seed)
    lines: list[str] = []
    open_chains: list[tuple[int, list[int]]] = []  # tokens so far and the ids of their whole blocks
    next_id = 1
    for ticks in _arrival_ticks(rng, num_rows):
        tokens, ids = SYSTEM_TOKENS, [0]
        if open_chains and rng.random() >= NEW_CONVERSATION_SHARE:
            tokens, ids = open_chains.pop(int(rng.random() * len(open_chains)))
        tokens += _length(rng, LONG_CONVERSATIONS if rng.random() < LONG_SHARE else SHORT_TURNS)
        answer = _length(rng, ANSWERS)
        missing = -(-tokens // BLOCK_TOKENS) - len(ids)
        ids = [*ids, *range(next_id, next_id + missing)]
        next_id += missing
        row = {"timestamp": ticks // 10_000, "input_length": tokens, "output_length": answer, "hash_ids": ids}
        lines.append(json.dumps(row))
        if tokens + answer < LONGEST_CONTEXT:
            # the answer joins the context; the block it begins in is filled up and so another one
            open_chains.append((tokens + answer, ids[: tokens // BLOCK_TOKENS]))
        del open_chains[:-OPEN_CONVERSATIONS]
    return ("\n".join(lines) + "\n").encode("ascii")


def _arrival_ticks(rng: Random, num_rows: int) -> Iterator[int]:
    """Arrivals in ticks of 100 ns, the format's resolution; the first is at 0."""
    now_s, busy = 0.0, False
    spell_ends_s = _exponential(rng, CALM_SPELL_S)
    emitted = 0
    while emitted < num_rows:
        arrival_s = now_s + _exponential(rng, 1 / (BUSY_RATE_PER_S if busy else CALM_RATE_PER_S))
        if emitted and arrival_s > spell_ends_s:
            # Exponential gaps have no memory: draw again from the instant the rate changed.
            now_s, busy = spell_ends_s, not busy
            spell_ends_s += _exponential(rng, BUSY_SPELL_S if busy else CALM_SPELL_S)
            continue
        now_s = arrival_s if emitted else 0.0
        emitted += 1
        yield round(now_s * 10_000_000)


def _exponential(rng: Random, mean: float) -> float:
    return -math.log(1.0 - rng.random()) * mean


def _length(rng: Random, population: Population) -> int:
    """One lognormal draw by Box and Muller, rounded and clipped."""
    radius = math.sqrt(-2.0 * math.log(1.0 - rng.random()))
    normal = radius * math.cos(2.0 * math.pi * rng.random())
    length = round(population.median * math.exp(population.sigma * normal))
    return min(max(length, population.least), population.most)


def _timestamp(ticks: int) -> str:
    """A timestamp of seven fractional digits, on a day of our own choosing, within that day."""
    seconds, fraction = divmod(ticks, 10_000_000)
    seconds += 9 * 3600
    if seconds >= 24 * 3600:
        raise ValueError("the sample runs past midnight; ask for fewer rows")
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"2024-03-05 {hour:02}:{minute:02}:{second:02}.{fraction:07}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the sample to the path given."""
    parser = argparse.ArgumentParser(
        prog="python -m llmbench.workload.sample",
        description="Make a sample trace in the format of Azure LLM 2023 or Mooncake.",
    )
    parser.add_argument("path", type=Path, help="the file to write")
    parser.add_argument("--as", dest="kind", choices=("azure", "mooncake"), default="azure")
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    options = parser.parse_args(arguments)
    make = sample_csv if options.kind == "azure" else sample_jsonl
    options.path.write_bytes(make(seed=options.seed, num_rows=options.rows))


if __name__ == "__main__":
    main()
