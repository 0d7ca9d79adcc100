"""Arrival processes: the gaps have the distribution asked for, and the instants keep their promises."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbench.load.arrivals import (
    NS_PER_S,
    RateProfile,
    Segment,
    burst_due,
    bursts,
    concurrency_steps,
    limit,
    random_due,
    trace_due,
)
from llmbench.workload.seeds import stream

PROCESSES = ("constant", "poisson", "gamma")


def level(rate: float, duration_s: float = 1.0) -> RateProfile:
    return RateProfile.of([Segment(duration_s=duration_s, start=rate, end=rate)])


def due(process, profile, *, seed=1, **limits):
    return random_due(process, profile, rng=stream(seed, "arrivals"), **limits)


def kolmogorov_distance(sample, cumulative) -> float:
    """The largest distance between the sample's distribution function and `cumulative` (a function)."""
    ordered = np.sort(sample)
    expected = cumulative(ordered)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max(np.max(steps[1:] - expected), np.max(expected - steps[:-1])))


def kolmogorov_limit(num: int) -> float:
    """The distance that one sample in a hundred exceeds by chance (asymptotic: 1.628 / sqrt(n))."""
    return 1.628 / math.sqrt(num)


def gamma_cumulative(shape: float):
    """The distribution function of gaps of mean 1, by summing the density over a fine logarithmic grid."""
    grid = np.exp(np.linspace(math.log(1e-12), math.log(60.0), 400_001))
    density = grid ** (shape - 1) * np.exp(-shape * grid) * shape**shape / math.gamma(shape)
    area = np.concatenate(([0.0], np.cumsum(np.diff(grid) * (density[1:] + density[:-1]) / 2)))
    below_grid = (shape * grid[0]) ** shape / math.gamma(shape + 1)
    return lambda gaps: np.interp(gaps, grid, area + below_grid)


class TestConstant:
    @pytest.mark.parametrize("rate", [0.1, 1.0, 3.0, 7.0, 33.3, 999.999, 1e6])
    def test_every_instant_is_rounded_on_its_own(self, rate):
        instants = due("constant", level(rate), num_measured=10_000)
        assert instants.tolist() == [round(i * 1e9 / rate) for i in range(10_000)]

    def test_gaps_are_equal_to_the_nanosecond(self):
        gaps = np.diff(due("constant", level(7.0), num_measured=100_000))
        assert gaps.max() - gaps.min() <= 1

    def test_rounding_does_not_add_up_over_a_million_requests(self):
        instants = due("constant", level(3.0), num_measured=1_000_001)
        assert instants[-1] == round(1_000_000 * 1e9 / 3)

    def test_a_window_holds_rate_times_duration_requests(self):
        assert len(due("constant", level(4.0), end_ns=60 * NS_PER_S)) == 240
        assert len(due("constant", level(0.1), end_ns=30 * NS_PER_S)) == 3


class TestRandomGaps:
    @pytest.mark.parametrize("seed", range(5))
    def test_poisson_gaps_are_exponential(self, seed):
        instants = due("poisson", level(50.0), num_measured=20_000, seed=seed)
        gaps = np.diff(instants) / NS_PER_S * 50.0
        assert kolmogorov_distance(gaps, lambda x: 1 - np.exp(-x)) < kolmogorov_limit(len(gaps))

    @pytest.mark.parametrize("shape", [0.25, 0.5, 1.0, 4.0, 100.0])
    def test_gamma_gaps_have_the_shape_asked_for(self, shape):
        gaps = np.diff(due("gamma", level(1.0), num_measured=20_000, shape=shape)) / NS_PER_S
        assert kolmogorov_distance(gaps, gamma_cumulative(shape)) < kolmogorov_limit(len(gaps))
        assert np.mean(gaps) == pytest.approx(1.0, abs=4 / math.sqrt(shape * len(gaps)))
        assert np.std(gaps) / np.mean(gaps) == pytest.approx(1 / math.sqrt(shape), rel=0.1)

    def test_gaps_of_another_distribution_would_be_noticed(self):
        gaps = np.diff(due("gamma", level(1.0), num_measured=20_000, shape=0.8)) / NS_PER_S
        assert kolmogorov_distance(gaps, lambda x: 1 - np.exp(-x)) > 3 * kolmogorov_limit(len(gaps))

    def test_gaps_are_independent(self):
        gaps = np.diff(due("poisson", level(1.0), num_measured=50_000)).astype(float)
        correlation = np.corrcoef(gaps[:-1], gaps[1:])[0, 1]
        assert abs(correlation) < 3 / math.sqrt(len(gaps))

    def test_counts_vary_as_a_poisson_process_must_so_nothing_was_rescaled(self):
        counts = [len(due("poisson", level(10.0), end_ns=10 * NS_PER_S, seed=seed)) for seed in range(400)]
        assert np.mean(counts) == pytest.approx(100, abs=4 * 10 / math.sqrt(400))
        assert 75 < np.var(counts) < 130

    def test_a_shape_too_small_for_a_process_is_refused(self):
        with pytest.raises(ValueError, match="burstiness"):
            due("gamma", level(10.0), end_ns=NS_PER_S, shape=1e-9)


class TestRamps:
    RAMP = (
        Segment(duration_s=30, start=1, end=1),
        Segment(duration_s=60, start=1, end=10),
        Segment(duration_s=20, start=10, end=0),
        Segment(duration_s=10, start=0, end=0),
        Segment(duration_s=10, start=5, end=5),
    )

    def test_the_integral_of_the_rate_is_the_expected_count(self):
        profile = RateProfile.of(self.RAMP)
        table = [
            (0, 0),
            (30, 30),
            (60, 30 + 30 * (1 + 5.5) / 2),
            (90, 360),
            (110, 460),
            (120, 460),
            (130, 510),
        ]
        for time_s, expected in table:
            assert profile.expected_until(time_s) == pytest.approx(expected)

    @pytest.mark.parametrize("process", PROCESSES)
    def test_counts_in_every_interval_match_the_integral(self, process):
        scale = 200  # a large rate makes the statistics sharp
        segments = [
            Segment(duration_s=part.duration_s, start=part.start * scale, end=part.end * scale)
            for part in self.RAMP
        ]
        profile = RateProfile.of(segments)
        instants = due(process, profile, end_ns=130 * NS_PER_S, shape=2.0)
        edges_s = np.arange(0, 131, 5)
        counts, _ = np.histogram(instants / NS_PER_S, bins=edges_s)
        expected = np.diff([profile.expected_until(edge) for edge in edges_s])
        slack = 1.0 if process == "constant" else 4.5 * np.sqrt(expected) + 1e-9
        assert np.all(np.abs(counts - expected) <= slack)

    def test_a_pause_is_empty_and_nothing_is_lost_in_it(self):
        instants = due("constant", RateProfile.of(self.RAMP), end_ns=130 * NS_PER_S)
        assert not np.any((instants >= 110 * NS_PER_S) & (instants < 120 * NS_PER_S))
        assert len(instants) == 510

    def test_a_constant_ramp_follows_the_closed_form(self):
        instants = due("constant", RateProfile.of([Segment(duration_s=10, start=0, end=10)]), end_ns=10**10)
        assert instants.tolist() == [round(math.sqrt(2 * i) * 1e9) for i in range(50)]

    def test_time_rescaled_gaps_of_a_ramp_are_exponential_again(self):
        profile = RateProfile.of([Segment(duration_s=100, start=10, end=400)])
        instants = due("poisson", profile, end_ns=100 * NS_PER_S)
        unit = np.array([profile.expected_until(instant / NS_PER_S) for instant in instants])
        gaps = np.diff(unit)
        assert kolmogorov_distance(gaps, lambda x: 1 - np.exp(-x)) < kolmogorov_limit(len(gaps))

    def test_the_last_rate_holds_after_the_last_segment(self):
        profile = RateProfile.of([Segment(duration_s=2, start=0, end=4)])
        instants = due("constant", profile, num_measured=13)
        assert np.diff(instants[-8:]).tolist() == [250_000_000] * 7
        assert profile.rate_at(100.0) == 4.0

    def test_requests_that_never_come_are_refused(self):
        with pytest.raises(ValueError, match="never come"):
            due("poisson", RateProfile.of([Segment(duration_s=1, start=5, end=0)]), num_measured=100)


class TestSadRows:
    @pytest.mark.parametrize("rate", [-1.0, math.inf, math.nan])
    def test_rates_that_are_none_are_refused(self, rate):
        with pytest.raises(ValueError, match="finite and not negative"):
            level(rate)

    def test_no_time_is_no_profile(self):
        with pytest.raises(ValueError, match="a duration above zero"):
            RateProfile.of([Segment(duration_s=0, start=1, end=1)])

    def test_no_end_is_refused(self):
        with pytest.raises(ValueError, match="needs an end"):
            due("poisson", level(1.0))
        with pytest.raises(ValueError, match="need an end"):
            burst_due(3, 1.0)

    @pytest.mark.parametrize("process", PROCESSES)
    def test_a_rate_of_zero_sends_nothing(self, process):
        assert len(due(process, level(0.0), end_ns=10 * NS_PER_S)) == 0

    def test_years_stay_exact(self):
        instants = due("constant", level(1e-6), num_measured=9)
        assert instants.tolist() == [i * 10**15 for i in range(9)]


@pytest.mark.parametrize("process", PROCESSES)
def test_a_million_requests_at_a_million_a_second_are_planned_quickly(process):
    began = time.process_time()
    instants = due(process, level(1e6), num_measured=1_000_000, shape=2.0)
    spent_s = time.process_time() - began
    assert len(instants) == 1_000_000
    assert spent_s < 1.5  # a third of a second alone; other work shares the machine


rates = st.floats(0.01, 500.0)
segments = st.lists(
    st.builds(
        Segment, duration_s=st.floats(0.01, 20.0), start=st.just(0.0) | rates, end=st.just(0.0) | rates
    ),
    min_size=1,
    max_size=5,
)


class TestInvariants:
    @given(
        process=st.sampled_from(PROCESSES),
        segments=segments,
        warmup_s=st.floats(0, 5),
        shape=st.floats(0.1, 10),
        num=st.none() | st.integers(1, 500),
        seed=st.integers(0, 2**64),
    )
    @settings(deadline=None, max_examples=150)
    def test_instants_are_sorted_in_range_and_as_many_as_asked(
        self, process, segments, warmup_s, shape, num, seed
    ):
        end_s = sum(part.duration_s for part in segments)
        limits = {
            "end_ns": round(end_s * NS_PER_S),
            "warmup_ns": round(min(warmup_s, end_s) * NS_PER_S),
            "shape": shape,
            "seed": seed,
        }
        instants = due(process, RateProfile.of(segments), num_measured=num, **limits)
        assert instants.dtype == np.int64
        assert np.all(np.diff(instants) >= 0)
        assert np.all((instants >= 0) & (instants < limits["end_ns"]))
        if num is not None:
            everything = due(process, RateProfile.of(segments), **limits)
            num_measured = np.count_nonzero(everything >= limits["warmup_ns"])
            assert np.array_equal(instants, everything[: len(instants)])
            assert np.count_nonzero(instants >= limits["warmup_ns"]) == min(num, num_measured)

    @given(
        process=st.sampled_from(PROCESSES),
        few=st.integers(1, 200),
        many=st.integers(200, 5000),
        seed=st.integers(0, 2**32),
    )
    @settings(deadline=None, max_examples=50)
    def test_a_longer_plan_begins_like_a_shorter_one(self, process, few, many, seed):
        profile = RateProfile.of([Segment(duration_s=3, start=2, end=50)])
        short = due(process, profile, num_measured=few, seed=seed, shape=0.5)
        long = due(process, profile, num_measured=many, seed=seed, shape=0.5)
        assert len(short) == few
        assert np.array_equal(short, long[:few])

    @given(segments=segments, units=st.lists(st.floats(0, 1), min_size=1, max_size=50))
    def test_the_inverse_undoes_the_integral(self, segments, units):
        profile = RateProfile.of(segments)
        wanted = np.sort(np.array(units)) * profile.expected[-1] * 0.999
        back = [profile.expected_until(instant / NS_PER_S) for instant in profile.due_ns(wanted)]
        assert back == pytest.approx(wanted[: len(back)], abs=1e-5, rel=1e-6)

    def test_seeds_differ_and_purposes_do_not_disturb_each_other(self):
        instants = [due("poisson", level(5.0), num_measured=50, seed=seed).tolist() for seed in (1, 2, 1)]
        assert instants[0] == instants[2] != instants[1]
        assert stream(1, "a").random() != stream(1, "b").random()
        assert stream(-1, "a").random() == stream(2**128 - 1, "a").random()


class TestBursts:
    def test_bursts_come_at_multiples_of_the_interval(self):
        instants = burst_due(3, 2.0, end_ns=5 * NS_PER_S)
        assert instants.tolist() == [0] * 3 + [2 * NS_PER_S] * 3 + [4 * NS_PER_S] * 3

    def test_a_burst_at_the_end_is_not_in_the_window(self):
        assert len(burst_due(3, 2.0, end_ns=4 * NS_PER_S)) == 6

    def test_the_last_burst_is_cut_to_the_number_asked(self):
        instants = burst_due(4, 1.0, warmup_ns=NS_PER_S, num_measured=6)
        assert instants.tolist() == [0] * 4 + [NS_PER_S] * 4 + [2 * NS_PER_S] * 2

    def test_all_at_once_is_at_the_end_of_the_warm_up(self):
        assert burst_due(5, None, warmup_ns=7, num_measured=5).tolist() == [7] * 5


class TestTraces:
    OFFSETS = np.array([0, 100, 100, 250, 1000], dtype=np.int64)

    @pytest.mark.parametrize(
        ("speed", "expected"),
        [(1.0, [0, 100, 100, 250, 1000]), (0.5, [0, 200, 200, 500, 2000]), (10.0, [0, 10, 10, 25, 100])],
    )
    def test_speed_divides_every_gap(self, speed, expected):
        assert trace_due(self.OFFSETS, speed).tolist() == expected

    def test_limits_cut_the_end_and_only_the_end(self):
        assert trace_due(self.OFFSETS, 1.0, end_ns=250).tolist() == [0, 100, 100]
        assert trace_due(self.OFFSETS, 1.0, warmup_ns=100, num_measured=2).tolist() == [0, 100, 100]
        assert (
            limit(self.OFFSETS, warmup_ns=0, end_ns=None, num_measured=99).tolist() == self.OFFSETS.tolist()
        )


class TestConcurrency:
    def test_a_ramp_takes_each_number_of_users_where_the_line_rounds_to_it(self):
        steps = concurrency_steps(
            [Segment(duration_s=1, start=1, end=1), Segment(duration_s=4, start=1, end=3)]
        )
        assert dict(zip(steps.at_ns.tolist(), steps.users.tolist(), strict=True)) == {
            0: 1,
            2 * NS_PER_S: 2,
            4 * NS_PER_S: 3,
        }

    @given(
        levels=st.lists(
            st.tuples(st.integers(0, 50), st.integers(0, 50), st.floats(0.1, 9)), min_size=1, max_size=5
        ),
        at=st.floats(0, 1, exclude_max=True),
    )
    def test_users_are_the_rounded_line_at_any_time(self, levels, at):
        parts = [Segment(duration_s=for_s, start=start, end=end) for start, end, for_s in levels]
        steps = concurrency_steps(parts)
        assert steps.at_ns[0] == 0
        assert np.all(np.diff(steps.at_ns) >= 0)
        number = int(at * len(parts))
        share = at * len(parts) - number
        part = parts[number]
        instant = sum(earlier.duration_s for earlier in parts[:number]) + share * part.duration_s
        line = part.start + share * (part.end - part.start)
        assert (
            abs(steps.at(round(instant * NS_PER_S)) - line) <= 0.5 + 1e-6 * 50
            or share * part.duration_s < 1e-8
        )


class TestCrowds:
    def found(self, due_ns):
        return [(burst.due_ns, burst.size) for burst in bursts(np.asarray(due_ns, dtype=np.int64))]

    def test_each_burst_is_found_with_its_size(self):
        due = burst_due(32, 10.0, end_ns=60 * NS_PER_S)
        assert self.found(due) == [(at * 10 * NS_PER_S, 32) for at in range(6)]

    def test_also_in_the_midst_of_steady_arrivals(self):
        steady = np.arange(0, 60 * NS_PER_S, NS_PER_S // 10)
        due = np.sort(np.concatenate([steady, np.full(40, 30 * NS_PER_S + NS_PER_S // 20)]))
        assert self.found(due) == [(30 * NS_PER_S + NS_PER_S // 20, 40)]

    @pytest.mark.parametrize("rate", [1.0, 10.0, 100.0, 1000.0])
    def test_steady_arrivals_have_none_but_for_their_first_ones(self, rate):
        for seed in range(5):
            due = random_due("poisson", level(rate), rng=np.random.default_rng(seed), end_ns=60 * NS_PER_S)
            assert all(at < NS_PER_S // 10 for at, _ in self.found(due))

    def test_nothing_due_is_no_burst(self):
        assert self.found([]) == self.found([5]) == []
