"""The plan of a run: what is due when, what ends it, and what it says about itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbench.errors import UsageError
from llmbench.load.plan import MAX_PLANNED, make_plan
from llmbench.scenario.model import Scenario
from llmbench.workload.traces.trace import Trace

S = 1_000_000_000


def scenario(seed=7, kind="synthetic", **load) -> Scenario:
    workload = {"kind": "synthetic", "input_tokens": 10, "output_tokens": 5}
    if kind == "azure":
        workload = {"kind": "azure", "path": "t.csv"}
    return Scenario.model_validate(
        {"target": {"url": "http://localhost"}, "load": load, "workload": workload, "seed": seed}
    )


def plan(trace=None, **load):
    return make_plan(scenario(kind="azure" if trace is not None else "synthetic", **load), trace)


def trace(*offsets_s: float) -> Trace:
    offsets = np.array([round(offset * S) for offset in offsets_s], dtype=np.int64)
    ones = np.ones(len(offsets), dtype=np.int64)
    return Trace(
        path="/data/t.csv",
        offset_ns=offsets,
        input_tokens=ones,
        output_tokens=ones,
        num_file_rows=len(offsets),
    )


class TestWindow:
    def test_the_warm_up_comes_first_and_the_measured_time_after_it(self):
        made = plan(arrivals="constant", rate=4.0, duration=60.0, warmup=10.0)
        assert (made.warmup_ns, made.duration_ns, made.end_ns) == (10 * S, 60 * S, 70 * S)
        assert (made.num_warmup, made.num_requests, made.expected_total) == (40, 240, 280)
        assert made.due_ns[-1] < 70 * S
        assert [made.phase_of(0, at) for at in (0, 10 * S - 1, 10 * S, 70 * S)] == [
            "warmup", "warmup", "measure", "measure",
        ]  # fmt: skip

    @pytest.mark.parametrize("arrivals", ["constant", "poisson", "gamma"])
    def test_a_number_of_requests_counts_the_measured_ones(self, arrivals):
        made = plan(arrivals=arrivals, rate=20.0, requests=100, warmup=3.0)
        assert made.num_requests == 100
        assert made.num_warmup == np.count_nonzero(made.due_ns < 3 * S) > 30
        assert made.duration_ns is None
        assert made.last_planned_ns == made.due_ns[-1]

    def test_with_both_whichever_ends_first(self):
        few = plan(arrivals="constant", rate=10.0, duration=60.0, requests=20)
        assert (few.num_requests, few.duration_ns) == (20, None)
        short = plan(arrivals="constant", rate=10.0, duration=1.0, requests=20)
        assert (short.num_requests, short.duration_ns) == (10, S)
        assert "the time ends first: 10 of the 20 requests asked" in short.describe()

    def test_stages_that_end_before_the_requests_asked_are_said(self):
        stages = [{"rate": 1.0, "for": 5.0}, {"ramp_to": 0.0, "for": 1.0}]
        made = plan(arrivals="constant", requests=10**6, stages=stages)
        assert "the time ends first: 6 of the 1,000,000 requests asked" in made.describe()

    def test_no_end_is_refused(self):
        endless = scenario(arrivals="poisson", rate=1.0, duration=1.0).model_copy(
            update={"load": scenario(arrivals="poisson", rate=1.0, duration=1.0).load.model_copy(
                update={"duration_s": None}
            )}
        )  # fmt: skip
        with pytest.raises(UsageError, match="nothing ends the run; write duration: 60s or requests: 500"):
            make_plan(endless)

    @pytest.mark.parametrize(
        ("load", "message"),
        [
            ({"arrivals": "constant", "rate": 1e6, "duration": 3600.0}, "3,600,000,000 requests to plan"),
            ({"arrivals": "poisson", "rate": 1.0, "requests": MAX_PLANNED + 1}, "requests to plan"),
            ({"arrivals": "burst", "burst": {"size": 10**9, "every": 1.0}, "duration": 5.0},
             "requests to plan"),
            ({"arrivals": "constant", "rate": 1e-9, "duration": 1e9}, "longer than 104 days"),
            ({"arrivals": "constant", "rate": 0.001, "duration": 5.0, "warmup": 1.0}, "not one request"),
            ({"arrivals": "closed", "concurrency": 10**9, "duration": 1.0}, "users; write fewer"),
            ({"arrivals": "gamma", "rate": 10.0, "burstiness": 1e-9, "duration": 1.0}, "burstiness"),
            ({"arrivals": "closed", "concurrency": 1, "until": {"ttft.p95": "±5%", "at_most": "10m"}},
             "load.until: not in this version"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_planned_is_refused_with_a_remedy(self, load, message):
        with pytest.raises(UsageError, match=message):
            plan(**load)


class TestMeasuredTime:
    def test_it_is_the_planned_one(self):
        timed = plan(arrivals="constant", rate=2.0, duration=10.0, warmup=5.0)
        assert timed.window_ns == (5 * S, 15 * S)
        assert timed.num_due(*timed.window_ns) == 20

    def test_or_lies_between_the_first_and_the_last_measured_request(self):
        counted = plan(arrivals="constant", rate=2.0, requests=4, warmup=5.0)
        assert counted.window_ns == (5 * S, 6.5 * S)
        assert counted.num_due(*counted.window_ns) == 3
        assert counted.num_due(0, 5 * S) == 10

    def test_of_a_closed_loop_without_an_end_only_its_begin_is_known(self):
        closed = plan(arrivals="closed", concurrency=2, requests=4, warmup=5.0)
        assert (closed.window_ns, closed.num_due(0, S)) == ((5 * S, None), 0)


class TestStages:
    STAGES = ({"rate": 2.0, "for": 10.0}, {"ramp_to": 10.0, "for": 20.0}, {"rate": 0.0, "for": 5.0})

    def test_stages_begin_after_the_warm_up_whose_rate_is_the_first_stages(self):
        made = plan(arrivals="constant", stages=self.STAGES, warmup=5.0)
        assert made.num_warmup == 10
        assert made.num_requests == 20 + 120
        assert made.end_ns == 40 * S
        assert [made.stage_of(at * S) for at in (0, 5, 14, 15, 34, 35, 39, 40)] == [
            None, 0, 0, 1, 1, 2, 2, None,
        ]  # fmt: skip
        assert [made.rate_at(at * S) for at in (0, 10, 25, 37)] == [2.0, 2.0, 6.0, 0.0]
        assert [(span.start_level, span.end_level) for span in made.stages] == [(2, 2), (2, 10), (0, 0)]

    def test_a_first_ramp_starts_at_the_loads_rate(self):
        made = plan(arrivals="constant", rate=4.0, stages=[{"ramp_to": 8.0, "for": 10.0}], warmup=5.0)
        assert made.num_warmup == 20
        assert made.num_requests == 60
        assert made.notes == ()

    def test_a_warm_up_in_which_nothing_can_be_sent_is_said(self):
        made = plan(arrivals="constant", stages=[{"ramp_to": 8.0, "for": 10.0}], warmup=5.0)
        assert made.num_warmup == 0
        assert "nothing is sent in the warm-up" in made.describe()

    def test_users_of_a_closed_loop_follow_their_stages(self):
        stages = [{"concurrency": 4, "for": 10.0}, {"ramp_to": 8, "for": 8.0}, {"ramp_to": 0, "for": 8.0}]
        made = plan(arrivals="closed", stages=stages, warmup=2.0)
        users = [made.concurrency_at(round(at * S)) for at in (0, 11, 12, 13.1, 16, 20, 24, 27.9)]
        assert users == [4, 4, 4, 5, 6, 8, 4, 0]
        assert made.next_concurrency_step_ns(0) == 13 * S
        assert made.next_concurrency_step_ns(28 * S) is None
        assert made.duration_ns == 26 * S


class TestClosedLoop:
    def test_it_has_users_and_no_due_instants(self):
        made = plan(arrivals="closed", concurrency=16, duration=60.0, think_time=1.5)
        assert not made.is_open
        assert made.due_ns is None
        assert made.concurrency_at(59 * S) == 16
        assert made.think_time_ns(3) == 1_500_000_000
        assert made.expected_total is None

    @pytest.mark.parametrize(
        ("load", "num_measured", "at_s", "admitted"),
        [
            ({"requests": 5}, 4, 10**6, True),
            ({"requests": 5}, 5, 0, False),
            ({"duration": 10.0, "warmup": 2.0}, 10**6, 11.9, True),
            ({"duration": 10.0, "warmup": 2.0}, 0, 12, False),
            ({"duration": 10.0, "requests": 5}, 4, 9, True),
            ({"duration": 10.0, "requests": 5}, 5, 9, False),
            ({"duration": 10.0, "requests": 5}, 4, 10, False),
        ],
    )
    def test_it_admits_requests_until_the_first_limit(self, load, num_measured, at_s, admitted):
        made = plan(arrivals="closed", concurrency=1, **load)
        assert made.admits(num_measured, round(at_s * S)) is admitted

    def test_the_total_is_known_only_where_requests_alone_end_it(self):
        assert plan(arrivals="closed", concurrency=2, requests=5).expected_total == 5
        assert plan(arrivals="closed", concurrency=2, requests=5, warmup=1.0).expected_total is None


class TestTrace:
    def test_every_row_is_sent_once_in_order(self):
        made = plan(trace(*range(20)), arrivals="trace")
        assert made.due_ns.tolist() == [offset * S for offset in range(20)]
        assert (made.num_requests, made.duration_ns) == (20, None)
        assert made.notes == ()

    def test_half_speed_doubles_the_gaps(self):
        assert plan(trace(0, 1, 3), arrivals="trace", speed=0.5).due_ns.tolist() == [0, 2 * S, 6 * S]

    @pytest.mark.parametrize(
        ("limits", "num_sent", "said"),
        [
            ({"duration": 5.0}, 5, "5 of the trace's 20 rows are sent; the run ends before the rest"),
            ({"requests": 7}, 7, "7 of the trace's 20 rows are sent; the run ends before the rest"),
            ({"requests": 7, "warmup": 3.0}, 10, "10 of the trace's 20 rows are sent"),
            ({"duration": 60.0}, 20, "the trace ends after 19.0 s, before the duration does"),
            ({"requests": 500}, 20, "500 requests asked; the trace has 20 after the warm-up"),
        ],
    )
    def test_what_a_limit_cuts_is_said(self, limits, num_sent, said):
        made = plan(trace(*range(20)), arrivals="trace", **limits)
        assert made.expected_total == num_sent
        assert said in made.describe()

    def test_lengths_of_a_trace_under_other_arrivals_say_how_many_rows_they_use(self):
        rows = trace(*range(20))
        fewer = plan(rows, arrivals="constant", rate=1.0, requests=5).describe()
        assert "lengths of the first 5 of 20 rows of the trace" in fewer
        more = plan(rows, arrivals="constant", rate=1.0, requests=50).describe()
        assert "the trace's 20 rows of lengths are used again from the start" in more

    def test_notes_of_the_trace_are_passed_on_and_no_trace_is_refused(self):
        started = trace(*range(20)).prepared(start_s=5.0)
        assert "5 rows before load.start 5s are left out" in plan(started, arrivals="trace").describe()
        with pytest.raises(UsageError, match="needs a workload with times"):
            make_plan(scenario(kind="azure", arrivals="trace"))


@pytest.mark.parametrize(
    ("load", "line"),
    [
        ({"arrivals": "constant", "rate": 4.0, "duration": 60.0, "warmup": 10.0},
         "open loop, constant 4/s for 60 s after 10 s of warm-up   240 requests, seed 7"),
        ({"arrivals": "poisson", "rate": 0.5, "requests": 1},
         "open loop, Poisson 0.5/s   1 request, seed 7"),
        ({"arrivals": "gamma", "rate": 4.0, "burstiness": 0.5, "requests": 1200},
         "open loop, gamma 4/s (burstiness 0.5)   1,200 requests, seed 7"),
        ({"arrivals": "constant", "stages": [{"rate": 1.0, "for": 30.0}, {"ramp_to": 10.0, "for": 60.0}]},
         "open loop, constant 1 to 10/s in 2 stages for 90 s   360 requests, seed 7"),
        ({"arrivals": "constant", "stages": [{"ramp_to": 8.0, "for": 60.0}]},
         "open loop, constant 0 to 8/s in 1 stage for 60 s   240 requests, seed 7"),
        ({"arrivals": "closed", "stages": [{"ramp_to": 8, "for": 60.0}]},
         "closed loop, 0 to 8 users in 1 stage for 60 s   seed 7"),
        ({"arrivals": "burst", "requests": 64}, "open loop, all at once   64 requests, seed 7"),
        ({"arrivals": "burst", "burst": {"size": 8, "every": 0.5}, "duration": 2.0},
         "open loop, bursts of 8 every 0.5 s for 2 s   32 requests, seed 7"),
        ({"arrivals": "closed", "concurrency": 16, "think_time": 1.0, "duration": 60.0},
         "closed loop, 16 users, 1 s think time for 60 s   seed 7"),
        ({"arrivals": "closed", "concurrency": 1, "requests": 500},
         "closed loop, 1 user   500 requests, seed 7"),
    ],
)  # fmt: skip
def test_the_load_is_described_in_a_line(load, line):
    assert plan(**load).describe() == line


def test_a_trace_is_described_by_its_file_and_speed():
    made = plan(trace(0, 1), arrivals="trace", speed=0.5, warmup=0.5)
    assert made.describe() == (
        "open loop, trace t.csv at 0.5 times its speed after 0.5 s of warm-up   1 request, seed 7"
    )


class TestHash:
    LOADS = (
        {"arrivals": "poisson", "rate": 4.0, "duration": 60.0},
        {"arrivals": "poisson", "rate": 4.0, "duration": 60.0, "warmup": 1.0},
        {"arrivals": "poisson", "rate": 4.001, "duration": 60.0},
        {"arrivals": "gamma", "rate": 4.0, "burstiness": 0.9, "duration": 60.0},
        {"arrivals": "closed", "concurrency": 4, "duration": 60.0},
        {"arrivals": "closed", "concurrency": 5, "duration": 60.0},
        {"arrivals": "closed", "concurrency": 4, "duration": 60.0, "think_time": 1.0},
        {"arrivals": "closed", "concurrency": 4, "requests": 60},
    )

    def test_equal_plans_have_equal_hashes_and_others_have_others(self):
        hashes = [plan(**load).schedule_hash for load in self.LOADS]
        assert hashes == [plan(**load).schedule_hash for load in self.LOADS]
        assert len(set(hashes)) == len(self.LOADS)
        assert all(len(text) == 64 for text in hashes)

    def test_the_seed_changes_what_is_random_and_nothing_else(self):
        for load, differs in zip(
            self.LOADS, (True, True, True, True, False, False, True, False), strict=True
        ):
            other = make_plan(scenario(seed=8, **load)).schedule_hash
            assert (other != plan(**load).schedule_hash) is differs


@given(
    arrivals=st.sampled_from(["constant", "poisson", "gamma"]),
    rate=st.floats(0.5, 200),
    warmup=st.floats(0, 5),
    num=st.integers(1, 300),
    seed=st.integers(0, 10**12),
)
@settings(deadline=None, max_examples=60)
def test_planned_requests_split_into_warm_up_and_exactly_the_number_asked(arrivals, rate, warmup, num, seed):
    made = plan(arrivals=arrivals, rate=rate, warmup=warmup, requests=num, seed=seed)
    phases = [made.phase_of(index, instant) for index, instant in enumerate(made.due_ns.tolist())]
    assert phases.count("measure") == num
    assert phases == sorted(phases, reverse=True)  # warm-up first
    assert phases.count("warmup") == made.num_warmup


@pytest.mark.parametrize(
    ("level", "load"),
    [
        (True, {"arrivals": "poisson", "rate": "4/s", "duration": "10s"}),
        (
            True,
            {"arrivals": "poisson", "stages": [{"rate": "4/s", "for": "5s"}, {"rate": "4/s", "for": "5s"}]},
        ),
        (
            False,
            {"arrivals": "poisson", "stages": [{"rate": "4/s", "for": "5s"}, {"rate": "8/s", "for": "5s"}]},
        ),
        (False, {"arrivals": "constant", "rate": "1/s", "stages": [{"ramp_to": "8/s", "for": "5s"}]}),
        (True, {"arrivals": "closed", "concurrency": 4, "duration": "10s"}),
        (False, {"arrivals": "closed", "concurrency": 1, "stages": [{"ramp_to": 4, "for": "5s"}]}),
    ],
)
def test_only_a_load_of_one_level_is_meant_to_be_steady(level, load):
    assert plan(**load).is_level is level


def test_a_trace_follows_its_own_course():
    assert not plan(trace(0, 1, 2), arrivals="trace", duration="10s").is_level
