"""A plan in shares: who sends changes nothing of what is sent when; and how many there should be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.load.plan import make_plan, part_of
from llmbench.load.workers import Demand, choose_workers, demand_of
from llmbench.scenario.bundled import bundled_scenarios
from llmbench.scenario.load import load_scenario
from llmbench.scenario.model import Scenario
from llmbench.workload.data import WorkloadData, load_data
from llmbench.workload.prompts import make_workload
from llmbench.workload.traces.trace import Trace

S = 1_000_000_000
OPEN = {
    "constant": {"arrivals": "constant", "rate": "20/s", "duration": "5s", "warmup": "1s"},
    "poisson": {"arrivals": "poisson", "rate": "20/s", "requests": 100, "warmup": "1s"},
    "gamma": {"arrivals": "gamma", "rate": "20/s", "burstiness": 0.3, "duration": "5s"},
    "stages": {
        "arrivals": "poisson",
        "stages": [{"rate": "5/s", "for": "2s"}, {"ramp_to": "40/s", "for": "3s"}],
    },
    "burst": {"arrivals": "burst", "burst": {"size": 13, "every": "1s"}, "duration": "4s"},
    "trace": {"arrivals": "trace"},
}
CLOSED = {
    "steady": {"arrivals": "closed", "concurrency": 7, "requests": 23, "think_time": "1s"},
    "stages": {
        "arrivals": "closed",
        "stages": [{"concurrency": 2, "for": "2s"}, {"ramp_to": 9, "for": "3s"}],
    },
}


def made(load, workload=None):
    """(plan, request source) of a load."""
    kind = {"kind": "azure", "path": "t.csv"} if load["arrivals"] == "trace" else None
    workload = (
        workload
        or kind
        or {"kind": "synthetic", "input_tokens": {"uniform": {"min": 10, "max": 60}}, "output_tokens": 5}
    )
    scenario = Scenario.model_validate(
        {"target": {"url": "http://h"}, "load": load, "workload": workload, "seed": 7}
    )
    trace = None
    if kind is not None:
        chance = np.random.default_rng(3)
        offsets = np.cumsum(chance.integers(0, S // 10, 60))
        lengths = chance.integers(5, 90, 60)
        trace = Trace(
            path="t.csv", offset_ns=offsets, input_tokens=lengths, output_tokens=lengths, num_file_rows=60
        )
    data = WorkloadData(rows=(trace,))
    return make_plan(scenario, trace), make_workload(scenario, data, salt="s")


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("name", OPEN)
def test_every_request_of_an_open_loop_is_due_when_it_was_and_asks_what_it_asked(name, workers):
    whole, source = made(OPEN[name])
    alone = {index: (due, source.spec(index)) for index, due in enumerate(whole.due_ns.tolist())}
    shared = {}
    for worker in range(workers):
        share = whole.share(worker, workers)
        _, own_source = made(OPEN[name])  # as in a process of its own
        for nth, due in enumerate(share.due_ns.tolist()):
            index = share.index_of(nth)
            assert index not in shared
            shared[index] = (due, own_source.spec(index))
            assert share.phase_of(index, due) == whole.phase_of(index, due)
    assert shared == alone


@pytest.mark.parametrize("name", OPEN)
def test_what_is_said_of_a_share_is_what_holds_for_the_whole(name):
    whole, _ = made(OPEN[name])
    shares = [whole.share(worker, 3) for worker in range(3)]
    assert {share.window_ns for share in shares} == {whole.window_ns}
    assert {share.schedule_hash for share in shares} == {whole.schedule_hash}
    assert sum(share.num_requests for share in shares) == whole.num_requests
    assert sum(share.num_warmup for share in shares) == whole.num_warmup


@given(st.sampled_from(sorted(CLOSED)), st.integers(1, 12), st.integers(0, 5 * S))
def test_at_any_time_the_shares_have_the_users_of_the_whole(name, workers, at_ns):
    whole, _ = made(CLOSED[name])
    shares = [whole.share(worker, workers) for worker in range(workers)]
    assert sum(share.concurrency_at(at_ns) for share in shares) == whole.concurrency_at(at_ns)
    users = [share.concurrency_at(at_ns) for share in shares]
    assert max(users) - min(users) <= 1
    if whole.num_requests is not None:
        assert sum(share.num_requests for share in shares) == whole.num_requests


@given(st.integers(0, 1000), st.integers(1, 64))
def test_parts_are_even_and_make_up_the_whole(count, workers):
    parts = [part_of(count, worker, workers) for worker in range(workers)]
    assert sum(parts) == count
    assert sorted(parts, reverse=True) == parts
    assert parts[0] - parts[-1] <= 1


def test_think_times_go_with_the_request_and_not_with_who_sends_it():
    load = {**CLOSED["steady"], "think_time": {"exponential": {"mean": "1s"}}}
    whole, share = made(load)[0], made(load)[0].share(2, 3)
    assert [share.think_time_ns(share.index_of(nth)) for nth in range(9)] == [
        whole.think_time_ns(index) for index in range(2, 29, 3)
    ]


@pytest.mark.parametrize(
    ("load", "most"),
    [
        ({"arrivals": "closed", "concurrency": 7, "duration": "5s"}, 7),
        ({"arrivals": "closed", "concurrency": 7, "requests": 3}, 3),
        ({"arrivals": "closed", "concurrency": 7, "requests": 100}, 7),
        ({"arrivals": "burst", "requests": 5}, 5),
        (CLOSED["stages"], 9),
    ],
)
def test_no_more_workers_than_find_something_to_do(load, most):
    plan, _ = made(load)
    assert plan.most_workers == most
    last = plan.share(most - 1, most)
    assert last.num_requests != 0


def demand(requests_per_s=1.0, events_per_s=100.0, most=1000):
    return Demand(requests_per_s=requests_per_s, events_per_s=events_per_s, most_workers=most)


@pytest.mark.parametrize(
    ("asked", "needs", "cores", "is_local", "count", "at_most"),
    [
        ("auto", demand(), 64, False, 1, 63),
        ("auto", demand(events_per_s=24_000), 64, False, 1, 63),
        ("auto", demand(events_per_s=26_000), 64, False, 2, 63),
        ("auto", demand(events_per_s=400_000), 64, False, 16, 63),
        ("auto", demand(requests_per_s=12_000), 64, False, 3, 63),
        ("auto", demand(events_per_s=400_000), 8, False, 7, 7),
        ("auto", demand(events_per_s=400_000), 8, True, 3, 3),
        ("auto", demand(events_per_s=400_000), 4, True, 2, 2),
        ("auto", demand(events_per_s=400_000), 2, False, 2, 2),
        ("auto", demand(events_per_s=400_000), 2, True, 1, 1),
        ("auto", demand(events_per_s=400_000), 1, True, 1, 1),
        ("auto", demand(events_per_s=400_000, most=2), 64, False, 2, 2),
        (1, demand(events_per_s=400_000), 64, False, 1, 63),
        (4, demand(), 2, True, 4, 1),
        (4, demand(most=3), 64, False, 3, 3),
    ],
)
def test_as_many_workers_as_the_load_needs_and_the_machine_has_room_for(
    asked, needs, cores, is_local, count, at_most
):
    chosen = choose_workers(asked, needs, cores=cores, is_local=is_local)
    assert (chosen.count, chosen.at_most) == (count, at_most)
    assert chosen.reason


def test_why_is_said():
    def reason(asked, needs, cores=8):
        return choose_workers(asked, needs, cores=cores, is_local=False).reason

    assert reason("auto", demand()) == "one process carries this load"
    assert reason("auto", demand(events_per_s=60_000)) == "about 60,000 events/s expected"
    assert reason("auto", demand(requests_per_s=9_000)) == "about 9,000 requests/s expected"
    assert reason("auto", demand(events_per_s=60_000), 2).endswith(", and there is room for 2")
    assert reason(3, demand()) == "as asked"
    assert reason(8, demand(most=2)) == "8 asked, 2 find something to do"


@pytest.mark.parametrize(
    ("load", "tokens", "is_streamed", "requests_per_s", "events_per_s"),
    [
        ({"arrivals": "constant", "rate": "100/s", "duration": "5s"}, [50, 150], True, 100, 10_000),
        ({"arrivals": "constant", "rate": "100/s", "duration": "5s"}, [50, 150], False, 100, 100),
        ({"arrivals": "constant", "rate": "10/s", "duration": "5s"}, [None], True, 10, 2560),
        # so many streams never bring more than a hundred events a second each
        ({"arrivals": "burst", "requests": 200}, [1000], True, 200, 20_000),
        ({"arrivals": "burst", "requests": 5000}, [1000], True, 5000, 51_200),
        ({"arrivals": "closed", "concurrency": 300, "duration": "5s"}, [200], True, 150, 30_000),
        ({"arrivals": "closed", "concurrency": 300, "duration": "5s", "think_time": "8s"},
         [200], True, 30, 6_000),
        ({"arrivals": "constant", "stages": [{"rate": "1/s", "for": "5s"}, {"rate": "50/s", "for": "5s"}]},
         [10], True, 50, 500),
    ],
)  # fmt: skip
def test_what_a_load_asks_of_the_client_at_its_peak(load, tokens, is_streamed, requests_per_s, events_per_s):
    found = demand_of(made(load)[0], tokens, max_in_flight=512, is_streamed=is_streamed)
    assert found.requests_per_s == pytest.approx(requests_per_s)
    assert found.events_per_s == pytest.approx(events_per_s)


def test_no_worker_is_left_without_a_place_for_a_request_in_flight():
    needs = demand_of(made(OPEN["constant"])[0], [8], max_in_flight=3, is_streamed=True)
    assert choose_workers(16, needs, cores=64, is_local=False).count == 3


@pytest.mark.parametrize("name", sorted(bundled_scenarios()))
def test_every_bundled_scenario_runs_in_one_process(name):
    scenario = load_scenario(bundled_scenarios()[name], env={})
    data = load_data(scenario)
    source = make_workload(scenario, data, salt="s")
    needs = demand_of(
        make_plan(scenario, data.trace),
        [source.spec(index).output_tokens_asked for index in range(32)],
        max_in_flight=scenario.load.max_in_flight,
        is_streamed=True,
    )
    assert choose_workers("auto", needs, cores=64, is_local=False).count == 1
