"""Settings of the mock read from text (flags) or JSON (the body key `mock`): a reader for each kind of
value.

Every reader takes what the user wrote and returns the typed value, or raises ValueError with a sentence
that says what is accepted. A duration is a number of seconds in JSON; as text it must carry its unit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

Reader = Callable[[object], object]

FOREVER_S = math.inf
LONGEST_S = 86_400.0
SHORTEST_S = 0.001
MOST = 1_000_000_000
_MOST_DIGITS = 25
_LAST_PORT = 65_535
_LAST_STATUS = 599
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*(ns|us|µs|ms|s|m|h)?")


def duration_s(value: object) -> float:
    """Seconds, from a number of seconds or from text such as `200ms`, `1.5s`, `2m`, `0`, `forever`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not value >= 0:
            raise ValueError(f"{value} is no duration: it must be 0 or more seconds")
        return float(value)
    text = str(value).strip()
    if text == "forever":
        return FOREVER_S
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no duration: write for example 200ms, 1.5s or 2m")
    number, unit = float(match[1]), match[2]
    if unit is None and number:
        raise ValueError(f"{text!r} has no unit: write {text}ms or {text}s")
    return number * _UNIT_S[unit or "s"]


def finite_s(value: object) -> float:
    """A duration that ends: at most a day."""
    seconds = duration_s(value)
    if seconds > LONGEST_S:
        raise ValueError(f"{value!r} is too long: at most 24h")
    return seconds


def finite_or_forever_s(value: object) -> float:
    """A duration of at most a day, or `forever`."""
    return FOREVER_S if value in ("forever", FOREVER_S) else finite_s(value)


def positive_s(value: object) -> float:
    """A duration between a millisecond and a day, for what happens again and again."""
    seconds = finite_s(value)
    if seconds < SHORTEST_S:
        raise ValueError(f"{value!r} is too short: at least 1ms")
    return seconds


def delay(value: object) -> tuple[float, float]:
    """(mean in seconds, sigma in log space) from a duration (sigma 0) or `lognormal:MEAN:SIGMA`."""
    if isinstance(value, str) and value.startswith("lognormal:"):
        parts = value.split(":")
        if len(parts) != 3:
            raise ValueError(f"{value!r}: write lognormal:MEAN:SIGMA, for example lognormal:200ms:0.5")
        return finite_s(parts[1]), sigma(parts[2])
    return finite_s(value), 0.0


def whole(minimum: int, maximum: int = MOST) -> Callable[[object], int]:
    """A reader of whole numbers from `minimum` to `maximum`."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not re.fullmatch(r"\s*[+-]?\d+\s*", str(value)):
            raise ValueError(f"{value!r} is no whole number")
        written = str(value).strip()
        if len(written) > _MOST_DIGITS:
            raise ValueError(f"{written[:_MOST_DIGITS]}… is out of range: {minimum} to {maximum:,}")
        result = int(written)
        if not minimum <= result <= maximum:
            raise ValueError(f"{result} is out of range: {minimum} to {maximum:,}")
        return result

    return read


def port(value: object) -> int:
    """A TCP port; 0 asks for a free one."""
    result = whole(0)(value)
    if result > _LAST_PORT:
        raise ValueError(f"{result} is no port: 1 to {_LAST_PORT}, or 0 for a free one")
    return result


def status(lowest: int, *, what: str) -> Callable[[object], int]:
    """A reader of HTTP statuses from `lowest` on, three digits; `what` names them in the message."""

    def read(value: object) -> int:
        result = whole(0)(value)
        if not lowest <= result <= _LAST_STATUS:
            raise ValueError(f"{result} is no HTTP status of {what}: {lowest} to {_LAST_STATUS}")
        return result

    return read


def number(minimum: float, maximum: float) -> Callable[[object], float]:
    """A reader of numbers from `minimum` to `maximum`."""

    def read(value: object) -> float:
        try:
            result = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"{value!r} is no number") from None
        if not minimum <= result <= maximum:  # NaN is not between them either
            raise ValueError(f"{value!r} is out of range: {minimum:,g} to {maximum:,g}")
        return result

    return read


def sigma(value: object) -> float:
    """The spread of a lognormal delay; 5 is a factor of 150 already."""
    return number(0.0, 5.0)(value)


def share(value: object) -> float:
    """A share between 0 and 1, from a number or from text such as `5%`."""
    text = str(value).strip()
    try:
        return number(0.0, 100.0)(text[:-1]) / 100 if text.endswith("%") else number(0.0, 1.0)(text)
    except ValueError:
        raise ValueError(f"{text!r} is no share: 0% to 100%, or 0 to 1") from None


def boolean(value: object) -> bool:
    """A truth value, as JSON or as text."""
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise ValueError(f"{value!r} is neither true nor false")


def text(value: object) -> str:
    """Text, as it is."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is no text")
    return value


def one_of(*choices: str) -> Callable[[object], str]:
    """A reader that accepts one of the given words."""

    def read(value: object) -> str:
        if value not in choices:
            raise ValueError(f"{value!r} is unknown: one of {', '.join(choices)}")
        return str(value)

    return read


def several(reader: Callable[[object], object]) -> Callable[[object], tuple[object, ...]]:
    """A reader of one value or a list of them, kept as a tuple."""

    def read(value: object) -> tuple[object, ...]:
        items = value if isinstance(value, (list, tuple)) else [value]
        return tuple(reader(item) for item in items)

    return read


def optional(reader: Callable[[object], object]) -> Reader:
    """The same reader, which also lets None through (JSON null: not set)."""
    return lambda value: None if value is None else reader(value)
