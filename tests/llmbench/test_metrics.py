from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbench.columns import from_records
from llmbench.context import StageWindow
from llmbench.errors import UsageError
from llmbench.load.plan import make_plan
from llmbench.metrics import derive, measured_window, request_limits
from llmbench.records import Outcome
from llmbench.report.summary import summarise
from llmbench.report.text import rates_line
from llmbench.scenario.model import Scenario
from tests.llmbench.sample_runs import (
    MS,
    S,
    closed_loop,
    decidable,
    failed_record,
    limit,
    ok_record,
    open_loop,
    steady_run,
)


def summary_of(records, context=None):
    return summarise(from_records(records), context or closed_loop())


def metric(summary, name, stat="p50"):
    return summary["metrics"][name][stat]


# ---- one request, its figures known by hand


def test_the_figures_of_one_request_are_those_of_the_definitions():
    record = ok_record(
        0,
        sent=10 * MS,
        due_ns=7 * MS,
        events=[110 * MS, 150 * MS, 210 * MS],
        tokens=[1, 2, 3],
        first_answer_ns=150 * MS,
        input_tokens=30,
    )
    metrics = summary_of([record], open_loop())["metrics"]
    expected = {
        "send_lag": 0.003,
        "ttft": 0.100,
        "ttft_due": 0.103,
        "time_to_first_answer": 0.140,
        "tpot": 0.100 / 5,
        "e2e": 0.200,
        "e2e_due": 0.203,
        "normalized_latency": 0.200 / 6,
        "input_tokens": 30,
        "output_tokens": 6,
    }
    for name, value in expected.items():
        assert metrics[name]["p50"] == pytest.approx(value, rel=1e-12), name
        assert metrics[name]["count"] == 1, name
    # Gaps of 40 and 60 ms for 2 and 3 tokens: five inter-token latencies of 20 ms.
    assert metrics["itl"]["count"] == 5
    assert metrics["itl"]["min"] == metrics["itl"]["max"] == pytest.approx(0.020)
    assert (metrics["chunk_gap"]["min"], metrics["chunk_gap"]["max"]) == (0.040, 0.060)


def test_lateness_has_no_meaning_in_a_closed_loop():
    metrics = summary_of([ok_record(0, due_ns=0, sent=5, events=[10, 20])], closed_loop())["metrics"]
    assert [metrics[name]["count"] for name in ("send_lag", "ttft_due", "e2e_due")] == [0, 0, 0]


STREAM = st.lists(st.tuples(st.integers(0, 5 * S), st.integers(1, 9)), min_size=1, max_size=30)


@given(st.integers(0, 10**13), st.integers(1, 10 * S), STREAM)
def test_ttft_and_tpot_add_up_to_e2e_to_the_nanosecond(sent, ttft, stream):
    events = (sent + ttft + np.cumsum([0, *(gap for gap, _ in stream[1:])])).tolist()
    tokens = [count for _, count in stream]
    requests = derive(from_records([ok_record(0, sent=sent, events=events, tokens=tokens)]), closed_loop())
    measures, num_tokens = requests.measures, sum(tokens)
    e2e = measures["ttft"].values[0]
    if num_tokens >= 2:
        assert measures["tpot"].defined[0]
        e2e += measures["tpot"].values[0] * (num_tokens - 1)
    else:
        assert not measures["tpot"].defined[0]
    assert round(float(e2e)) == measures["e2e"].values[0] == events[-1] - sent


@settings(max_examples=40)
@given(st.lists(STREAM, min_size=1, max_size=8))
def test_inter_token_latencies_are_gaps_repeated_once_a_token(streams):
    records, repeated = [], []
    for index, stream in enumerate(streams):
        events, tokens = np.cumsum([gap for gap, _ in stream]), np.array([count for _, count in stream])
        records.append(ok_record(index, events=events.tolist(), tokens=tokens.tolist()))
        repeated.append(np.repeat(np.diff(events) / tokens[1:], tokens[1:]))
    expected = np.concatenate(repeated)
    found = summary_of(records)["metrics"]["itl"]
    assert found["count"] == len(expected)
    if len(expected):
        assert found["p50"] == np.percentile(expected, 50) / 1e9
        assert found["mean"] == pytest.approx(expected.mean() / 1e9)
        assert found["max"] == expected.max() / 1e9


@settings(max_examples=20)
@given(st.randoms(use_true_random=False))
def test_a_summary_does_not_depend_on_the_order_in_which_requests_ended(random):
    records, context = steady_run(60)
    shuffled = records.copy()
    random.shuffle(shuffled)
    assert summary_of(shuffled, context) == summary_of(records, context)


# ---- fault rows: one kind of stream each


def test_one_token_has_no_tpot_and_stays_out_of_its_statistics():
    summary = summary_of([ok_record(0, events=[300 * MS]), ok_record(1, events=[100 * MS, 150 * MS])])
    assert metric(summary, "tpot", "count") == 1
    assert metric(summary, "tpot") == 0.050
    assert metric(summary, "ttft", "count") == metric(summary, "e2e", "count") == 2


def test_zero_tokens_is_a_request_without_ttft_and_tpot():
    summary = summary_of([ok_record(0, events=[], end_ns=40 * MS, finish_reason="stop")])
    assert summary["counts"]["ok"] == 1
    assert metric(summary, "ttft", "count") == metric(summary, "tpot", "count") == 0
    assert metric(summary, "ttft") is None
    assert metric(summary, "e2e") == 0.040
    assert metric(summary, "normalized_latency", "count") == 0


def test_an_answer_that_was_not_streamed_has_no_ttft():
    record = ok_record(0, events=[], event_tokens=None, end_ns=800 * MS, output_tokens=40)
    summary = summary_of([record])
    assert metric(summary, "ttft", "count") == metric(summary, "tpot", "count") == 0
    assert metric(summary, "e2e") == 0.8
    assert metric(summary, "normalized_latency") == 0.02
    assert metric(summary, "output_tokens") == 40
    assert summary["tokens"]["output"] == 40


def test_the_body_of_an_answer_that_was_not_streamed_is_no_first_token():
    """A client may stamp the body as one event; without `first_event_ns` it is none of a stream."""
    record = ok_record(0, events=[700 * MS], tokens=[40], first_event_ns=None, first_answer_ns=None)
    summary = summary_of([record])
    assert metric(summary, "ttft", "count") == metric(summary, "tpot", "count") == 0
    assert metric(summary, "e2e") == 0.7


def test_several_choices_have_no_time_per_token():
    events = [100 * MS, 101 * MS, 150 * MS, 151 * MS]
    record = ok_record(0, events=events, output_tokens=4, reads=4)
    record.event_tokens = None
    summary = summary_of([record])
    assert [metric(summary, name, "count") for name in ("tpot", "itl", "normalized_latency")] == [0, 0, 0]
    assert metric(summary, "ttft") == 0.100
    assert metric(summary, "output_tokens") == 4
    assert metric(summary, "chunk_gap", "count") == 3


def test_many_tokens_in_a_chunk_do_not_stretch_the_time_per_token():
    events = [100 * MS, 200 * MS, 300 * MS, 400 * MS]
    summary = summary_of([ok_record(0, events=events, tokens=[3, 3, 3, 3])])
    assert metric(summary, "tpot") == pytest.approx(0.3 / 11)
    assert metric(summary, "itl") == pytest.approx(0.1 / 3)
    assert metric(summary, "chunk_gap") == 0.1
    assert summary["tokens"]["per_event"] == 3


def test_usage_decides_where_events_are_more_than_tokens():
    record = ok_record(0, events=[100 * MS, 110 * MS, 120 * MS], output_tokens=2)
    summary = summary_of([record])
    assert metric(summary, "output_tokens") == 2
    assert metric(summary, "tpot") == 0.020
    assert summary["tokens"]["disagreement"] == 1
    assert "tokens_disagree" in codes(summary)


def test_an_event_without_tokens_lengthens_the_next_gap_and_is_no_token():
    events = [100 * MS, 150 * MS, 200 * MS]
    summary = summary_of([ok_record(0, events=events, tokens=[1, 0, 1])])
    assert metric(summary, "itl", "count") == 1
    assert metric(summary, "itl") == 0.100


def test_reasoning_counts_as_output_and_the_answer_has_its_own_time():
    events = [300 * MS, 450 * MS, 600 * MS]
    summary = summary_of([ok_record(0, events=events, first_answer_ns=600 * MS, reasoning_tokens=2)])
    assert metric(summary, "ttft") == 0.3
    assert metric(summary, "time_to_first_answer") == 0.6
    assert summary["tokens"]["reasoning"] == 2


def test_a_stream_that_is_all_reasoning_has_no_time_to_first_answer():
    summary = summary_of([ok_record(0, events=[1, 2], first_answer_ns=None)])
    assert metric(summary, "time_to_first_answer", "count") == 0
    assert metric(summary, "ttft", "count") == 1


def test_a_late_usage_chunk_does_not_move_the_last_token():
    summary = summary_of([ok_record(0, events=[300 * MS, 500 * MS], end_ns=950 * MS)])
    assert metric(summary, "e2e") == 0.5


def test_failures_stay_out_of_latencies_and_count_in_shares():
    good = [ok_record(index, events=[100 * MS, 120 * MS]) for index in range(10)]
    bad = [
        failed_record(index, event_ns=[MS], event_tokens=[1], first_event_ns=MS) for index in range(10, 20)
    ]
    summary = summary_of(good + bad, closed_loop(slo=(limit("errors", "share", 0.01),)))
    assert metric(summary, "ttft", "count") == 10
    assert metric(summary, "ttft", "max") == 0.1
    assert summary["errors"]["share"] == 0.5
    assert summary["gate"]["status"] == "FAIL"
    assert summary["attempts"]["ttft"]["count"] == 20
    assert summary["attempts"]["ttft"]["failed"] == 10
    assert summary["attempts"]["ttft"]["p90"] is None  # infinite
    assert summary["tokens"]["output"] == 20


def test_a_percentile_short_of_the_failures_is_finite_in_the_attempts_view():
    records = [ok_record(index, events=[(100 + index) * MS]) for index in range(95)]
    records += [failed_record(95 + index) for index in range(5)]
    attempts = summary_of(records)["attempts"]["ttft"]
    assert attempts["p50"] == pytest.approx(0.1495)
    assert attempts["p90"] is not None
    assert attempts["p99"] is None


@pytest.mark.parametrize("records", [[], [failed_record(index) for index in range(20)]])
def test_a_run_without_successes_has_a_report_of_nulls(records):
    summary = summary_of(records, open_loop(window_ns=(0, S), slo=(limit("ttft", "p95", 0.5),)))
    assert summary["counts"]["planned"] == len(records)
    for block in summary["metrics"].values():
        assert block["count"] == 0
        assert block["p50"] is block["mean"] is block["std"] is block["max"] is None
    assert summary["verdict"]["status"] == "INVALID"
    assert summary["throughput"]["output_tokens_per_s"] == 0
    json.loads(json.dumps(summary, allow_nan=False))


@pytest.mark.parametrize("index_of_last", [0, 1, 30, 246])
def test_every_summary_is_strict_json(index_of_last):
    records, context = steady_run()
    summary = summary_of(records[: index_of_last + 1], replace(context, planned=index_of_last + 1))
    assert json.loads(json.dumps(summary, allow_nan=False)) == orjson.loads(orjson.dumps(summary))


def test_times_are_of_a_monotonic_clock_and_never_negative():
    summary = summary_of(*steady_run())
    for name in ("ttft", "tpot", "itl", "e2e", "send_lag"):
        assert metric(summary, name, "min") >= 0


# ---- who is measured


def test_warmup_is_counted_and_not_measured():
    records = [
        ok_record(0, events=[900 * MS, 950 * MS], phase="warmup"),
        ok_record(1, events=[100 * MS, 120 * MS]),
    ]
    summary = summary_of(records)
    assert summary["counts"]["planned"] == summary["counts"]["ok"] == 2
    assert summary["counts"]["warmup"] == summary["counts"]["measured"] == 1
    assert summary["counts"]["measured_outcomes"] == {"ok": 1}
    assert metric(summary, "ttft", "max") == 0.1


@given(st.lists(st.sampled_from(Outcome), max_size=30))
def test_planned_is_the_sum_of_outcomes(outcomes):
    records = [
        ok_record(index, events=[1, 2]) if outcome is Outcome.OK else failed_record(index, outcome)
        for index, outcome in enumerate(outcomes)
    ]
    counts = summary_of(records, closed_loop(planned=len(outcomes)))["counts"]
    assert counts["planned"] == len(outcomes) == sum(counts[name] for name in Outcome)
    assert counts["measured"] == sum(counts["measured_outcomes"].values())


def test_a_planned_request_without_a_record_is_our_own_bug():
    with pytest.raises(AssertionError, match="3 requests were planned but 1 are on record"):
        summary_of([ok_record(0)], closed_loop(planned=3))


def test_requests_cancelled_by_an_interrupt_are_no_failures_of_the_target():
    records = [ok_record(0, events=[1, 2]), failed_record(1, Outcome.CANCELLED, sent_ns=None, end_ns=None)]
    whole, stopped = summary_of(records), summary_of(records, closed_loop(interrupted=True))
    assert (whole["errors"]["attempts"], whole["errors"]["share"]) == (2, 0.5)
    assert (stopped["errors"]["attempts"], stopped["errors"]["share"]) == (1, 0)
    assert stopped["counts"]["cancelled"] == 1


# ---- windows and rates


def test_rates_are_over_the_planned_window_with_ramp_and_drain_left_out():
    """One request a second for ten seconds; each takes 2.5 s and gives a token at 0.5, 1.5 and 2.5 s."""
    records = [
        ok_record(
            second,
            due_ns=second * S,
            sent=second * S,
            events=[second * S + S // 2 + token * S for token in range(3)],
            phase="warmup" if second < 4 else "measure",
            input_tokens=100,
        )
        for second in range(10)
    ]
    summary = summary_of(records, open_loop(window_ns=(4 * S, 10 * S), rate_asked_per_s=1.0))
    assert summary["window"] == {"start_s": 4, "end_s": 10, "duration_s": 6, "kind": "planned"}
    assert summary["throughput"] == {
        "requests_per_s": 1.0,
        "input_tokens_per_s": 100.0,
        "output_tokens_per_s": 3.0,
        "total_tokens_per_s": 103.0,
        "sent_requests_per_s": 1.0,
        "offered_requests_per_s": 1.0,
        "asked_requests_per_s": 1.0,
    }
    # Over everything, the ramp and the drain weigh it down.
    assert summary["throughput_whole"]["window"]["kind"] == "first send to last end"
    assert summary["throughput_whole"]["output_tokens_per_s"] < 3


def test_a_run_bounded_by_requests_is_measured_from_its_first_to_its_last_send():
    records = [ok_record(i, sent=i * S, events=[i * S + 100 * MS]) for i in range(11)]
    columns = from_records(records)
    window = measured_window(derive(columns, closed_loop()), closed_loop())
    assert (window.start_ns, window.end_ns, window.kind) == (0, 10 * S, "first to last send")
    rates = summary_of(records)["throughput"]
    # Eleven sends lie ten seconds apart: 1/s, not 1.1/s.
    assert rates["sent_requests_per_s"] == 1.0
    # The last answer ends after the last send.
    assert rates["requests_per_s"] == 1.0


def test_a_few_long_requests_are_measured_until_their_last_end():
    records = [
        ok_record(i, sent=i * S, events=[i * S + 2500 * MS], end_ns=i * S + 2500 * MS) for i in range(4)
    ]
    summary = summary_of(records)
    # One of four ends before the last send: too few to call that a rate.
    assert summary["window"]["kind"] == "first send to last end"
    assert summary["throughput"]["requests_per_s"] == pytest.approx(4 / 5.5)


def test_a_burst_is_measured_until_its_last_end():
    records = [ok_record(i, sent=i, events=[(i + 1) * S], end_ns=(i + 1) * S) for i in range(4)]
    summary = summary_of(records)
    assert summary["window"]["kind"] == "first send to last end"
    assert summary["throughput"]["requests_per_s"] == 1.0


def served(due, latency_ns, *, lag_ns=0, warmup_ns=0, tokens=1):
    """What an idle server makes of these arrivals: each is answered in the same time."""
    return [
        ok_record(
            index,
            due_ns=at,
            sent=at + lag_ns,
            events=[at + lag_ns + latency_ns],
            tokens=[tokens],
            end_ns=at + lag_ns + latency_ns,
            phase="warmup" if at < warmup_ns else "measure",
            input_tokens=10,
        )
        for index, at in enumerate(due)
    ]


def scenario_of(load, seed):
    return {
        "name": "test",
        "target": {"url": "http://127.0.0.1:1"},
        "load": load,
        "workload": {"kind": "synthetic", "input_tokens": 8, "output_tokens": 8},
        "seed": seed,
    }


def rates_of(records, context):
    summary = summary_of(records, context)
    rates = summary["throughput"]
    return summary["window"], *(rates[f"{kind}requests_per_s"] for kind in ("", "sent_", "offered_"))


def test_answers_of_the_warm_up_are_not_counted_for_three_requests():
    """It read 21.5/s of 6.13/s: 5 s of warm-up at 6/s, then three requests, each answered in 0.4 s."""
    due = [index * S // 6 for index in range(33)]
    window, achieved, sent, offered = rates_of(
        served(due, 400 * MS, warmup_ns=5 * S), open_loop(num_warmup=30)
    )
    assert window["kind"] == "first to last due"
    assert achieved == pytest.approx(offered) == pytest.approx(6.0)
    assert sent == offered


def test_a_trace_of_two_rows_is_one_gap_and_one_request():
    """It read 6.62/s of 3.31/s."""
    _, achieved, sent, offered = rates_of(served([0, 302 * MS], 5 * MS, lag_ns=MS), open_loop())
    assert achieved == sent == offered == pytest.approx(3.31, rel=1e-3)


@pytest.mark.parametrize("context", [open_loop(), closed_loop()])
def test_of_one_request_no_rate_is_known(context):
    summary = summary_of(served([S], 100 * MS), context)
    assert set(summary["throughput"].values()) == {None}
    assert summary["throughput_whole"]["requests_per_s"] is None
    assert rates_line(summary) == "-"


def test_bursts_are_counted_whole():
    """Two bursts of 32, ten seconds apart: 3.2/s, not 63 gaps in ten seconds."""
    due = [0] * 32 + [10 * S] * 32
    window, achieved, sent, offered = rates_of(served(due, S, lag_ns=2 * MS), open_loop())
    assert window["duration_s"] == 10
    assert achieved == sent == offered == 3.2


def test_a_send_that_is_late_over_the_windows_end_was_sent_all_the_same():
    due = [0, *[9990 * MS] * 32, 10 * S]
    _, _, sent, offered = rates_of(served(due, MS, lag_ns=20 * MS), open_loop())
    assert sent == pytest.approx(offered, rel=0.01)


def test_a_client_that_falls_behind_sends_at_its_own_rate():
    records = served([index * MS for index in range(1001)], MS)
    for record in records:
        record.sent_ns = 2 * record.due_ns
        record.event_ns = [record.sent_ns + MS]
    _, _, sent, offered = rates_of(records, open_loop(window_ns=(0, S)))
    assert (sent, offered) == (pytest.approx(500, rel=0.01), 1000)


def test_few_requests_that_take_longer_than_they_are_apart_are_measured_to_the_last_answer():
    window, achieved, sent, offered = rates_of(served([0, 160 * MS, 320 * MS], 2 * S), open_loop())
    assert window["kind"] == "first send to last end"
    assert achieved == sent == offered == pytest.approx(3 / 2.32)


def test_an_interrupted_run_is_held_against_what_was_due_by_then():
    """A ramp from nothing to 20/s in a minute, interrupted in its first half."""
    due = [round((index * 6) ** 0.5 * S) for index in range(600)]
    records = served(due, 100 * MS)
    for index in range(150, 600):
        records[index] = failed_record(index, Outcome.CANCELLED, due_ns=due[index], sent_ns=None, end_ns=None)
    context = open_loop(window_ns=(0, 60 * S), interrupted=True, rate_asked_per_s=10.0)
    window, achieved, _, offered = rates_of(records, context)
    assert window["end_s"] == pytest.approx(due[149] / S)
    assert offered == pytest.approx(149 / window["end_s"])
    assert achieved == pytest.approx(offered, rel=0.03)


def test_an_interrupt_while_the_run_drains_leaves_its_window_whole():
    records = served([index * S for index in range(9)], 100 * MS)
    window, *_ = rates_of(records, open_loop(window_ns=(0, 10 * S), interrupted=True))
    assert window["duration_s"] == 10


def test_a_closed_loop_whose_requests_run_out_before_its_time_is_measured_while_it_ran():
    records = [ok_record(i, sent=i * S, events=[i * S + S - 1], end_ns=i * S + S - 1) for i in range(10)]
    context = closed_loop(window_ns=(0, 60 * S), request_limit=10)
    assert summary_of(records, context)["throughput"]["requests_per_s"] == 1.0
    unlimited = replace(context, request_limit=None)
    assert summary_of(records, unlimited)["throughput"]["requests_per_s"] == pytest.approx(1 / 6)


def test_as_much_of_the_warm_up_counts_as_is_left_unfinished():
    """One request a second, 2.5 s each: of the warm-up two end in the window, and two are left at its end."""
    due = [index * S for index in range(10)]
    records = served(due, 2500 * MS, warmup_ns=4 * S, tokens=7)
    _, achieved, _, offered = rates_of(records, open_loop(window_ns=(4 * S, 10 * S)))
    assert achieved == offered == 1.0
    # When the load stops before the window does, nothing is left unfinished, and the warm-up counts nothing.
    summary = summary_of(records[:7], open_loop(window_ns=(4 * S, 10 * S)))
    assert summary["throughput"]["requests_per_s"] == summary["throughput"]["offered_requests_per_s"] == 0.5
    assert summary["throughput"]["output_tokens_per_s"] == 3.5


def test_tokens_of_a_request_that_the_drains_end_cuts_off_have_come():
    events = [second * S for second in range(1, 9)]
    records = [ok_record(0, events=events), failed_record(1, Outcome.CANCELLED, event_ns=events)]
    records[1].event_tokens = [1] * 8
    rates = summary_of(records, closed_loop(window_ns=(0, 4 * S)))["throughput"]
    assert rates["output_tokens_per_s"] == 2.0


LOADS = st.one_of(
    st.fixed_dictionaries(
        {
            "arrivals": st.sampled_from(["constant", "poisson", "gamma"]),
            "rate": st.floats(0.5, 40),
            "warmup": st.sampled_from([0.0, 0.7, 5.0]),
        }
    ),
    st.fixed_dictionaries(
        {
            "arrivals": st.sampled_from(["constant", "poisson"]),
            "stages": st.lists(
                st.fixed_dictionaries({"ramp_to": st.floats(1, 30), "for": st.floats(0.5, 4)})
                | st.fixed_dictionaries({"rate": st.floats(1, 30), "for": st.floats(0.5, 4)}),
                min_size=1,
                max_size=3,
            ),
            "warmup": st.sampled_from([0.0, 1.5]),
        }
    ),
    st.fixed_dictionaries(
        {
            "arrivals": st.just("burst"),
            "burst": st.fixed_dictionaries({"size": st.integers(1, 20), "every": st.floats(0.2, 3)}),
            "warmup": st.sampled_from([0.0, 1.0]),
        }
    ),
)
ENDS = st.fixed_dictionaries({"requests": st.integers(1, 60)}) | st.fixed_dictionaries(
    {"duration": st.floats(1, 8)}
)


def planned_context(plan, **more):
    return replace(
        open_loop() if plan.is_open else closed_loop(),
        window_ns=None if plan.end_ns is None else (plan.warmup_ns, plan.end_ns),
        request_limit=None if plan.is_open else plan.num_requests,
        **more,
    )


def check_open_loop(due, warmup_ns, context, latency_ns, lag_ns):
    records = served(due, latency_ns, lag_ns=lag_ns, warmup_ns=warmup_ns)
    summary = summary_of(records, context)
    for rates, window in (
        (summary["throughput"], summary["window"]),
        (summary["throughput_whole"], summary["throughput_whole"]["window"]),
    ):
        offered = rates["offered_requests_per_s"]
        if offered is None:
            assert rates["requests_per_s"] is None
            continue
        assert rates["requests_per_s"] <= offered * (1 + 1e-9)
        assert rates["sent_requests_per_s"] <= offered * (1 + 1e-9)
        # All that is missing is what was due so late that its answer came after the window.
        end_ns = round(window["end_s"] * S)
        late = sum(warmup_ns <= at < end_ns <= at + latency_ns + lag_ns + 1 for at in due)
        missing = (offered - rates["requests_per_s"]) * window["duration_s"]
        assert missing <= late + 1e-6


@settings(max_examples=150)
@given(
    LOADS,
    ENDS,
    st.sampled_from([0, 1, 3 * MS, 300 * MS, 2 * S]),
    st.sampled_from([0, MS]),
    st.integers(0, 99),
)
def test_no_more_is_achieved_than_was_offered(load, end, latency_ns, lag_ns, seed):
    load = load if "stages" in load and "duration" in end else load | end
    try:
        plan = make_plan(Scenario.model_validate(scenario_of(load, seed)))
    except UsageError:
        return  # nothing is due in the measured time
    check_open_loop(plan.due_ns.tolist(), plan.warmup_ns, planned_context(plan), latency_ns, lag_ns)


@settings(max_examples=80)
@given(
    st.lists(st.integers(0, 2 * S), min_size=1, max_size=30),
    st.sampled_from([0, S, 3 * S]),
    st.sampled_from([0, 5 * MS, 700 * MS]),
)
def test_no_more_is_achieved_than_a_trace_holds(gaps, warmup_ns, latency_ns):
    check_open_loop(np.cumsum(gaps).tolist(), warmup_ns, open_loop(), latency_ns, 0)


@settings(max_examples=80)
@given(
    st.integers(1, 8),
    st.integers(2, 40),
    st.sampled_from([0.0, 0.35, 2.0]),
    st.booleans(),
    st.integers(50 * MS, 900 * MS),
)
def test_a_closed_loop_achieves_what_its_users_can_ask(users, num, warmup_s, has_time, latency_ns):
    """Users who wait for their answers, each of which takes the same time: users / latency, at the most."""
    warmup_ns, records = round(warmup_s * S), []
    for turn in range(200):
        for _ in range(users):
            sent, num_measured = turn * latency_ns, sum(record.phase == "measure" for record in records)
            if num_measured < num:
                records.append(
                    ok_record(
                        len(records),
                        sent=sent,
                        events=[sent + latency_ns],
                        end_ns=sent + latency_ns,
                        phase="warmup" if sent < warmup_ns else "measure",
                    )
                )
    context = closed_loop(window_ns=(warmup_ns, warmup_ns + 500 * S) if has_time else None, request_limit=num)
    summary = summary_of(records, context)
    achieved, possible = summary["throughput"]["requests_per_s"], users / latency_ns * S
    assert achieved <= possible * (1 + 1e-9)
    assert achieved >= possible * min(1, num / users) / 2  # the last round may be one user's alone


def test_one_long_request_among_short_ones_does_not_stretch_the_window():
    """Eight slots, sixteen requests of 0.5 s and one of 5 s (the drain tail of FAULTS B70)."""
    records = [ok_record(i, sent=i // 8 * S // 2, events=[i // 8 * S // 2 + S // 2 - 1]) for i in range(16)]
    records.append(ok_record(16, sent=S, events=[6 * S]))
    summary = summary_of(records)
    assert summary["window"]["duration_s"] == 1.0
    assert summary["throughput"]["requests_per_s"] == 16.0
    assert summary["throughput_whole"]["requests_per_s"] == pytest.approx(17 / 6, rel=1e-3)


def test_failed_requests_give_no_throughput():
    records = [ok_record(0, events=[S]), failed_record(1, event_ns=[S], event_tokens=[50], end_ns=S)]
    summary = summary_of(records, closed_loop(window_ns=(0, 2 * S)))
    assert summary["throughput"]["requests_per_s"] == 0.5
    assert summary["throughput"]["output_tokens_per_s"] == 0.5


# ---- goodput


def test_goodput_is_the_share_that_meets_every_limit():
    slo = (limit("ttft", "p95", 0.2), limit("tpot", "p95", 0.05), limit("e2e", "p99", 1.0))
    records = [
        ok_record(0, events=[100 * MS, 140 * MS]),  # good
        ok_record(1, events=[300 * MS, 340 * MS]),  # first token late
        ok_record(2, events=[100 * MS, 200 * MS]),  # slow
        ok_record(3, events=[150 * MS]),  # one token: nothing to be slow between
        failed_record(4),
        failed_record(5, Outcome.DROPPED, sent_ns=None, end_ns=None),
    ]
    goodput = summary_of(records, closed_loop(slo=slo, window_ns=(0, S)))["goodput"]
    assert goodput["share"] == pytest.approx(2 / 6)
    assert goodput["requests_per_s"] == 2.0
    low, high = goodput["ci95"]
    assert low < 2 / 6 < high


def test_without_a_per_request_limit_there_is_no_goodput():
    slo = (limit("errors", "share", 0.01), limit("itl", "p99", 0.1), limit("ttft", "mean", 0.1))
    assert summary_of([ok_record(0, events=[1])], closed_loop(slo=slo))["goodput"] == {
        "requests_per_s": None,
        "share": None,
        "ci95": None,
    }


def test_of_several_statistics_the_strictest_is_the_limit_of_a_request():
    assert request_limits((limit("ttft", "p99", 1.0), limit("ttft", "p95", 0.5))) == {"ttft": 0.5}


def test_a_tenant_can_have_limits_of_its_own():
    records = [
        ok_record(0, events=[300 * MS], tenant="patient"),
        ok_record(1, events=[300 * MS], tenant="hasty"),
        ok_record(2, events=[300 * MS]),
    ]
    context = closed_loop(
        slo=(limit("ttft", "p95", 0.2),), tenant_slo={"patient": (limit("ttft", "p95", 0.5),)}
    )
    summary = summary_of(records, context)
    assert summary["goodput"]["share"] == pytest.approx(1 / 3)
    assert set(summary["by_tenant"]) == {"patient", "hasty"}
    assert summary["by_tenant"]["hasty"]["counts"] == {"measured": 1, "ok": 1}


# ---- stalls, tokens, stages


def test_stalls_are_gaps_above_a_stated_limit():
    records = [
        ok_record(0, events=[0, 100 * MS, 900 * MS, 2 * S]),
        ok_record(1, events=[0, 100 * MS]),
        failed_record(2, event_ns=[0, 9 * S], event_tokens=[1, 1]),
    ]
    stalls = summary_of(records)["stalls"]
    assert stalls["limit_s"] == 0.5
    assert (stalls["count"], stalls["requests"], stalls["longest_s"]) == (2, 1, 1.1)
    assert stalls["fluidity"] is None


def test_fluidity_is_the_share_of_tokens_in_time_for_a_steady_reader():
    # Tokens wanted at 0, 50, 100, 150 ms; the third comes late, the fourth is in time again.
    record = ok_record(0, events=[1000 * MS, 1040 * MS, 1120 * MS, 1150 * MS])
    stalls = summary_of([record], closed_loop(slo=(limit("tpot", "p95", 0.05),)))["stalls"]
    assert stalls["fluidity"] == 0.75


def test_lengths_asked_for_and_real_ones_are_set_side_by_side():
    records = [
        ok_record(0, events=[1] * 5, input_tokens_asked=100, input_tokens=110, output_tokens_asked=10),
        ok_record(1, events=[1] * 10, input_tokens_asked=100, input_tokens=130, output_tokens_asked=10),
    ]
    summary = summary_of(records)
    asked = summary["tokens"]["asked"]
    assert (asked["input_asked"], asked["input_real"]) == (200, 240)
    assert asked["input_deviation_p50"] == pytest.approx(0.2)
    assert asked["output_deviation_max"] == 0.5
    assert asked["short_output_share"] == 0.5
    assert asked["input_off_share"] == 0.5  # 110 of 100 is within 10 %
    assert {"output_short", "input_length"} <= set(codes(summary))


def test_the_source_of_token_counts_is_named():
    usage, events = ok_record(0, events=[1]), ok_record(1, events=[1], token_source="events")
    assert summary_of([usage])["tokens"]["source"] == "usage"
    mixed = summary_of([usage, events])
    assert mixed["tokens"]["source"] == "mixed"
    assert mixed["tokens"]["sources"] == {"usage": 1, "events": 1}
    assert "usage_missing" in codes(mixed)


def test_stages_share_out_the_measured_requests():
    records = [ok_record(i, sent=i * S, due_ns=i * S, events=[i * S + (i + 1) * MS]) for i in range(10)]
    stages = (
        StageWindow(label="1/s", start_ns=0, end_ns=5 * S),
        StageWindow(label="2/s", start_ns=5 * S, end_ns=10 * S),
    )
    found = summary_of(records, open_loop(stages=stages))["by_stage"]
    assert [stage["counts"]["measured"] for stage in found] == [5, 5]
    assert [stage["metrics"]["ttft"]["p50"] for stage in found] == [0.003, 0.008]


def test_failures_are_told_apart_by_kind_with_an_example():
    records = [
        failed_record(0, Outcome.HTTP_ERROR, http_status=503, error_kind="http_status", error="HTTP 503: a"),
        failed_record(1, Outcome.HTTP_ERROR, http_status=429, error_kind="http_status", error="HTTP 429: b"),
        failed_record(2, Outcome.HTTP_ERROR, http_status=503, error_kind="http_status", error="HTTP 503: c"),
        failed_record(3, error_kind="truncated", http_status=200),
        failed_record(4, error_kind="truncated", http_status=None),
    ]
    failures = summary_of(records)["failures"]
    assert [(each["http_status"], each["error_kind"], each["count"]) for each in failures] == [
        (503, "http_status", 2),
        (None, "truncated", 2),
        (429, "http_status", 1),
    ]
    assert failures[0]["example"] == "HTTP 503: a"


def test_percentiles_that_the_sample_cannot_support_are_null():
    block = summary_of([ok_record(i, events=[(i + 1) * MS]) for i in range(99)])["metrics"]["ttft"]
    assert block["p95"] is not None
    assert block["p99"] is block["p999"] is None
    assert block["ci95"]["p95"] is not None
    assert block["ci95"]["p99"] is None


def test_a_percentile_that_an_slo_names_is_in_the_summary():
    records = [ok_record(i, events=[(i + 1) * MS]) for i in range(100)]
    summary = summary_of(records, closed_loop(slo=(limit("ttft", "p75", 0.5),)))
    assert metric(summary, "ttft", "p75") == pytest.approx(0.07525)
    assert summary["gate"]["status"] == "PASS"


def codes(summary):
    return [reason["code"] for reason in summary["verdict"]["reasons"]]


# ---- the verdict


def test_a_sound_run_is_valid():
    records, context = steady_run()
    summary = summary_of(records, decidable(context))
    assert summary["verdict"] == {"status": "VALID", "reasons": []}


def late(records, lag_ns):
    for record in records:
        if record.outcome is Outcome.OK:
            record.due_ns = record.sent_ns - lag_ns
    return records


def without_usage(records):
    for record in records[::2]:
        record.token_source = "events"
    return records


def one_piece(records):
    for record in records:
        if record.event_ns:
            record.event_ns = [record.event_ns[-1]] * len(record.event_ns)
            record.first_event_ns, record.reads = record.event_ns[0], 1
    return records


def drop(records, every):
    for index in range(0, len(records), every):
        kept = records[index]
        records[index] = failed_record(
            index, Outcome.DROPPED, due_ns=kept.due_ns, phase=kept.phase, sent_ns=None, end_ns=None
        )
    return records


def fail(records, every):
    for index in range(0, len(records), every):
        kept = records[index]
        records[index] = failed_record(index, due_ns=kept.due_ns, phase=kept.phase, sent_ns=kept.due_ns)
    return records


def from_cache(records):
    for record in records:
        record.cached_tokens = 256 if record.input_tokens else None
    return records


@pytest.mark.parametrize(
    ("spoil", "code", "status"),
    [
        (lambda records: late(records, 200 * MS), "client_late", "INVALID"),
        (lambda records: drop(records, 50), "dropped_arrivals", "SUSPECT"),
        (lambda records: drop(records, 5), "dropped_arrivals", "INVALID"),
        (lambda records: fail(records, 5), "many_errors", "SUSPECT"),
        (without_usage, "usage_missing", "SUSPECT"),
        (one_piece, "buffered", "INVALID"),  # it has a limit on TPOT
        (from_cache, "cache_hits", "SUSPECT"),
    ],
    ids=["late", "dropped", "many dropped", "errors", "usage", "buffered", "cache"],
)
def test_each_fault_of_a_run_is_a_reason_with_a_remedy(spoil, code, status):
    records, context = steady_run()
    summary = summary_of(spoil(records), context)
    assert summary["verdict"]["status"] == status
    reason = next(reason for reason in summary["verdict"]["reasons"] if reason["code"] == code)
    assert set(reason) == {"code", "severity", "measured", "limit", "message", "hint"}
    assert reason["hint"]
    severities = [each["severity"] for each in summary["verdict"]["reasons"]]
    assert severities == sorted(severities, key=("INVALID", "SUSPECT").index)


@pytest.mark.parametrize("every", [2, 5, 50])
def test_dropped_arrivals_are_one_reason_and_no_other(every):
    """They are no errors of the server, and no lateness of the client."""
    records, context = steady_run()
    assert codes(summary_of(drop(records, every), decidable(context))) == ["dropped_arrivals"]


def test_a_client_that_cannot_send_so_much_is_told():
    records, context = steady_run()
    for record in records:
        if record.sent_ns is not None:
            record.sent_ns += record.due_ns // 5
    assert "rate_not_met" in codes(summary_of(records, context))


@pytest.mark.parametrize(
    ("lag_ms", "severity", "words"),
    [
        (10.04, "SUSPECT", "send lag p99 10 ms, 5.02 % of TTFT p50 (limit 5 %)"),
        (30.0, "SUSPECT", "send lag p99 30 ms, 15 % of TTFT p50 (limit 5 %)"),
        (60.0, "INVALID", "send lag p99 60 ms, 30 % of TTFT p50 (limit 5 %)"),
        (300.0, "INVALID", "send lag p99 300 ms, 150 % of TTFT p50 (limit 5 %)"),
    ],
)
def test_lateness_is_a_caveat_until_the_arrivals_are_others_than_planned(lag_ms, severity, words):
    lag = round(lag_ms * MS)
    records = [ok_record(i, due_ns=0, sent=lag, events=[lag + 200 * MS]) for i in range(200)]
    reason = next(
        reason
        for reason in summary_of(records, open_loop())["verdict"]["reasons"]
        if reason["code"] == "client_late"
    )
    assert (reason["severity"], reason["message"]) == (severity, words)


def test_cache_hits_that_were_asked_for_are_no_reason():
    records, context = steady_run()
    summary = summary_of(from_cache(records), replace(context, cache_hits_expected=True))
    assert "cache_hits" not in codes(summary)


@pytest.mark.parametrize("how", ["interrupted", "killed"])
def test_a_run_that_was_cut_short_is_suspect_and_not_blamed_for_its_rate(how):
    records, context = steady_run()
    for index in range(120, 247):
        records[index] = failed_record(
            index, Outcome.CANCELLED, due_ns=records[index].due_ns, sent_ns=None, end_ns=None
        )
    summary = summary_of(records, replace(context, **{how: True}))
    assert codes(summary) == ["interrupted"]
    assert summary["window"]["end_s"] == pytest.approx(29.75, abs=0.1)
    assert summary["throughput"]["requests_per_s"] == pytest.approx(4, rel=0.1)


def test_lateness_is_judged_by_the_highest_percentile_that_few_requests_support():
    records = [ok_record(i, due_ns=0, sent=20 * MS, events=[120 * MS]) for i in range(3)]
    assert "client_late" in codes(summary_of(records, open_loop()))


def test_one_late_send_of_a_few_does_not_condemn_a_run():
    """A quick start of 35 requests was called INVALID for a single send that a busy machine had delayed."""
    records = [ok_record(i, due_ns=0, sent=0, events=[50 * MS]) for i in range(35)]
    records[7] = ok_record(7, due_ns=0, sent=12 * MS, events=[62 * MS])
    assert "client_late" not in codes(summary_of(records, open_loop()))


def test_a_lag_of_some_milliseconds_is_a_caveat_however_fast_the_target():
    """6 ms in one send of a hundred once made a run INVALID whose TTFT was 22 ms."""
    records = [ok_record(i, due_ns=0, sent=7 * MS, events=[29 * MS]) for i in range(200)]
    verdict = summary_of(records, open_loop())["verdict"]
    assert {reason["code"]: reason["severity"] for reason in verdict["reasons"]}["client_late"] == "SUSPECT"


def test_a_lag_of_a_few_milliseconds_condemns_nothing_however_fast_the_target():
    records = [ok_record(i, due_ns=0, sent=4 * MS, events=[24 * MS]) for i in range(200)]
    assert "client_late" not in codes(summary_of(records, open_loop()))


def test_a_slow_first_token_is_not_taken_for_a_buffering_proxy():
    """A saturated server's streams end soon after a long wait, yet no faster than a model writes."""
    queued = [ok_record(i, events=[10_000 * MS + 20 * MS * i for i in range(8)]) for i in range(30)]
    assert codes(summary_of(queued, closed_loop())) == []
    at_once = [ok_record(i, events=[10_000 * MS] * 4 + [10_000 * MS + 20_000] * 4) for i in range(30)]
    assert codes(summary_of(at_once, closed_loop())) == ["buffered"]


def test_events_that_are_not_json_are_named():
    records = [ok_record(i) for i in range(30)]
    records[3].warnings = ["malformed_event"]
    assert codes(summary_of(records, closed_loop())) == ["malformed_events"]
