"""Field types that are more than a quantity: engine options, headers, bodies, ramps, and the like."""

# ruff: noqa: TRY004  (validators raise ValueError for wrong types too: pydantic collects only that)

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    PlainSerializer,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
)

from llmbench.scenario import units
from llmbench.scenario.address import parse_address
from llmbench.scenario.fields import (
    RATE_PATTERN,
    is_from_file,
    parse_count,
    parse_flag,
    parse_stat,
    parse_text,
)
from llmbench.scenario.masking import MASK, MaskedDict
from llmbench.scenario.objectives import LATENCY_METRICS
from llmbench.scenario.scalars import plain_values

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FRAMING_HEADERS = ("content-length", "transfer-encoding", "connection", "host")
_OPTION_NAME = re.compile(r"[a-z][a-z0-9_]*")
_NAME = re.compile(r"[^\W_][\w .+-]{0,99}")
_AMBIGUOUS = frozenset({"yes", "no", "on", "off", "y", "n"})
_BODY_KEYS_SET_ELSEWHERE = {
    "model": "target.model",
    "stream": "target.stream",
    "ignore_eos": "target.ignore_eos",
    "messages": "workload",
    "prompt": "workload",
    "input": "workload",
    "max_tokens": "workload.output_tokens",
    "max_completion_tokens": "workload.output_tokens",
    "max_output_tokens": "workload.output_tokens",
}


class RampTo(NamedTuple):
    """Where a ramp ends: at a rate (open loop) or at a concurrency (closed loop)."""

    rate_per_s: float | None
    concurrency: int | None


def _read_ramp(value: object, info: ValidationInfo) -> RampTo:
    if isinstance(value, RampTo):
        return value
    if isinstance(value, float) and not is_from_file(info):
        return RampTo(value, None)
    if isinstance(value, str) and units.bare_number(value) is None:
        return RampTo(units.parse_rate(value), None)
    count = parse_count(value)
    if count < 0:
        raise ValueError("must be 0 or more")
    return RampTo(None, count)


def _write_ramp(ramp: RampTo) -> str | int | None:
    return units.format_rate(ramp.rate_per_s) if ramp.rate_per_s is not None else ramp.concurrency


def _read_name(value: object) -> str:
    name = parse_text(value).strip()
    if not _NAME.fullmatch(name):
        raise ValueError("write letters, digits, blanks and . _ + - (at most 100; it names the run folder)")
    return name


def normalized_name(text: str) -> str:
    """`text` with what a name cannot hold replaced, so that any file has a name."""
    name = re.sub(r"[^\w .+-]+", "-", text).lstrip("_ .+-").rstrip()[:100]
    return name or "scenario"


class KeyProblems(ValueError):
    """What is wrong with single keys of a free mapping: (key, text) pairs."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{key}: {text}" for key, text in problems))
        self.problems = problems


def _each_key(value: object, example: str, check: Callable[[str, Any], None]) -> dict[str, Any]:
    """The mapping in ordinary values; raises `KeyProblems` with every key that `check` refuses."""
    if not isinstance(value, Mapping):
        raise ValueError(f"write a mapping, as in {example}")
    problems: list[tuple[str, str]] = []
    for key, item in value.items():
        try:
            check(str(key), item)
        except ValueError as error:
            problems.append((str(key), str(error)))
    if problems:
        raise KeyProblems(problems)
    return {str(key): plain_values(item) for key, item in value.items()}


def _check_engine_option(key: str, item: object) -> None:
    if not _OPTION_NAME.fullmatch(key):
        fixed = re.sub(r"[^a-z0-9]+", "_", key.lower()).strip("_") or "model"
        raise ValueError(f"options are spelled with _; write {fixed}")
    if not isinstance(item, str | int | float):
        raise ValueError("must be text, a number, true or false")
    _refuse_ambiguous(item)
    _refuse_non_json(item)


def _refuse_ambiguous(item: object) -> None:
    if isinstance(item, str) and item.lower() in _AMBIGUOUS:
        meant = "true" if item.lower() in ("yes", "on", "y") else "false"
        raise ValueError(f"is text in YAML 1.2 and a truth value in 1.1; write {meant}")


def _refuse_non_json(item: object) -> None:
    try:
        json.dumps(item, allow_nan=False).encode("utf-8")
        json.dumps(item, allow_nan=False, ensure_ascii=False).encode("utf-8")
    except (TypeError, ValueError, RecursionError):
        raise ValueError(
            "holds what JSON cannot say (a non-finite number, a date, half a character)"
        ) from None


def _check_body_key(key: str, item: object) -> None:
    if key in _BODY_KEYS_SET_ELSEWHERE:
        raise ValueError(f"is set by {_BODY_KEYS_SET_ELSEWHERE[key]}, not here")
    _refuse_ambiguous(item)
    _refuse_non_json({key: item})


def _read_engine(value: object) -> dict[str, Any]:
    return _each_key(value, "{model: tiny}", _check_engine_option)


def _read_body(value: object) -> dict[str, Any]:
    return _each_key(value, "{temperature: 0}", _check_body_key)


def _read_headers(value: object) -> dict[str, str]:
    seen: set[str] = set()

    def check(name: str, item: object) -> None:
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError("a header's name holds letters, digits and -, nothing else")
        if name.lower() in _FRAMING_HEADERS:
            raise ValueError("is set for each request; remove it")
        if name.lower() in seen:
            raise ValueError("is given twice (names of headers ignore case)")
        seen.add(name.lower())
        header_value(item)

    _each_key(value, "{X-Tenant: a}", check)
    return {str(name): header_value(item) for name, item in dict(value).items()}  # type: ignore[call-overload]


def header_value(value: object) -> str:
    """Text that may stand in a header; the message never repeats it, since it may be secret."""
    text = parse_text("" if value is None else value).strip()
    if any(ord(character) < 32 or ord(character) > 255 for character in text):
        raise ValueError("holds a line end or a character that no header can carry")
    return text


def _read_api_key(value: object) -> SecretStr:
    if isinstance(value, SecretStr):
        return value
    text = header_value(value)
    if " " in text:
        raise ValueError("holds a blank; write the key alone, without Bearer")
    return SecretStr(text)


def _read_server_metrics(value: object) -> str | bool:
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    if isinstance(value, str) and "://" in value:
        return parse_address(value).text
    try:
        return parse_flag(value)
    except ValueError:
        raise ValueError("write auto, true, false or the URL of a metrics page") from None


def _read_auto_flag(value: object) -> str | bool:
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    try:
        return parse_flag(value)
    except ValueError:
        raise ValueError("write auto, true or false") from None


def _read_workers(value: object) -> str | int:
    if isinstance(value, str) and value.strip().lower() == "auto":
        return "auto"
    count = parse_count(value)
    if not 1 <= count <= 1024:
        raise ValueError("write auto or 1 to 1024")
    return count


def _read_tls_verify(value: object) -> str | bool:
    try:
        return parse_flag(value)
    except ValueError:
        if isinstance(value, str) and value.strip():
            return value
        raise ValueError("write true, false or the path of a CA file") from None


def _check_until(key: str, item: object) -> None:
    if key == "at_most":
        units.parse_duration(item)
        return
    metric, _, stat = key.partition(".")
    if metric not in LATENCY_METRICS or not stat:
        raise ValueError("write at_most, or a metric and a statistic, as in ttft.p95")
    parse_stat(stat)
    units.parse_share(item.strip().removeprefix("±") if isinstance(item, str) else item)


def _read_until(value: object) -> dict[str, str]:
    return _each_key(value, "{ttft.p95: ±5%, at_most: 10m}", _check_until)


def _check_matrix(_: str, items: object) -> None:
    if not isinstance(items, list | tuple) or not items:
        raise ValueError("needs a list of values, as in [1, 8, 64]")
    _refuse_non_json(items)


def _read_matrix(value: object) -> dict[str, tuple[Any, ...]]:
    paths = _each_key(value, "{load.concurrency: [1, 8]}", _check_matrix)
    return {key: tuple(items) for key, items in paths.items()}


def _one_of(*options: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": list(options)}, mode="validation")


_OBJECT = {"type": "object"}
_AUTO = {"const": "auto"}

Name = Annotated[str, BeforeValidator(_read_name), WithJsonSchema({"type": "string", "minLength": 1})]
Ramp = Annotated[
    RampTo,
    BeforeValidator(_read_ramp),
    PlainSerializer(_write_ramp, when_used="json"),
    _one_of({"type": "string", "pattern": RATE_PATTERN}, {"type": "integer", "minimum": 0}),
]
EngineOptions = Annotated[
    dict[str, str | bool | int | float],
    BeforeValidator(_read_engine),
    WithJsonSchema({**_OBJECT, "additionalProperties": {"type": ["string", "number", "boolean"]}}),
]
Body = Annotated[
    dict[str, Any], BeforeValidator(_read_body), AfterValidator(MaskedDict), WithJsonSchema(_OBJECT)
]
Headers = Annotated[
    dict[str, str],
    BeforeValidator(_read_headers),
    AfterValidator(MaskedDict),
    WithJsonSchema({**_OBJECT, "additionalProperties": {"type": ["string", "number", "boolean", "null"]}}),
]
ApiKey = Annotated[
    SecretStr,
    BeforeValidator(_read_api_key),
    PlainSerializer(lambda _: MASK, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string"}),
]
Url = Annotated[
    str, BeforeValidator(lambda value: parse_address(value).text), WithJsonSchema({"type": "string"})
]
ServerMetrics = Annotated[
    str | bool, BeforeValidator(_read_server_metrics), _one_of({"type": "boolean"}, {"type": "string"})
]
AutoFlag = Annotated[str | bool, BeforeValidator(_read_auto_flag), _one_of(_AUTO, {"type": "boolean"})]
Workers = Annotated[
    str | int,
    BeforeValidator(_read_workers),
    _one_of(_AUTO, {"type": "integer", "minimum": 1, "maximum": 1024}),
]
TlsVerify = Annotated[
    str | bool, BeforeValidator(_read_tls_verify), _one_of({"type": "boolean"}, {"type": "string"})
]
Until = Annotated[
    dict[str, str],
    BeforeValidator(_read_until),
    WithJsonSchema({**_OBJECT, "additionalProperties": {"type": "string"}}),
]
Matrix = Annotated[
    dict[str, tuple[Any, ...]],
    BeforeValidator(_read_matrix),
    WithJsonSchema({**_OBJECT, "additionalProperties": {"type": "array", "minItems": 1}}),
]
