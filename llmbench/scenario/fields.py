"""The field types of the scenario: each reads what people write and carries its own part of the JSON Schema.

A validation with `context={"file": True}` is strict about units (a bare `60` where a duration belongs is an
error); Python code that builds the models itself may pass plain floats in seconds, per second, or as shares.

Validators raise `ValueError` for wrong types too: pydantic collects that, and would let a `TypeError` escape.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, ValidationInfo, WithJsonSchema

from llmbench.scenario import units
from llmbench.scenario.scalars import spelling

FILE_CONTEXT: dict[str, bool] = {"file": True}
_LARGEST_COUNT = 10**12

DURATION_PATTERN = rf"^\s*({units.NUMBER}\s*(ns|us|µs|μs|ms|s|m|min|h|d)\s*)+$"
RATE_PATTERN = rf"^\s*{units.NUMBER}\s*/\s*(s|m|min|h)\s*$"
SHARE_PATTERN = rf"^\s*{units.NUMBER}\s*%\s*$"
MONEY_PATTERN = rf"^\s*{units.NUMBER}\s*[A-Z]{{3}}\s*$"
STAT_PATTERN = r"^(p[0-9]{1,2}(\.[0-9]+)?|p999|mean|max)$"


def is_from_file(info: ValidationInfo) -> bool:
    """Whether the value comes from a scenario file (units needed) rather than from Python code."""
    return bool(isinstance(info.context, dict) and info.context.get("file"))


def _with_unit(parse: Callable[[object], float], largest: float = math.inf) -> BeforeValidator:
    def read(value: object, info: ValidationInfo) -> float:
        if not is_from_file(info) and isinstance(value, int | float) and not isinstance(value, bool):
            number = float(value)
            if not (math.isfinite(number) and 0 <= number <= largest):
                raise ValueError(
                    f"must be from 0 to {largest:g}" if largest < math.inf else "must be 0 or more"
                )
            return number
        return parse(value)

    return BeforeValidator(read)


def _positive(parse: Callable[[object], float], remedy: str) -> Callable[[object], float]:
    def read(value: object) -> float:
        number = parse(value)
        if number <= 0:
            raise ValueError(f"must be more than 0; write {remedy}")
        return number

    return read


def parse_number(value: object) -> float:
    """A finite number; text that is only a number counts."""
    number = units.bare_number(value)
    if number is None or not math.isfinite(number):
        raise ValueError("not a number" if number is None else "must be finite")
    return number


def parse_count(value: object) -> int:
    """A whole number; `1e3` and `1_000` count."""
    if isinstance(value, str):
        value = value.replace("_", "").strip()
    number = units.bare_number(value)
    if number is None:
        begins = re.match(r"[0-9]+(?=\s*[A-Za-z]+$)", value) if isinstance(value, str) else None
        raise ValueError(f"not a whole number; write {begins[0]}" if begins else "not a whole number")
    if not math.isfinite(number) or abs(number) > _LARGEST_COUNT:
        raise ValueError("too large")
    if number != int(number):
        raise ValueError(f"not a whole number; write {round(number)}")
    return int(number)


def _bounded_count(least: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        count = parse_count(value)
        if count < least:
            raise ValueError(f"must be {least} or more")
        return count

    return read


def _positive_number(value: object) -> float:
    number = parse_number(value)
    if number <= 0:
        raise ValueError("must be more than 0")
    return number


def _number_from_zero(value: object) -> float:
    number = parse_number(value)
    if number < 0:
        raise ValueError("must be 0 or more")
    return number


def parse_flag(value: object) -> bool:
    """`true` or `false`; YAML 1.1's yes, no, on and off are understood."""
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in ("true", "yes", "on"):
        return True
    if word in ("false", "no", "off"):
        return False
    raise ValueError("write true or false")


def parse_text(value: object) -> str:
    """Text; a number is taken as its digits."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return spelling(value) or str(value)
    raise ValueError("must be text")


def parse_stat(value: object) -> str:
    """A statistic: `p50`, `p99.5`, `p999` (99.9), `mean`, `max`; `p99.9` becomes `p999`."""
    text = str(value).strip().lower()
    if not re.fullmatch(STAT_PATTERN, text) or text.rstrip("0.") == "p":
        raise ValueError("unknown statistic; write p50, p90, p95, p99, p999, mean or max")
    return "p999" if text == "p99.9" else text


def _schema(kind: str, **more: Any) -> WithJsonSchema:
    return WithJsonSchema({"type": kind, **more}, mode="validation")


def _written(write: Callable[[float], str]) -> PlainSerializer:
    return PlainSerializer(write, return_type=str, when_used="json")


_DURATION = _schema("string", pattern=DURATION_PATTERN, examples=["500ms", "2s", "1m", "1h"])
_RATE = _schema("string", pattern=RATE_PATTERN, examples=["8/s", "30/m", "100/h"])
_SHARE = _schema("string", pattern=SHARE_PATTERN, examples=["95%", "1%"])

DurationS = Annotated[float, _with_unit(units.parse_duration), _DURATION, _written(units.format_duration)]
PositiveDurationS = Annotated[
    float, _with_unit(_positive(units.parse_duration, "30s")), _DURATION, _written(units.format_duration)
]
LatencyS = Annotated[
    float, _with_unit(_positive(units.parse_latency, "500ms")), _DURATION, _written(units.format_duration)
]
RatePerS = Annotated[
    float, _with_unit(_positive(units.parse_rate, "4/s")), _RATE, _written(units.format_rate)
]
RateFromZeroPerS = Annotated[float, _with_unit(units.parse_rate), _RATE, _written(units.format_rate)]
TokenRatePerS = Annotated[
    float,
    _with_unit(_positive(lambda value: units.parse_rate(value, "tokens"), "500/s")),
    _RATE,
    _written(units.format_rate),
]
Share = Annotated[float, _with_unit(units.parse_share, largest=1.0), _SHARE, _written(units.format_share)]
Count = Annotated[int, BeforeValidator(_bounded_count(1)), _schema("integer", minimum=1)]
CountFromZero = Annotated[int, BeforeValidator(_bounded_count(0)), _schema("integer", minimum=0)]
PositiveNumber = Annotated[float, BeforeValidator(_positive_number), _schema("number", exclusiveMinimum=0)]
NumberFromZero = Annotated[float, BeforeValidator(_number_from_zero), _schema("number", minimum=0)]
Flag = Annotated[bool, BeforeValidator(parse_flag)]
Text = Annotated[str, BeforeValidator(parse_text), _schema("string")]
Stat = Annotated[str, BeforeValidator(parse_stat), _schema("string", pattern=STAT_PATTERN)]


def _read_money(value: object) -> units.Money:
    if isinstance(value, units.Money):
        return value
    return units.parse_money(value)


MoneyAmount = Annotated[
    units.Money,
    BeforeValidator(_read_money),
    _schema("string", pattern=MONEY_PATTERN, examples=["3.50 USD"]),
    PlainSerializer(units.format_money, return_type=str, when_used="json"),
]
