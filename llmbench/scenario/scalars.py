"""Plain YAML scalars by the core schema of YAML 1.2.

Only `true` and `false` are truth values (`on`, `no`, `y` stay text), `1e3` is a number, `010` is ten, `12:30`
and `2026-01-01` are text. Numbers remember how they were written, so that a name such as `0123` survives.
"""

from __future__ import annotations

import re
from typing import Any

_INT = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_MAX_DIGITS = 400  # beyond any double; int() of longer digit strings is refused by Python itself
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **{sign + word: float(sign + "inf") for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")},
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


class WrittenInt(int):
    """A whole number that knows its spelling."""

    written: str


class WrittenFloat(float):
    """A number that knows its spelling."""

    written: str


def resolve_plain(text: str) -> bool | int | float | str | None:
    """The value of an unquoted scalar."""
    if text in _WORDS:
        value: bool | float | None = _WORDS[text]
        return value
    if len(text) > _MAX_DIGITS:
        return text
    if _INT.fullmatch(text):
        whole = WrittenInt(text.replace("_", ""))
        whole.written = text
        return whole
    if _OTHER_BASE.fullmatch(text):
        whole = WrittenInt(text, 0)
        whole.written = text
        return whole
    if _FLOAT.fullmatch(text):
        number = WrittenFloat(text.replace("_", ""))
        number.written = text
        return number
    return text


def spelling(value: object) -> str | None:
    """How a number was written, where that is known."""
    return value.written if isinstance(value, WrittenInt | WrittenFloat) else None


def plain_values(value: Any) -> Any:
    """The same tree in ordinary ints and floats."""
    if isinstance(value, dict):
        return {key: plain_values(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(item) for item in value]
    if isinstance(value, WrittenInt):
        return int(value)
    return float(value) if isinstance(value, WrittenFloat) else value
