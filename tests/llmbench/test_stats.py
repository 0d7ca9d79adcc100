from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.stats import (
    WeightedValues,
    histogram,
    percentile_ranks,
    sample,
    samples_needed,
    share_interval,
    sparkline,
    weighted_sample,
)

VALUES = st.lists(st.integers(0, 10**12), min_size=1, max_size=60)
PERCENT = st.floats(0, 100)


@given(VALUES, PERCENT)
def test_percentiles_are_numpys_to_the_last_bit(values, percent):
    assert sample(np.array(values)).percentile(percent) == np.percentile(np.array(values), percent)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 40)), min_size=1, max_size=80), PERCENT)
def test_a_weighted_percentile_is_that_of_the_values_repeated(pairs, percent):
    values, weights = (np.array(column) for column in zip(*pairs, strict=True))
    repeated = np.repeat(values, weights)
    weighted = weighted_sample(values, weights)
    assert weighted.count == len(repeated)
    if len(repeated):
        assert weighted.percentile(percent) == np.percentile(repeated, percent)
        assert weighted.mean() == pytest.approx(repeated.mean())
        assert (weighted.min(), weighted.max()) == (repeated.min(), repeated.max())
    if len(repeated) > 1:
        assert weighted.std() == pytest.approx(repeated.std(ddof=1), abs=1e-9)


def test_more_kinds_of_weight_than_groups_change_nothing():
    values, weights = np.arange(400.0) % 37, np.arange(400) % 90
    repeated = np.repeat(values, weights)
    weighted = weighted_sample(values, weights)
    for percent in (0, 10, 50, 95, 99.9, 100):
        assert weighted.percentile(percent) == np.percentile(repeated, percent)
    assert len(weighted.groups) < 90


def test_values_may_come_in_pieces():
    pieces = WeightedValues()
    pieces.add(np.array([3.0, 1.0]), np.array([2, 1]))
    pieces.add(np.array([2.0]), np.array([2]))
    whole = pieces.finish()
    assert [whole.at(rank) for rank in range(5)] == [1, 2, 2, 3, 3]


@given(VALUES, st.randoms(use_true_random=False))
def test_the_order_of_the_sample_does_not_matter(values, random):
    shuffled = values.copy()
    random.shuffle(shuffled)
    left, right = sample(np.array(values)), sample(np.array(shuffled))
    assert [left.percentile(p) for p in (5, 50, 99)] == [right.percentile(p) for p in (5, 50, 99)]
    assert left.mean() == right.mean()


def test_an_empty_sample_has_no_numbers_and_no_crash():
    empty = sample(np.empty(0))
    assert empty.count == 0
    assert all(math.isnan(value) for value in (empty.mean(), empty.std(), empty.min(), empty.percentile(50)))
    assert histogram(empty, num_bins=5) is None
    with pytest.raises(IndexError):
        empty.at(0)


def test_one_value_has_no_spread():
    assert math.isnan(sample(np.array([7])).std())
    assert sample(np.array([7])).percentile(99) == 7


def test_a_percentile_next_to_infinity_is_infinite_never_nan():
    values = sample(np.array([1.0, 2.0, math.inf, math.inf]))
    assert values.percentile(0) == 1
    assert values.percentile(50) == math.inf
    assert values.percentile(100) == math.inf


@pytest.mark.parametrize(
    ("percent", "needed"),
    [(0, 1), (50, 1), (75, 4), (90, 10), (95, 20), (99, 100), (99.5, 200), (99.9, 1000), (99.99, 10_000)],
)
def test_a_percentile_needs_a_value_beyond_it(percent, needed):
    assert samples_needed(percent) == needed


# FIELD's table, computed there with exact arithmetic.
@pytest.mark.parametrize(("percent", "needed"), [(50, 6), (90, 36), (95, 72), (99, 368), (99.9, 3688)])
def test_an_interval_exists_from_this_many_values_on(percent, needed):
    assert percentile_ranks(needed - 1, percent) is None
    assert percentile_ranks(needed, percent) is not None


@pytest.mark.parametrize(("count", "ranks"), [(1000, (983, 997)), (5000, (4936, 4964))])
def test_known_intervals_of_the_99th_percentile(count, ranks):
    low, high = percentile_ranks(count, 99)
    assert (low + 1, high + 1) == ranks


@given(st.integers(1, 120), st.integers(1, 99))
def test_ranks_are_the_narrowest_that_exact_binomial_tails_allow(count, percent):
    share = Fraction(percent, 100)
    cdf = [Fraction(0)]
    for k in range(count + 1):
        cdf.append(cdf[-1] + math.comb(count, k) * share**k * (1 - share) ** (count - k))
    tail = Fraction(25, 1000)
    # cdf[k + 1] is P(B <= k).
    lows = [rank for rank in range(1, count + 1) if cdf[rank] <= tail]
    highs = [rank for rank in range(1, count + 1) if 1 - cdf[rank] <= tail]
    expected = (max(lows) - 1, min(highs) - 1) if lows and highs else None
    assert percentile_ranks(count, percent) == expected


def test_ranks_of_forty_million_values_are_found_and_tight():
    low, high = percentile_ranks(40_000_000, 99)
    assert low < 39_600_000 < high
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(40e6 * 0.99 * 0.01), rel=0.01)


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [(2, 247, 0.0022, 0.0290), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0)],
)
def test_a_share_has_wilsons_interval(hits, count, low, high):
    assert share_interval(hits, count) == pytest.approx((low, high), abs=5e-4)


def test_no_attempts_no_interval():
    assert share_interval(0, 0) is None


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=50), st.integers(1, 40))
def test_every_value_lies_in_one_bin(values, num_bins):
    bins = histogram(sample(np.array(values)), num_bins=num_bins)
    assert len(bins["counts"]) == num_bins
    assert sum(bins["counts"]) == len(values)
    assert bins["low"] <= min(values)
    assert bins["above"] > 0 or bins["high"] >= max(values)


def test_one_far_value_does_not_flatten_the_picture():
    bins = histogram(sample(np.array([*np.linspace(0.1, 0.2, 199), 60.0])), num_bins=20)
    assert bins["high"] < 1
    assert bins["above"] == 1


def test_a_sparkline_is_blank_only_where_nothing_lies():
    assert sparkline([0, 1, 100, 50]) == " ▁█▄"
    assert sparkline([]) == ""
