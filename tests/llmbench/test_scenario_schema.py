"""The JSON Schema agrees with the loader, and tells editors what each key means."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings

from llmbench.scenario.bundled import bundled_scenarios
from llmbench.scenario.not_yet import IMPLEMENTED_WORKLOADS, NOT_YET
from llmbench.scenario.scalars import plain_values
from llmbench.scenario.schema import json_schema
from llmbench.scenario.source import read_yaml
from tests.llmbench.scenario_trees import SCENARIOS

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
GOOD: dict[str, Any] = {
    "target": {"url": "http://127.0.0.1:8000"},
    "load": {"arrivals": "closed", "concurrency": 4, "think_time": "1s", "requests": 3},
    "workload": {"kind": "synthetic", "input_tokens": 512, "output_tokens": {"empirical": [1, 2]}},
    "slo": {"ttft": {"p95": "500ms", "p99.5": "1s"}, "errors": "1%"},
}


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_every_bundled_scenario_satisfies_the_schema() -> None:
    for file in bundled_scenarios().values():
        # As an editor sees it: references not expanded, defaults not filled in.
        text = file.read_text(encoding="utf-8").replace("${", "$${")
        VALIDATOR.validate(plain_values(read_yaml(text, {}).tree))


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(SCENARIOS)
def test_what_the_loader_accepts_the_schema_accepts(written: dict[str, Any]) -> None:
    VALIDATOR.validate(written)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("load.rate", "4"),
        ("load.rate", 4),
        ("load.duration", 60),
        ("load.duration", "5 sec"),
        ("load.duraton", "1s"),
        ("load.arrivals", "posson"),
        ("load.concurrency", 0),
        ("load.concurrency", "many"),
        ("slo.ttft.p9x", "1s"),
        ("slo.ttft.p95", 500),
        ("slo.errors", 0.01),
        ("slo.tttft", {"p95": "1s"}),
        ("workload.kind", "syntetic"),
        ("workload.output_tokens", -1),
        ("workload.output_tokens", "many"),
        ("target.stream", "maybe"),
        ("cost", {"per_hour": 3.5}),
        ("instrument", {"workers": 0}),
        ("matrix", {"load.rate": 3}),
        ("target.headers", {"a": []}),
        ("workloads", []),
        ("seed", -1),
    ],
)
def test_what_the_loader_refuses_in_one_key_the_schema_refuses(path: str, wrong: object) -> None:
    VALIDATOR.validate(GOOD)
    tree = copy.deepcopy(GOOD)
    *parents, key = path.split(".", 2)
    below = tree
    for parent in parents:
        below = below[parent]
    below[key] = wrong
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(tree)


def test_any_typed_value_may_come_from_the_environment() -> None:
    tree = copy.deepcopy(GOOD)
    tree["load"].update(concurrency="${N:-4}", warmup="${W}", arrivals="${KIND}")
    tree["target"]["stream"] = "${STREAM:-true}"
    VALIDATOR.validate(tree)


def test_every_key_has_a_description_and_defaults_carry_units() -> None:
    for path, schema in keys_of(SCHEMA):
        assert schema.get("description"), path
    load = SCHEMA["$defs"]["Load"]["properties"]
    assert load["warmup"]["default"] == "0s"
    assert load["max_in_flight"]["default"] == 512
    assert SCHEMA["$defs"]["Target"]["properties"]["timeout"]["default"] == "120s"
    assert "p95" in SCHEMA["$defs"]["Slo"]["properties"]["ttft"]["properties"]


def test_what_this_version_refuses_is_not_offered() -> None:
    workload = SCHEMA["$defs"]["Workload"]["properties"]
    (kinds,) = [item["enum"] for item in workload["kind"]["anyOf"] if "enum" in item]
    assert set(kinds) == set(IMPLEMENTED_WORKLOADS)
    for entry in NOT_YET:
        *parents, key = entry.key.split(".")
        owner = SCHEMA["$defs"][parents[0].title()] if parents else SCHEMA
        if entry.value is None:
            assert f"Not in this version; {entry.instead}." in owner["properties"][key]["description"]


def keys_of(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, definition in {"": schema, **schema["$defs"]}.items():
        bodies = definition.get("anyOf", [definition])
        for body in bodies:
            for key, below in body.get("properties", {}).items():
                yield f"{name}.{key}", below
