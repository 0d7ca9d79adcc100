from __future__ import annotations

import pytest

from llmbench.columns import from_records
from llmbench.load.plan import make_plan
from llmbench.report.summary import summarise
from llmbench.report.text import check_interval, needed_text
from llmbench.scenario.bundled import bundled_scenarios
from llmbench.scenario.load import load_scenario
from llmbench.scenario.objectives import Slo
from llmbench.slo import exit_code, percent_of_stat
from llmbench.stats import samples_needed, share_interval
from llmbench.workload.data import load_data
from tests.llmbench.sample_runs import MS, S, closed_loop, failed_record, limit, ok_record


def gate_of(records, *slo, **more):
    return summarise(from_records(records), closed_loop(slo=slo, **more))["gate"]


def answers(num, ttft_ms=100):
    return [
        ok_record(i, sent=i * S // 10, events=[i * S // 10 + (ttft_ms + i) * MS, i * S // 10 + S])
        for i in range(num)
    ]


@pytest.mark.parametrize(
    ("slo", "status"),
    [
        (limit("ttft", "p95", 0.5), "PASS"),
        (limit("ttft", "p95", 0.1), "FAIL"),
        (limit("ttft", "max", 0.139), "PASS"),  # at the limit is within it
        (limit("ttft", "mean", 0.119), "FAIL"),
        (limit("ttft", "p99", 0.5), "INCONCLUSIVE"),  # 40 of the 100 that a p99 needs
        (limit("errors", "share", 0.0), "PASS"),
        (limit("goodput", "share", 0.95, higher_is_better=True), "INCONCLUSIVE"),  # no per-request limit
        (limit("requests_per_s", "rate", 5.0, higher_is_better=True), "PASS"),
        (limit("output_tokens_per_s", "rate", 500.0, higher_is_better=True), "FAIL"),
        (limit("send_lag", "p50", 0.001), "INCONCLUSIVE"),  # a closed loop has none
    ],
)
def test_a_limit_is_judged_on_the_point_estimate(slo, status):
    gate = gate_of(answers(40), slo)
    assert gate["status"] == gate["checks"][0]["status"] == status


def some_failing(num, num_failed):
    return [*answers(num - num_failed), *(failed_record(i, sent_ns=0) for i in range(num - num_failed, num))]


@pytest.mark.parametrize(
    ("num", "num_failed", "allowed", "status", "needed"),
    [
        (1, 0, 0.01, "INCONCLUSIVE", 99),  # one answer says little of one in a hundred
        (99, 0, 0.01, "INCONCLUSIVE", 1),
        (100, 0, 0.01, "PASS", None),
        (106, 1, 0.01, "PASS", None),
        (100, 1, 0.01, "PASS", None),  # at the limit is within it
        (100, 2, 0.01, "FAIL", None),
        (50, 1, 0.01, "INCONCLUSIVE", 50),  # 49 more successes, and it would hold
        (3, 1, 0.1, "INCONCLUSIVE", 7),
        (8, 6, 0.1, "FAIL", None),  # too few for a tenth, but clear
        (1, 1, 0.01, "FAIL", None),
        (1, 0, 0.0, "PASS", None),  # none may fail, and none did
        (400, 1, 0.0, "FAIL", None),
    ],
)
def test_a_share_is_decided_by_as_many_requests_as_its_percentile_needs(
    num, num_failed, allowed, status, needed
):
    (check,) = gate_of(some_failing(num, num_failed), limit("errors", "share", allowed))["checks"]
    assert (check["status"], check["needed_requests"]) == (status, needed)
    assert check["not_measurable"] is None


@pytest.mark.parametrize(("num", "status", "needed"), [(19, "INCONCLUSIVE", 1), (20, "PASS", None)])
def test_goodput_needs_requests_as_errors_do(num, status, needed):
    slo = (limit("ttft", "p50", 0.5), limit("goodput", "share", 0.95, higher_is_better=True))
    check = gate_of(answers(num), *slo)["checks"][1]
    assert (check["status"], check["needed_requests"]) == (status, needed)


@pytest.mark.parametrize("name", sorted(bundled_scenarios()))
def test_every_bundled_scenario_sends_enough_to_decide_its_limits(name, monkeypatch):
    monkeypatch.setenv("LLMBENCH_URL", "http://127.0.0.1:1")
    path = bundled_scenarios()[name]
    scenario = load_scenario(path)
    if scenario.load.arrivals == "closed" or not scenario.slo.limits:
        return  # how many it will be is not known beforehand
    attempts = make_plan(scenario, load_data(scenario, path.parent).trace).num_requests
    for each in scenario.slo.limits:
        if each.metric in ("errors", "goodput"):
            records = some_failing(attempts, 0)
            slo = (limit("ttft", "p50", 1e3), each)
            assert gate_of(records, *slo)["checks"][1]["needed_requests"] is None
        elif each.stat.startswith("p"):
            assert attempts >= samples_needed(percent_of_stat(each.stat))


def test_no_failure_is_shown_as_an_interval_from_nothing():
    for num in range(1, 400):
        assert share_interval(0, num)[0] == 0
        assert share_interval(num, num)[1] == 1
    (check,) = gate_of(answers(70), limit("errors", "share", 0.01))["checks"]
    assert check_interval(check) == "0 to 5.2"


def whole_answers(num):
    """Answers that came as one body, as with `stream: false`."""
    return [
        ok_record(i, sent=i * S, events=[i * S + S], tokens=[8], first_event_ns=None, first_answer_ns=None)
        for i in range(num)
    ]


def single_tokens(num):
    return [ok_record(i, sent=i * S, events=[i * S + S]) for i in range(num)]


@pytest.mark.parametrize(
    ("records", "slo", "why"),
    [
        (whole_answers(5), limit("ttft", "p95", 1), "the answers were not streamed"),
        (whole_answers(5), limit("tpot", "p95", 1), "the answers were not streamed"),
        (whole_answers(5), limit("itl", "mean", 1), "the answers were not streamed"),
        (single_tokens(5), limit("tpot", "p95", 1), "no answer had two tokens"),
        (single_tokens(5), limit("itl", "p95", 1), "no answer had two tokens"),
        ([ok_record(i) for i in range(5)], limit("ttft", "p95", 1), "no answer had any output"),
        (answers(5), limit("send_lag", "p95", 1), "in a closed loop nothing is due"),
        (answers(5), limit("ttft_due", "p95", 1), "in a closed loop nothing is due"),
        (
            [ok_record(i, events=[S, 2 * S], first_answer_ns=None) for i in range(5)],
            limit("time_to_first_answer", "p95", 1),
            "no answer had output beside its reasoning",
        ),
        (
            [ok_record(i, events=[S, 2 * S], event_tokens=None, output_tokens=9) for i in range(5)],
            limit("tpot", "p95", 1),
            "tokens cannot be told apart in these answers",
        ),
        (
            answers(5),
            limit("goodput", "share", 0.9, higher_is_better=True),
            "there is no limit that a single request can meet",
        ),
        ([failed_record(i) for i in range(5)], limit("ttft", "p95", 1), "no request succeeded"),
        ([ok_record(0, phase="warmup")], limit("errors", "share", 0.01), "no request was measured"),
        (
            answers(1),
            limit("requests_per_s", "rate", 1, higher_is_better=True),
            "too few requests to tell a rate",
        ),
    ],
)
def test_what_no_more_requests_would_tell_has_its_reason(records, slo, why):
    (check,) = gate_of(records, slo)["checks"]
    assert (check["status"], check["needed_requests"]) == ("INCONCLUSIVE", None)
    assert needed_text(check) == f"not measurable: {why}"


def test_what_only_some_answers_have_needs_as_many_more():
    """Ten of a hundred answers have two tokens: for ten more times per token it takes a hundred more."""
    records = [ok_record(i, events=[S, 2 * S] if i % 10 == 0 else [S]) for i in range(100)]
    (check,) = gate_of(records, limit("tpot", "p95", 0.5))["checks"]
    assert (check["needed_requests"], needed_text(check)) == (100, "about 100 more")


def test_a_check_says_what_was_seen_and_how_sure_that_is():
    (check,) = gate_of(answers(100), limit("ttft", "p95", 0.5))["checks"]
    assert check["metric"], check["stat"] == ("ttft", "p95")
    assert check["low"] < check["observed"] < check["high"]
    assert check["needed_requests"] is None


def test_an_undecided_percentile_says_how_many_requests_it_lacks():
    (check,) = gate_of(answers(40), limit("ttft", "p99", 0.5))["checks"]
    assert check["observed"] is None
    assert check["needed_requests"] == 60


def test_what_a_pooled_metric_lacks_is_counted_in_requests():
    records = [ok_record(i, events=range(0, 5 * MS, MS)) for i in range(10)]  # four gaps a request
    (check,) = gate_of(records, limit("itl", "p99", 0.5))["checks"]
    assert check["needed_requests"] == 15


@pytest.mark.parametrize(
    ("limits", "status"),
    [
        ((), "NONE"),
        ((0.5, 0.5), "PASS"),
        ((0.5, 0.01), "FAIL"),
    ],
)
def test_the_gate_is_the_worst_of_its_checks(limits, status):
    slo = [limit("ttft", stat, value) for stat, value in zip(("p50", "p90"), limits, strict=False)]
    assert gate_of(answers(40), *slo)["status"] == status


def test_a_failure_outranks_an_undecided_check():
    slo = (limit("ttft", "p50", 0.01), limit("ttft", "p99", 0.5))
    assert gate_of(answers(40), *slo)["status"] == "FAIL"


def test_the_share_of_errors_is_of_all_requests_that_were_tried():
    records = answers(10) + [failed_record(10 + i) for i in range(10)]
    (check,) = gate_of(records, limit("errors", "share", 0.01))["checks"]
    assert (check["observed"], check["status"]) == (0.5, "FAIL")


def test_every_limit_that_a_scenario_can_state_finds_its_statistic():
    slo = Slo.model_validate(
        {
            "ttft": {"p95": "500ms", "p99.5": "1s", "max": "2s"},
            "tpot": {"mean": "50ms"},
            "itl": {"p999": "1s"},
            "chunk_gap": {"p50": "1s"},
            "e2e": {"p75": "10s"},
            "time_to_first_answer": {"p90": "1s"},
            "normalized_latency": {"p50": "1s"},
            "errors": "1%",
            "goodput": "95%",
            "requests_per_s": "1/s",
            "output_tokens_per_s": "2/s",
        }
    )
    gate = gate_of(answers(1000), *slo.limits)
    assert len(gate["checks"]) == 13
    assert {check["status"] for check in gate["checks"]} == {"PASS"} | {
        check["status"] for check in gate["checks"] if check["observed"] is not None
    }
    assert all(check["observed"] is not None for check in gate["checks"])


@pytest.mark.parametrize(
    ("stat", "percent"),
    [
        ("p5", 5),
        ("p50", 50),
        ("p99", 99),
        ("p999", 99.9),
        ("p9999", 99.99),
        ("p99.5", 99.5),
        ("mean", None),
        ("max", None),
        ("share", None),
        ("p", None),
        ("pxx", None),
    ],
)
def test_a_statistics_name_is_read_as_k6_and_people_write_it(stat, percent):
    assert percent_of_stat(stat) == percent


@pytest.mark.parametrize(
    ("verdict", "gate", "more", "code"),
    [
        ("VALID", "NONE", {}, 0),
        ("VALID", "PASS", {}, 0),
        ("SUSPECT", "PASS", {}, 0),
        ("VALID", "FAIL", {}, 99),
        ("VALID", "INCONCLUSIVE", {}, 98),
        ("VALID", "INCONCLUSIVE", {"inconclusive": "pass"}, 0),
        ("VALID", "INCONCLUSIVE", {"inconclusive": "fail"}, 99),
        ("INVALID", "PASS", {}, 97),
        ("INVALID", "FAIL", {}, 97),
        ("INVALID", "FAIL", {"num_ok": 0}, 3),
        ("INVALID", "FAIL", {"num_ok": 0, "interrupted": True}, 130),
        ("SUSPECT", "FAIL", {"interrupted": True}, 130),
    ],
)
def test_exit_codes_are_the_contracts(verdict, gate, more, code):
    assert exit_code(verdict, gate, **({"num_ok": 5} | more)) == code
