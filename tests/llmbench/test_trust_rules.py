"""The documented table of limits against the code, and remedies against what the user had set."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from llmbench.columns import from_records
from llmbench.context import RunContext, Settings
from llmbench.preflight import prepare
from llmbench.records import Outcome
from llmbench.report.summary import summarise
from llmbench.scenario.bundled import bundled_scenarios
from llmbench.scenario.load import check_files
from llmbench.slo import percent_of_stat
from llmbench.stats import percentile_ranks, samples_needed
from llmbench.trust import KINDS, RULES, rules_table
from llmbench.trust.samples import MEDIAN_NEEDS
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


def reasons(records, context=None):
    """{code: reason} of a run."""
    summary = summarise(from_records(records), context or closed_loop())
    return {reason["code"]: reason for reason in summary["verdict"]["reasons"]}


def with_settings(context, **more):
    return replace(context, settings=Settings(**more))


# ---- the table


def trees():
    return {kind.__name__: ast.parse(Path(kind.__file__).read_text(encoding="utf-8")) for kind in KINDS}


def called_with_a_code(tree):
    """Every code that a module's functions hand to a reason, with the severities named in that function."""
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        strings = {node.value for node in ast.walk(function) if isinstance(node, ast.Constant)}
        for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
            first = call.args[0] if call.args else None
            named = isinstance(call.func, ast.Name) and call.func.id in ("reason", "_in_one_piece")
            if named and isinstance(first, ast.Constant):
                yield first.value, {"SUSPECT", "INVALID"} & strings


def test_every_code_is_in_the_table_and_every_line_of_it_has_a_check():
    used = {code for tree in trees().values() for code, _ in called_with_a_code(tree)}
    assert used == {rule.code for rule in RULES}
    assert len(used) == len(RULES) >= 22


def test_the_severities_of_the_table_are_those_of_the_code():
    documented = {
        rule.code: {name for name, said in (("SUSPECT", rule.suspect), ("INVALID", rule.invalid)) if said}
        for rule in RULES
    }
    both = {"buffered", "fake_streaming"}  # theirs are given by the function that they share
    for tree in trees().values():
        for code, named in called_with_a_code(tree):
            assert documented[code] == (named or {"SUSPECT", "INVALID"}), code
            assert bool(named) is (code not in both)


def test_every_limit_of_a_check_is_in_its_modules_lines_of_the_table():
    for name, tree in trees().items():
        constants, used = set(), set()
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                target = node.targets[0].id
                inside = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
                if isinstance(node.value, ast.Constant) and not target.startswith("_"):
                    constants.add(target)
                if target == "RULES" or target.startswith("_"):
                    used |= inside
        assert constants <= used, name


def test_the_table_is_one_line_a_rule():
    lines = rules_table().splitlines()
    assert len(lines) == len(RULES) + 2
    assert {line.count("|") for line in lines} == {6}
    assert all(len(rule.remedy) > 3 and (rule.suspect or rule.invalid) for rule in RULES)


# ---- remedies


def late():
    records, context = steady_run()
    for record in records:
        if record.outcome is Outcome.OK:
            record.due_ns = record.sent_ns - 100 * MS
    return records, decidable(context)


@pytest.mark.parametrize(
    ("workers", "at_most", "arrivals", "said"),
    [
        (1, 4, "poisson", "--set instrument.workers=2"),
        (2, 4, "poisson", "--set instrument.workers=3"),
        (4, 4, "poisson", "ask for a lower rate"),
        (1, 1, "burst", "load.burst.size"),
        (1, None, "trace", "load.speed"),
    ],
)
def test_a_late_client_is_given_cores_where_it_can_have_more(workers, at_most, arrivals, said):
    records, context = late()
    context = replace(context, instrument={"workers": workers, "workers_at_most": at_most})
    context = with_settings(context, arrivals=arrivals)
    hint = reasons(records, context)["client_late"]["hint"]
    assert said in hint
    assert ("instrument.workers" in hint) is ("workers" in said)


def of_length(asked, real, **more):
    events = [(200 + 10 * place) * MS for place in range(real)]
    return [ok_record(i, events=events, output_tokens_asked=asked, **more) for i in range(30)]


@pytest.mark.parametrize(
    ("settings", "said", "not_said"),
    [
        ({"ignore_eos": True, "ignore_eos_asked": True}, "although ignore_eos was sent", "set target.ignore"),
        ({"ignore_eos": True, "ignore_eos_asked": "auto"}, "although ignore_eos was sent", "set target"),
        ({"ignore_eos": False, "ignore_eos_asked": "auto"}, "refuses ignore_eos", "set target.ignore_eos"),
        ({"ignore_eos": False, "ignore_eos_asked": False}, "set target.ignore_eos: true", "although"),
        ({}, "set target.ignore_eos: true", "although"),
        ({"body_keys": ("max_tokens",), "ignore_eos": True}, "target.body sets max_tokens", "ignore_eos"),
    ],
)
def test_a_short_answers_remedy_is_not_what_was_tried(settings, said, not_said):
    found = reasons(of_length(64, 32), with_settings(closed_loop(), **settings))
    assert list(found) == ["output_short"]
    assert said in found["output_short"]["hint"]
    assert not_said not in found["output_short"]["hint"]


def test_a_longer_answer_than_asked_for_is_a_reason():
    found = reasons(of_length(16, 64))
    assert list(found) == ["output_long"]
    assert found["output_long"]["measured"] == 1.0
    assert not reasons(of_length(8, 11))  # three tokens more: a stop string, an end of sequence
    body = reasons(of_length(16, 64), with_settings(closed_loop(), body_keys=("max_tokens", "top_k")))
    assert "target.body sets max_tokens" in body["output_long"]["hint"]


def test_several_choices_are_asked_for_once_each():
    answers = of_length(16, 32, event_tokens=None)
    assert not reasons(answers, with_settings(closed_loop(), num_choices=2))
    assert list(reasons(answers, with_settings(closed_loop(), num_choices=4))) == ["output_short"]


def test_a_length_that_nobody_counted_is_not_called_short():
    """Without usage an event counts as a token, however many it holds."""
    found = reasons(of_length(64, 16, token_source="events"))
    assert list(found) == ["usage_missing"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"usage": False}, "set target.usage: true"),
        ({"usage": True, "body_keys": ("stream_options",)}, "include_usage: true"),
        ({"usage": True, "body_keys": ()}, "in the server"),
    ],
)
def test_usage_is_to_be_turned_on_where_it_is_off(settings, said):
    found = reasons(of_length(64, 64, token_source="events"), with_settings(closed_loop(), **settings))
    assert said in found["usage_missing"]["hint"]


@pytest.mark.parametrize(
    ("failure", "settings", "said"),
    [
        ((Outcome.HTTP_ERROR, 429, "http_status", "HTTP 429 (Retry-After: 2): slow"), {}, "Retry-After: 2"),
        ((Outcome.HTTP_ERROR, 429, "http_status", "HTTP 429: slow"), {}, "limits the rate: ask for a lower"),
        ((Outcome.HTTP_ERROR, 401, "http_status", "HTTP 401"), {}, "give the key with target.api_key"),
        ((Outcome.HTTP_ERROR, 401, "http_status", "HTTP 401"), {"api_key": True}, "refuses target.api_key"),
        ((Outcome.HTTP_ERROR, 404, "http_status", "HTTP 404"), {}, "target.model"),
        ((Outcome.HTTP_ERROR, 422, "http_status", "HTTP 422"), {}, "refuses these requests"),
        ((Outcome.HTTP_ERROR, 503, "http_status", "HTTP 503"), {}, "its log"),
        ((Outcome.HTTP_ERROR, 302, "http_status", "HTTP 302"), {}, "leads elsewhere"),
        (
            (Outcome.TIMEOUT, None, "timeout", "no answer in 5 s (target.timeout)"),
            {"timeout_s": 5.0},
            "target.timeout (5 s now): raise it",
        ),
        (
            (Outcome.TIMEOUT, None, "timeout", "nothing arrived for 2 s (target.no_progress_timeout)"),
            {"no_progress_timeout_s": 2.0},
            "target.no_progress_timeout (2 s now)",
        ),
        ((Outcome.CONNECT_ERROR, None, "connection", "refused"), {}, "is it up?"),
        ((Outcome.CANCELLED, None, "cancelled", "drain"), {}, "load.drain_timeout"),
        ((Outcome.BAD_STREAM, 200, "not_sse", "JSON"), {}, "target.stream: false"),
        ((Outcome.BAD_STREAM, 200, "stream_error", "oom"), {}, "error of its own"),
        ((Outcome.BAD_STREAM, 200, "empty", ""), {}, "without a word"),
        ((Outcome.BAD_STREAM, 200, "truncated", "cut"), {}, "proxy"),
    ],
)
def test_many_errors_have_the_remedy_of_the_most_frequent_one(failure, settings, said):
    outcome, status, kind, error = failure
    records = of_length(16, 16)
    for index in range(12):
        records[index] = failed_record(
            index, outcome, http_status=status, error_kind=kind, error=error, sent_ns=0, event_ns=[]
        )
    context = with_settings(closed_loop(), **settings)
    assert said in reasons(records, context)["many_errors"]["hint"]
    failed = records[:12]
    assert said in reasons(failed, context)["nothing_succeeded"]["hint"]


def test_connections_that_the_target_refuses_are_no_lateness_of_the_client():
    records = []
    for index in range(200):
        due = index * S // 20
        if index % 2:
            records.append(
                failed_record(index, Outcome.CONNECT_ERROR, due_ns=due, sent_ns=None, end_ns=due + MS)
            )
        else:
            records.append(ok_record(index, due_ns=due, sent=due, events=[due + 200 * MS, due + 220 * MS]))
    found = reasons(records, open_loop(window_ns=(0, 10 * S)))
    assert list(found) == ["many_errors"]


def test_dropped_arrivals_name_the_limit_that_kept_them_back():
    records, context = steady_run()
    for index in range(30, 200, 20):
        records[index] = failed_record(
            index, Outcome.DROPPED, due_ns=records[index].due_ns, sent_ns=None, end_ns=None
        )
    found = reasons(records, replace(decidable(context), max_in_flight=7))
    assert "7 were in flight (load.max_in_flight)" in found["dropped_arrivals"]["message"]


def test_cache_hits_of_prompts_that_were_given_are_their_own():
    records = of_length(16, 16, input_tokens=100, cached_tokens=60)
    for kinds, said in ((("inline",), "prompts given repeat"), (("synthetic",), "prefix cache off")):
        context = with_settings(closed_loop(), workload_kinds=kinds)
        assert said in reasons(records, context)["cache_hits"]["hint"]


def test_a_tokenizer_that_was_given_is_not_asked_for_again():
    records = of_length(16, 16, input_tokens_asked=100, input_tokens=140)
    assert reasons(records)["input_length"]["hint"].startswith("give target.tokenizer")
    given = reasons(records, with_settings(closed_loop(), tokenizer=True))
    assert "is not the server's" in given["input_length"]["hint"]


# ---- too few


def test_the_median_needs_as_many_as_its_interval():
    assert percentile_ranks(MEDIAN_NEEDS, 50) is not None
    assert percentile_ranks(MEDIAN_NEEDS - 1, 50) is None


@pytest.mark.parametrize(("num", "is_reason"), [(5, True), (6, False)])
def test_a_handful_of_successes_is_too_few(num, is_reason):
    records = [ok_record(i, sent=i * S, events=[i * S + 100 * MS, i * S + 120 * MS]) for i in range(num)]
    assert ("few_samples" in reasons(records)) is is_reason


@pytest.mark.parametrize(
    ("stat", "is_reason"), [("p50", False), ("p95", False), ("p99", True), ("max", False)]
)
def test_a_percentile_with_a_limit_needs_its_values(stat, is_reason):
    records = of_length(16, 16)
    found = reasons(records, closed_loop(slo=(limit("ttft", stat, 1.0),)))
    assert ("few_samples" in found) is is_reason
    if is_reason:
        assert (found["few_samples"]["measured"], found["few_samples"]["limit"]) == (30, 100)


def test_a_window_in_which_next_to_nothing_ended_tells_no_rate():
    """Sent within five seconds, answered after twenty: every answer came when the window had closed."""
    records = [
        ok_record(
            i, due_ns=i * S // 10, sent=i * S // 10, events=[20 * S + i * S // 10, 21 * S + i * S // 10]
        )
        for i in range(50)
    ]
    found = reasons(records, open_loop(window_ns=(0, 5 * S)))
    assert list(found) == ["few_samples"]
    assert "0 answers ended in the measured 5 s" in found["few_samples"]["message"]


def test_an_interrupted_run_has_its_own_reason_for_being_small():
    records = [ok_record(i, events=[100 * MS, 120 * MS]) for i in range(3)]
    assert list(reasons(records, closed_loop(interrupted=True))) == ["interrupted"]


@pytest.mark.parametrize("name", sorted(bundled_scenarios()))
def test_no_bundled_scenario_is_too_short_for_its_own_limits(name):
    (check,) = check_files([bundled_scenarios()[name]], env={})
    scenario = check.scenario
    plan = prepare(scenario, bundled_scenarios()[name].parent).plan
    if plan.due_ns is None:
        return
    start_ns, end_ns = plan.window_ns
    num = plan.num_due(start_ns, end_ns) if end_ns is not None else len(plan.due_ns)
    percents = [percent_of_stat(one.stat) for one in scenario.slo.limits]
    needed = max([MEDIAN_NEEDS, *(samples_needed(one) for one in percents if one is not None)])
    assert num >= 1.2 * needed


# ---- what a folder of an earlier version lacks


def test_a_context_without_settings_is_still_read():
    plain = closed_loop().to_json()
    del plain["settings"]
    context = RunContext.from_json(plain)
    assert context.settings == Settings()
    assert reasons(of_length(64, 32), context)["output_short"]["hint"]
    assert RunContext.from_json({**plain, "settings": {"cpus": 2, "unheard_of": 1}}).settings.cpus == 2


def test_settings_come_back_as_they_were():
    settings = Settings(body_keys=("n", "stop"), ignore_eos_asked="auto", timeout_s=1.5, workload_kinds=())
    assert Settings.from_json(settings.to_json()) == settings
