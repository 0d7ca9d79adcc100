"""Quantities as people write them: `500ms`, `8/s`, `95%`, `3.50 USD`; parsed exactly and written back.

Inside llmbench a duration is a float in seconds, a rate a float per second, a share a float from 0 to 1.
Parsing goes through exact fractions, so `500ms` and `0.5s` are the same float; writing back is lossless:
`parse_duration(format_duration(x)) == x`, and likewise for rates and shares.

Every parser raises `ValueError` whose text says what is wrong and what to write instead.
"""

# ruff: noqa: TRY004  (validators raise ValueError for wrong types too: pydantic collects only that)

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Literal, NamedTuple

NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_MAX_TEXT = 64  # no quantity needs more; keeps exact arithmetic on hostile input cheap

DURATION_UNITS: dict[str, Fraction] = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),  # U+00B5, the micro sign of most keyboards
    "μs": Fraction(1, 10**6),  # U+03BC, the Greek letter
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
    "m": Fraction(60),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
RATE_UNITS: dict[str, Fraction] = {
    "s": Fraction(1),
    "m": Fraction(60),
    "min": Fraction(60),
    "h": Fraction(3600),
}

_BARE = re.compile(rf"\s*({NUMBER})\s*")
_DURATION_PART = re.compile(rf"\s*({NUMBER})\s*([A-Za-zµμ]+)")
_RATE = re.compile(rf"\s*({NUMBER})\s*/\s*([A-Za-z]+)\s*")
_RATE_WORDS = re.compile(
    rf"\s*({NUMBER})\s*(?:rps|qps|hz|(?:req|reqs|request|requests)\s*/\s*s(?:ec)?)\s*", re.IGNORECASE
)
_SHARE = re.compile(rf"\s*({NUMBER})\s*%\s*")
_MONEY = re.compile(rf"\s*({NUMBER})\s*([A-Z]{{3}})\s*")
_MONEY_LOOSE = re.compile(rf"\s*[$€£]?\s*({NUMBER})\s*([A-Za-z$€£]*)\s*")

Scale = Literal["ms", "s"]


class Money(NamedTuple):
    """An amount in one currency, given by its ISO 4217 code."""

    amount: float
    currency: str


def bare_number(value: object) -> float | None:
    """The number when `value` is one without a unit (a number, or text that is only a number), else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if isinstance(value, str) and len(value) <= _MAX_TEXT and _BARE.fullmatch(value):
        return float(value)
    return None


def parse_duration(value: object, scale: Scale = "s") -> float:
    """Seconds of `500ms`, `2s`, `1m30s`. `scale` only chooses the unit that a remedy proposes first."""
    bare = bare_number(value)
    if bare is not None:
        raise ValueError(f"no unit; write {_duration_remedy(bare, scale)}")
    text = _text(value, "a duration such as 500ms, 2s or 1m")
    total, end = Fraction(0), 0
    while end < len(text):
        part = _DURATION_PART.match(text, end)
        if part is None:
            raise ValueError("not a duration; write 500ms, 2s, 1m or 1h")
        if part[2] not in DURATION_UNITS:
            raise ValueError(f"unknown unit {part[2]}; write ns, us, ms, s, m or h, as in 500ms")
        total += _exact(part[1]) * DURATION_UNITS[part[2]]
        end = part.end()
    return _not_negative(total, "a duration")


def parse_latency(value: object) -> float:
    """A duration whose usual scale is milliseconds (limits on latencies)."""
    return parse_duration(value, scale="ms")


def parse_rate(value: object, what: str = "requests") -> float:
    """Events per second of `8/s`, `30/m`, `100/h`; `what` is counted (only for the remedy's words)."""
    bare = bare_number(value)
    if bare is not None:
        raise ValueError(f"no unit; write {_short(bare)}/s ({what} per second)")
    text = _text(value, "a rate such as 8/s or 30/m")
    match = _RATE.fullmatch(text)
    if match is None:
        loose = _RATE_WORDS.fullmatch(text)
        raise ValueError(
            f"not a rate; write {loose[1]}/s" if loose else "not a rate; write 8/s, 30/m or 100/h"
        )
    if match[2] not in RATE_UNITS:
        raise ValueError(f"unknown unit /{match[2]}; write {match[1]}/s, {match[1]}/m or {match[1]}/h")
    return _not_negative(_exact(match[1]) / RATE_UNITS[match[2]], "a rate")


def parse_share(value: object) -> float:
    """The share (0 to 1) of `95%`."""
    bare = bare_number(value)
    if bare is not None:
        percent = bare * 100 if 0 < bare < 1 else bare
        raise ValueError(f"no unit; write {_short(percent)}%")
    text = _text(value, "a share such as 95%")
    match = _SHARE.fullmatch(text)
    if match is None:
        raise ValueError("not a share; write 95% or 0.5%")
    share = _not_negative(_exact(match[1]) / 100, "a share")
    if share > 1:
        raise ValueError("a share is at most 100%")
    return share


def parse_money(value: object) -> Money:
    """The amount and currency of `3.50 USD`."""
    bare = bare_number(value)
    if bare is not None:
        raise ValueError(f"no currency; write {_short(bare)} USD")
    text = _text(value, "an amount such as 3.50 USD")
    match = _MONEY.fullmatch(text)
    if match is None:
        loose = _MONEY_LOOSE.fullmatch(text)
        raise ValueError(
            f"not an amount; write {loose[1] if loose else '3.50'} USD (amount, then currency code)"
        )
    return Money(_not_negative(_exact(match[1]), "a price"), match[2])


def format_duration(seconds: float) -> str:
    """The shortest usual spelling that `parse_duration` reads back as the same float."""
    exact = Decimal(repr(seconds))
    if exact == 0:
        return "0s"
    if seconds > 120:
        for unit, factor in (("h", 3600), ("m", 60)):
            if exact % factor == 0:
                return f"{_plain(exact / factor)}{unit}"
    if exact == exact.to_integral_value() or exact >= 1:
        return f"{_plain(exact)}s"
    for unit, factor in (("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        if exact * factor >= 1:
            return f"{_plain(exact * factor)}{unit}"
    return f"{seconds!r}s"


def format_rate(per_second: float) -> str:
    """The shortest usual spelling that `parse_rate` reads back as the same float."""
    spelling = f"{_plain(Decimal(repr(per_second)))}/s"
    if len(spelling) <= 8:
        return spelling
    for unit, factor in (("m", 60), ("h", 3600)):
        candidate = f"{_short(round(per_second * factor, 6))}/{unit}"
        if len(candidate) < len(spelling) and parse_rate(candidate) == per_second:
            return candidate
    return spelling


def format_share(share: float) -> str:
    """`95%` for 0.95; `parse_share` reads back the same float."""
    return f"{_plain(Decimal(repr(share)).scaleb(2))}%"


def format_money(money: Money) -> str:
    """`3.50 USD`: two decimals where they say it all, else as many as needed."""
    two = f"{money.amount:.2f}"
    return f"{two if float(two) == money.amount else _plain(Decimal(repr(money.amount)))} {money.currency}"


def _text(value: object, expected: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"not {expected}")
    if len(value) > _MAX_TEXT or not value.strip():
        raise ValueError(f"write {expected}")
    return value.strip()


def _exact(number: str) -> Fraction:
    return Fraction(Decimal(number))


def _not_negative(exact: Fraction, what: str) -> float:
    if exact < 0:
        raise ValueError(f"{what} cannot be negative")
    try:
        return float(exact)
    except OverflowError:
        raise ValueError("too large") from None


def _duration_remedy(number: float, scale: Scale) -> str:
    if not math.isfinite(number) or number < 0:
        return "500ms, 2s or 1m"
    if number < 1:
        return f"{_short(number)}s or {_short(number * 1000)}ms"
    if scale == "ms":
        return f"{_short(number)}ms or {_short(number / 1000)}s"
    return f"{_short(number)}s or {_short(number / 60)}m" if number % 60 == 0 else f"{_short(number)}s"


def _short(number: float) -> str:
    return f"{number:.12g}"


def _plain(number: Decimal) -> str:
    """Digits without an exponent where that stays short, and without trailing zeros."""
    normal = number.normalize()
    plain = f"{normal:f}"
    return plain if len(plain) <= 20 else str(normal)
