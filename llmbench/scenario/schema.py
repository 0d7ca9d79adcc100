"""The JSON Schema (2020-12) of the scenario file, for editors: completion, hover texts, units, unknown keys.

It says what one key may hold. What keys need of each other (a closed loop needs a concurrency), and what this
version cannot do, is checked by `llmbench check` alone.
"""

from __future__ import annotations

from typing import Any

from llmbench.scenario.distributions import EmpiricalLength, LengthDistribution, TimeDistribution
from llmbench.scenario.fields import DURATION_PATTERN
from llmbench.scenario.frozen import Frozen
from llmbench.scenario.keys import types_of
from llmbench.scenario.model import Scenario
from llmbench.scenario.not_yet import NOT_YET, values_not_yet

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCE = {"$ref": "#/$defs/FromEnvironment"}
_LEAVES = ("integer", "number", "boolean")
_COUNT = {"type": "integer", "minimum": 0}
_SHORTHANDS: dict[type[Frozen], dict[str, Any]] = {
    LengthDistribution: {**_COUNT, "description": "Always this many tokens."},
    TimeDistribution: {"type": "string", "pattern": DURATION_PATTERN, "description": "Always this long."},
    EmpiricalLength: {
        "type": "array",
        "items": _COUNT,
        "minItems": 1,
        "description": "Lengths, equally likely.",
    },
}
_COMMON_STATS = ("p50", "p90", "p95", "p99", "p999", "mean", "max")


def json_schema() -> dict[str, Any]:
    """The schema as plain JSON."""
    raw = Scenario.model_json_schema(by_alias=True)
    definitions = raw.pop("$defs")
    for model in types_of(Scenario):
        schema = raw if model is Scenario else definitions[model.__name__]
        _write_defaults(schema, model)
        schema["title"] = model.__name__
    for model, shorthand in _SHORTHANDS.items():
        spelled_out = definitions[model.__name__]
        description = spelled_out.pop("description")
        definitions[model.__name__] = {"description": description, "anyOf": [shorthand, spelled_out]}
    _mark_what_is_not_there_yet(raw, definitions)
    _accept_one_workload(raw)
    definitions["FromEnvironment"] = {
        "type": "string",
        "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^{}]*)?\}",
        "description": "Taken from the environment: ${VAR} or ${VAR:-default}.",
    }
    head = {"$schema": _DIALECT, "title": "llmbench scenario", "description": raw.pop("description")}
    from_environment = definitions.pop("FromEnvironment")
    rest: dict[str, Any] = _accept_references({**raw, "$defs": definitions})
    rest["$defs"]["FromEnvironment"] = from_environment
    return {**head, **{key: value for key, value in rest.items() if key != "title"}}


def _write_defaults(schema: dict[str, Any], model: type[Frozen]) -> None:
    """Defaults in the file's own words, and no titles that only repeat the key."""
    defaults = model.model_construct().model_dump(
        mode="json", by_alias=True, exclude_none=True, warnings=False
    )
    for key, below in schema.get("properties", {}).items():
        below.pop("title", None)
        below.pop("default", None)
        if defaults.get(key) not in (None, {}, []) and not isinstance(defaults[key], dict):
            below["default"] = defaults[key]
        patterns = below.get("patternProperties")
        if patterns:  # statistics: known names to complete, the pattern for the rest
            limit = next(iter(patterns.values()))
            below["properties"] = dict.fromkeys(_COMMON_STATS, limit)
            below["additionalProperties"] = False


def _mark_what_is_not_there_yet(schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Words that are refused are not offered; keys that are refused say so in their description."""
    for entry in NOT_YET:
        *parents, key = entry.key.split(".")
        owner = definitions[parents[0].title()] if parents else schema
        below = owner["properties"][key]
        if entry.value is None:
            below["description"] += f" Not in this version; {entry.instead}."
        else:
            below["enum"] = [word for word in below["enum"] if word not in values_not_yet(entry.key)]


def _accept_one_workload(schema: dict[str, Any]) -> None:
    workload = {
        "$ref": "#/$defs/Workload",
        "description": "What is asked; or workloads: a list, mixed by weight.",
    }
    properties = {}
    for key, below in schema["properties"].items():
        if key == "workloads":
            properties["workload"] = workload
        properties[key] = below
    schema["properties"] = properties
    schema["required"] = [key for key in schema["required"] if key != "workloads"]
    schema["oneOf"] = [{"required": ["workload"]}, {"required": ["workloads"]}]


def _accept_references(node: Any) -> Any:
    """Every typed value may also be a `${VAR}`."""
    if isinstance(node, list):
        return [_accept_references(item) for item in node]
    if not isinstance(node, dict):
        return node
    is_schema = isinstance(node.get("type"), str) or "enum" in node or "const" in node
    if is_schema and (node.get("type") in _LEAVES or {"enum", "const", "pattern"} & set(node)):
        about = {key: node[key] for key in ("description", "default", "examples") if key in node}
        typed = {key: value for key, value in node.items() if key not in about}
        return {**about, "anyOf": [typed, _REFERENCE]}
    return {key: _accept_references(value) for key, value in node.items()}
