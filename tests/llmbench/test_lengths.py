"""Lengths: the distributions asked for, whole and at least 1, the same whatever the order of asking."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbench.scenario.distributions import LengthDistribution, TimeDistribution
from llmbench.workload.lengths import BLOCK, MAX_TOKENS, Lengths, ThinkTimes

COUNT = 50_000


def lengths(written, seed=1, purpose="input") -> Lengths:
    return Lengths(LengthDistribution.model_validate(written), seed=seed, purpose=purpose)


def drawn(written, **more):
    return lengths(written, **more).first(COUNT)


def test_fixed_is_always_the_same():
    assert set(drawn(128).tolist()) == {128}
    assert set(drawn({"fixed": 7}).tolist()) == {7}


def test_uniform_takes_every_value_of_its_range_equally_often():
    counts = np.bincount(drawn({"uniform": {"min": 10, "max": 19}}))
    assert counts[:10].sum() == 0
    assert len(counts) == 20
    expected = COUNT / 10
    chi_squared = float(np.sum((counts[10:] - expected) ** 2 / expected))
    assert chi_squared < 21.67  # 99 % point with nine degrees of freedom


def test_normal_has_its_mean_and_deviation():
    values = drawn({"normal": {"mean": 500, "std": 60}})
    assert np.mean(values) == pytest.approx(500, abs=1.5)
    assert np.std(values) == pytest.approx(60, rel=0.02)


@pytest.mark.parametrize(("mean", "sigma"), [(512, 0.6), (100, 0.2), (2000, 1.0)])
def test_lognormal_mean_is_the_arithmetic_mean_and_sigma_that_of_the_logarithm(mean, sigma):
    values = drawn({"lognormal": {"mean": mean, "sigma": sigma}})
    error = mean * math.sqrt(math.exp(sigma**2) - 1) / math.sqrt(COUNT)
    assert np.mean(values) == pytest.approx(mean, abs=4 * error)
    assert np.std(np.log(values)) == pytest.approx(sigma, rel=0.03)
    assert np.median(values) == pytest.approx(mean / math.exp(sigma**2 / 2), rel=0.03)


@pytest.mark.parametrize(
    ("written", "shares"),
    [
        ({"empirical": [10, 20, 20, 400]}, {10: 0.25, 20: 0.5, 400: 0.25}),
        ({"empirical": {"values": [1, 2, 3], "weights": [1, 0, 3]}}, {1: 0.25, 3: 0.75}),
    ],
)
def test_empirical_values_come_with_their_weights(written, shares):
    values = drawn(written)
    assert set(values.tolist()) == set(shares)
    for value, share in shares.items():
        slack = 4 * math.sqrt(share * (1 - share) / COUNT)
        assert np.mean(values == value) == pytest.approx(share, abs=slack)


@pytest.mark.parametrize(
    ("written", "least", "most"),
    [
        ({"normal": {"mean": 50, "std": 40}, "min": 16, "max": 96}, 16, 96),
        ({"lognormal": {"mean": 512, "sigma": 0.6}, "min": 100, "max": 900}, 100, 900),
        ({"normal": {"mean": 1, "std": 50}}, 1, MAX_TOKENS),
        ({"lognormal": {"mean": 5, "sigma": 1000}}, 1, MAX_TOKENS),
        ({"fixed": 0}, 1, 1),
        ({"empirical": [0, 5]}, 1, 5),
    ],
)
def test_clipped_whole_and_at_least_one_token(written, least, most):
    values = drawn(written)
    assert values.dtype == np.int64
    assert values.min() == least
    assert values.max() <= most


shapes = st.sampled_from(
    [
        {"uniform": {"min": 3, "max": 900}},
        {"normal": {"mean": 300, "std": 100}},
        {"lognormal": {"mean": 300, "sigma": 1.1}, "max": 2000},
        {"empirical": [1, 5, 9, 700]},
    ]
)


@given(
    shape=shapes,
    seed=st.integers(0, 2**64),
    indices=st.lists(st.integers(0, 8 * BLOCK), min_size=1, max_size=30),
)
@settings(deadline=None)
def test_the_length_at_an_index_depends_on_no_other(shape, seed, indices):
    alone = [lengths(shape, seed=seed).at(index) for index in indices]
    together = lengths(shape, seed=seed)
    assert [together.at(index) for index in reversed(indices)] == alone[::-1]
    assert lengths(shape, seed=seed).first(max(indices) + 1)[indices].tolist() == alone


def test_far_indices_are_cheap_and_memory_stays_bounded():
    source = lengths({"uniform": {"min": 1, "max": 10**6}})
    assert source.at(10**12) == lengths({"uniform": {"min": 1, "max": 10**6}}).at(10**12)
    for number in range(200):
        source.at(number * BLOCK)
    assert len(source._draws._blocks) <= 64


def test_purposes_and_seeds_draw_differently():
    shape = {"uniform": {"min": 1, "max": 10**6}}
    rows = [drawn(shape).tolist(), drawn(shape, seed=2).tolist(), drawn(shape, purpose="output").tolist()]
    assert rows[0] != rows[1]
    assert rows[0] != rows[2]


@pytest.mark.parametrize(
    ("written", "mean_s", "std_s"),
    [
        (1.5, 1.5, 0.0),
        ({"uniform": {"min_s": 1.0, "max_s": 3.0}}, 2.0, 2 / math.sqrt(12)),
        ({"normal": {"mean_s": 2.0, "std_s": 0.2}}, 2.0, 0.2),
        ({"exponential": {"mean_s": 0.5}}, 0.5, 0.5),
        ({"lognormal": {"mean_s": 2.0, "sigma": 0.5}}, 2.0, 2 * math.sqrt(math.exp(0.25) - 1)),
    ],
)
def test_think_times_have_the_mean_and_spread_asked_for(written, mean_s, std_s):
    times = ThinkTimes(TimeDistribution.model_validate(written), seed=3)
    values = times.first_s(COUNT)
    assert np.mean(values) == pytest.approx(mean_s, abs=4 * std_s / math.sqrt(COUNT) + 1e-12)
    assert np.std(values) == pytest.approx(std_s, rel=0.05, abs=1e-12)
    assert values.min() >= 0
    assert times.at_s(17) == values[17]


def test_think_times_are_clipped_and_never_negative():
    wild = TimeDistribution.model_validate({"normal": {"mean_s": 0.1, "std_s": 5.0}, "max_s": 0.3})
    values = ThinkTimes(wild, seed=3).first_s(1000)
    assert values.min() == 0.0
    assert values.max() == 0.3
