"""Lengths in tokens and times in seconds, drawn from the scenario's distributions.

Draws come in blocks of a fixed size, each block from a stream of its own. The value at an index therefore
does not depend on which other indices were asked for, in what order, or how many there are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from llmbench.scenario.distributions import EmpiricalLength, LengthDistribution, TimeDistribution
from llmbench.workload.seeds import stream

BLOCK = 1024
# Longer than any context; keeps a draw from a huge sigma an integer, and a prompt in memory.
MAX_TOKENS = 10_000_000

Reals = npt.NDArray[np.float64]


class BlockDraws:
    """An endless sequence of reals, computed a block at a time and only where it is asked for."""

    def __init__(
        self, draw: Callable[[np.random.Generator, int], Reals], *, seed: int, purpose: str, kept: int = 64
    ) -> None:
        self._draw = draw
        self._seed = seed
        self._purpose = purpose
        self._kept = kept
        self._blocks: dict[int, Reals] = {}

    def block(self, number: int) -> Reals:
        """Values number·BLOCK to (number + 1)·BLOCK - 1. The last few blocks asked for are kept."""
        values = self._blocks.get(number)
        if values is None:
            values = self._draw(stream(self._seed, self._purpose, number), BLOCK)
            while len(self._blocks) >= self._kept:
                self._blocks.pop(next(iter(self._blocks)))
            self._blocks[number] = values
        return values

    def at(self, index: int) -> float:
        """The value at `index` (from 0)."""
        number, within = divmod(index, BLOCK)
        return float(self.block(number)[within])

    def first(self, count: int) -> Reals:
        """The first `count` values."""
        blocks = [self.block(number) for number in range(-(-count // BLOCK))]
        return np.concatenate(blocks)[:count] if blocks else np.empty(0)


class Lengths:
    """Whole numbers of tokens, at least 1, from one distribution."""

    def __init__(self, distribution: LengthDistribution, *, seed: int, purpose: str) -> None:
        self._draws = BlockDraws(
            lambda rng, count: draw_lengths(distribution, rng, count), seed=seed, purpose=purpose
        )

    def at(self, index: int) -> int:
        """The length at `index` (from 0), in tokens."""
        return int(self._draws.at(index))

    def first(self, count: int) -> npt.NDArray[np.int64]:
        """The lengths at 0 … count - 1, in tokens."""
        return self._draws.first(count).astype(np.int64)


def draw_lengths(distribution: LengthDistribution, rng: np.random.Generator, count: int) -> Reals:
    """`count` whole token counts as floats: drawn, clipped to the distribution's min and max, rounded, at
    least 1.

    Clipping moves mass to the bounds (a draw is not repeated); the mean of a clipped distribution differs
    from the one stated.
    """
    least = max(1, distribution.min if distribution.min is not None else 1)
    most = distribution.max if distribution.max is not None else MAX_TOKENS
    return np.rint(np.clip(_draw(distribution, rng, count), least, max(least, most)))


def _draw(distribution: LengthDistribution, rng: np.random.Generator, count: int) -> Reals:
    if distribution.uniform is not None:
        uniform = distribution.uniform
        return rng.integers(uniform.min, uniform.max, endpoint=True, size=count).astype(np.float64)
    if distribution.normal is not None:
        return rng.normal(distribution.normal.mean, distribution.normal.std, count)
    if distribution.lognormal is not None:
        return _lognormal(distribution.lognormal.mean, distribution.lognormal.sigma, rng, count)
    if distribution.empirical is not None:
        return _empirical(distribution.empirical, rng, count)
    return np.full(count, float(distribution.fixed or 0))


def _lognormal(mean: float, sigma: float, rng: np.random.Generator, count: int) -> Reals:
    """Draws whose arithmetic mean is `mean`: E[X] = exp(µ + σ²/2) for log X ~ N(µ, σ²)."""
    with np.errstate(over="ignore"):
        return rng.lognormal(np.log(mean) - sigma * sigma / 2, sigma, count)


def _empirical(empirical: EmpiricalLength, rng: np.random.Generator, count: int) -> Reals:
    values = np.array(empirical.values, dtype=np.float64)
    weights = np.ones(len(values)) if empirical.weights is None else np.array(empirical.weights)
    cumulative = np.cumsum(weights / weights.sum())
    # The clip catches a draw above the last sum, which rounding may leave just below 1.
    picked = np.searchsorted(cumulative, rng.random(count), side="right")
    return values[np.minimum(picked, len(values) - 1)]


class ThinkTimes:
    """How long a user of a closed loop waits between an answer and the next request."""

    def __init__(self, distribution: TimeDistribution, *, seed: int) -> None:
        self._draws = BlockDraws(
            lambda rng, count: draw_times(distribution, rng, count), seed=seed, purpose="think_time"
        )

    def at_s(self, index: int) -> float:
        """Seconds to wait before request `index` (of all users together) is sent; never negative."""
        return self._draws.at(index)

    def first_s(self, count: int) -> Reals:
        """The first `count` waits, in seconds."""
        return self._draws.first(count)


def draw_times(distribution: TimeDistribution, rng: np.random.Generator, count: int) -> Reals:
    """`count` times in seconds, clipped to the distribution's min and max and never below 0."""
    if distribution.uniform is not None:
        times = rng.uniform(distribution.uniform.min_s, distribution.uniform.max_s, count)
    elif distribution.normal is not None:
        times = rng.normal(distribution.normal.mean_s, distribution.normal.std_s, count)
    elif distribution.lognormal is not None:
        times = _lognormal(distribution.lognormal.mean_s, distribution.lognormal.sigma, rng, count)
    elif distribution.exponential is not None:
        times = rng.exponential(distribution.exponential.mean_s, count)
    else:
        times = np.full(count, float(distribution.fixed_s or 0.0))
    least = distribution.min_s if distribution.min_s is not None else 0.0
    most = distribution.max_s if distribution.max_s is not None else np.inf
    return np.clip(times, least, max(least, most))
