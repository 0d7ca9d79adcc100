"""Make a sample trace in the Azure LLM 2023 format, with rates and lengths of that kind.

    python -m llmbench.workload.sample scenarios/data/azure-sample.csv

The real files stay with their publisher; this sample is drawn from distributions of our own choosing.
Arrivals are bursty: exponential gaps whose rate switches between calm and busy spells (a Markov-modulated
Poisson process). Lengths are lognormal: prompts in two populations (short turns, long conversations),
answers in one.

Only `random.Random.random` is drawn on, whose sequence Python guarantees from version to version; everything
else is computed here. The same arguments therefore make the same bytes everywhere.
"""

from __future__ import annotations

import argparse
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
        description="Make a sample trace in the Azure LLM 2023 format.",
    )
    parser.add_argument("path", type=Path, help="the CSV file to write")
    parser.add_argument("--rows", type=int, default=DEFAULT_ROWS)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    options = parser.parse_args(arguments)
    options.path.write_bytes(sample_csv(seed=options.seed, num_rows=options.rows))


if __name__ == "__main__":
    main()
