"""Scenarios as values: round trips, hashes, secrets, limits."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from pydantic import ValidationError

from llmbench.errors import ScenarioError
from llmbench.scenario.load import parse_scenario
from llmbench.scenario.masking import scrub
from llmbench.scenario.model import Load, Scenario, Stage, scenario_from_resolved, secrets_of
from llmbench.scenario.objectives import quantile
from tests.llmbench.scenario_trees import SCENARIOS

SECRETS = ("sk-live-0123456789", "tok-98765", "sid=abcdef", "hunter22", "body-secret")


def tree(**target: Any) -> dict[str, Any]:
    return {
        "name": "t",
        "target": {"url": "http://127.0.0.1:8000", **target},
        "load": {"arrivals": "poisson", "rate": "4/s", "duration": "60s"},
        "workload": {"kind": "synthetic", "input_tokens": 512, "output_tokens": 128},
    }


def secret_tree(key: str, token: str, cookie: str, password: str, in_body: str) -> dict[str, Any]:
    return tree(
        url=f"https://user:{password}@host/v1",
        headers={"api-key": key, "X-Auth-Token": token, "Cookie": cookie, "X-Tenant": "a"},
        body={"extra": {"api_key": in_body}, "max_tokens_hint": 5},
    )


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(SCENARIOS)
def test_a_resolved_scenario_reads_back_as_itself(written: dict[str, Any]) -> None:
    scenario = parse_scenario(written)
    resolved = json.loads(json.dumps(scenario.resolved(), allow_nan=False))
    again = scenario_from_resolved(resolved)
    assert again.resolved() == resolved
    assert again.hash() == scenario.hash()
    assert again.load == scenario.load
    assert again.workloads == scenario.workloads
    assert again.slo.limits == scenario.slo.limits
    assert parse_scenario(resolved).hash() == scenario.hash(), "the rules accept what they once accepted"
    assert "secret" not in json.dumps(resolved)


def test_scenarios_that_differ_only_in_secrets_have_one_hash() -> None:
    first = parse_scenario(secret_tree(*SECRETS))
    second = parse_scenario(secret_tree(*(secret + "-other" for secret in SECRETS)))
    assert first.hash() == second.hash()
    assert first.hash() != parse_scenario(tree()).hash()
    assert parse_scenario(tree(api_key="sk-1")).hash() == parse_scenario(tree()).hash()


def test_no_secret_shows_in_any_rendering_of_a_scenario() -> None:
    scenario = parse_scenario(secret_tree(*SECRETS))
    with_key = parse_scenario(tree(api_key="sk-live-0123456789"))
    for shown in (
        *(repr(scenario), str(scenario), json.dumps(scenario.resolved()), repr(scenario.target)),
        *(
            str(scenario.target.headers),
            f"{scenario.target.body}",
            repr(with_key),
            json.dumps(with_key.resolved()),
        ),
    ):
        assert not [secret for secret in SECRETS if secret in shown]
    assert scenario.resolved()["target"]["headers"]["X-Tenant"] == "a"
    assert with_key.resolved()["target"]["api_key"] == "***"


def test_the_raw_secrets_are_told_to_those_who_scrub() -> None:
    secrets = secrets_of(parse_scenario(secret_tree(*SECRETS)))
    assert set(SECRETS) <= set(secrets)
    assert [len(secret) for secret in secrets] == sorted((len(secret) for secret in secrets), reverse=True)
    assert scrub("401: Incorrect API key sk-live-0123456789 (user:hunter22)", secrets) == (
        "401: Incorrect API key *** (***)"
    )
    bearer = parse_scenario(tree(headers={"Authorization": "Bearer tok-98765"}))
    assert secrets_of(bearer) == ("Bearer tok-98765", "tok-98765")
    assert secrets_of(scenario_from_resolved(bearer.resolved())) == ()


def test_credentials_in_the_url_become_a_header() -> None:
    target = parse_scenario(tree(url="http://me:p%40ss@host:8000/v1")).target
    assert target.url == "http://host:8000/v1"
    assert target.headers["Authorization"] == "Basic bWU6cEBzcw=="


def test_a_scenario_survives_the_way_to_another_process() -> None:
    scenario = parse_scenario(secret_tree(*SECRETS))
    again = pickle.loads(pickle.dumps(scenario))
    assert again == scenario
    assert again.target.headers["api-key"] == SECRETS[0]
    assert SECRETS[0] not in repr(again)


def test_a_null_in_the_body_is_sent_and_nulls_elsewhere_mean_the_default() -> None:
    written = tree(body={"stop": None, "n": {"a": None}}, timeout=None, headers={})
    written["load"]["warmup"] = None
    scenario = parse_scenario(written)
    assert scenario.resolved()["target"]["body"] == {"stop": None, "n": {"a": None}}
    assert scenario.target.timeout_s == 120.0
    assert scenario.load.warmup_s == 0.0


def test_the_hash_depends_on_what_is_sent_but_not_on_where_a_file_lies() -> None:
    base = tree()
    faster = copy.deepcopy(base)
    faster["load"]["rate"] = "5/s"
    same = copy.deepcopy(base)
    same["load"]["rate"] = "240/m"
    assert parse_scenario(base).hash() == parse_scenario(same).hash()
    assert parse_scenario(base).hash() != parse_scenario(faster).hash()
    traces = []
    for folder in ("/a", "/b/c"):
        moved = {
            **base,
            "workload": {"kind": "azure", "path": f"{folder}/t.csv"},
            "load": {"arrivals": "trace"},
        }
        traces.append(parse_scenario(moved).hash())
    assert traces[0] == traces[1]


def test_limits_are_in_seconds_and_shares_with_their_direction() -> None:
    written = tree()
    written["slo"] = {
        "ttft": {"p95": "500ms", "p99.9": "2s"},
        "errors": "1%",
        "goodput": "95%",
        "output_tokens_per_s": "300/m",
    }
    limits = [(x.metric, x.stat, x.limit, x.higher_is_better) for x in parse_scenario(written).slo.limits]
    assert limits == [
        ("ttft", "p95", 0.5, False),
        ("ttft", "p999", 2.0, False),
        ("errors", "share", 0.01, False),
        ("goodput", "share", 0.95, True),
        ("output_tokens_per_s", "rate", 5.0, True),
    ]


@pytest.mark.parametrize(
    ("stat", "expected"), [("p50", 0.5), ("p99.5", 0.995), ("p999", 0.999), ("mean", None), ("share", None)]
)
def test_a_statistic_knows_its_quantile(stat: str, expected: float | None) -> None:
    assert quantile(stat) == expected


def test_python_code_builds_types_with_plain_numbers_and_the_same_rules() -> None:
    load = Load(arrivals="poisson", rate_per_s=4, duration_s=60)
    assert load == Load(arrivals="poisson", rate="4/s", duration="1m")
    assert Stage(ramp_to=10.0, for_s=3).end_rate_per_s == 10.0
    assert Stage(ramp_to=10, for_s=3).end_concurrency == 10
    with pytest.raises(ValidationError, match="closed needs concurrency"):
        Load(arrivals="closed", duration_s=60)
    with pytest.raises(ValidationError, match="extra_forbidden"):
        Load(arrivals="closed", concurrency=1, requests=1, duraton=3)
    with pytest.raises(ValidationError, match="frozen"):
        load.rate_per_s = 5


def test_a_started_engine_takes_the_place_of_the_target() -> None:
    written = tree()
    written["target"] = {"engine": {"model": "tiny"}}
    scenario = parse_scenario(written).with_target_url("http://127.0.0.1:4711")
    assert (scenario.target.url, scenario.target.engine) == ("http://127.0.0.1:4711", None)


def test_a_recorded_scenario_that_does_not_validate_is_a_scenario_error() -> None:
    resolved = parse_scenario(tree()).resolved()
    with pytest.raises(ScenarioError, match=r"load\.rate"):
        scenario_from_resolved({**resolved, "load": {**resolved["load"], "rate": 4}})
    assert isinstance(scenario_from_resolved(resolved), Scenario)
