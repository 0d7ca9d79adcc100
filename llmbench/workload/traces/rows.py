"""Reading a file of rows: text, numbered lines, and every broken one told by its line."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

from llmbench.errors import UsageError
from llmbench.workload.lengths import MAX_TOKENS

MAX_NAMED_ROWS = 10
NS_PER_S = 1_000_000_000
_MAX_TIMESTAMP = 10**15
_GZIP = b"\x1f\x8b"
_COUNT = re.compile(r"\d{1,18}", re.ASCII)
_DECIMAL = re.compile(r"(\d{1,15})(?:\.(\d{1,18}))?(?:[eE]\+?(\d{1,2}))?", re.ASCII)

RowT = TypeVar("RowT")


def read_text(path: Path, what: str) -> str:
    """The file's text, unpacked where it is gzip. UsageError names the file; `what` was expected."""
    try:
        content = path.read_bytes()
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start}); expected {what}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(f"{path}: not a whole gzip file ({error}); expected {what}") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """Line numbers from 1 and lines without their ends; blank lines are skipped."""
    for number, line in enumerate(text.split("\n"), start=1):
        if stripped := line.strip():
            yield number, stripped


def parse_rows(
    lines: Iterator[tuple[int, str]], parse: Callable[[str], RowT | None], path: str
) -> list[RowT]:
    """Every line parsed; None leaves a line out. ValueErrors are told together, ten lines at most."""
    rows: list[RowT] = []
    broken: list[str] = []
    for number, line in lines:
        try:
            row = parse(line)
        except ValueError as error:
            broken.append(f"{path} line {number}: {error}")
            continue
        if row is not None:
            rows.append(row)
    if broken:
        named = broken[:MAX_NAMED_ROWS]
        if len(broken) > len(named):
            named.append(f"and {len(broken) - len(named):,} more broken rows")
        raise UsageError("\n".join(named))
    return rows


@dataclass(slots=True)
class InOrder:
    """Refuses a row that is earlier than the one before it."""

    column: str
    latest_ns: int = -(2**63)

    def check(self, at_ns: int) -> int:
        """The instant itself. Raises ValueError."""
        if at_ns < self.latest_ns:
            raise ValueError(f"earlier than the row before it; sort the file by {self.column}")
        self.latest_ns = at_ns
        return at_ns


def header_problem(path: str, number: int, found: str, expected: str) -> UsageError:
    """What a first line should have been."""
    return UsageError(f"{path} line {number}: the header is {shown(found, 80)}; expected {expected}")


def shown(text: str, most: int = 40) -> str:
    """A value in a message, quoted and not too long."""
    return repr(text if len(text) <= most else text[: most - 3] + "...")


def token_count(column: str, cell: str) -> int:
    """A length in tokens. Raises ValueError."""
    value = int(cell) if _COUNT.fullmatch(cell) else 0
    if not 1 <= value <= MAX_TOKENS:
        raise ValueError(f"{column} is {shown(cell)}; expected a whole number from 1 to {MAX_TOKENS:,}")
    return value


def whole_tokens(key: str, value: Any) -> int:
    """A length in tokens, as JSON holds it. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKENS:
        raise ValueError(f"{key} is {shown(str(value))}; expected a whole number from 1 to {MAX_TOKENS:,}")
    return value


def is_instant(value: Any) -> bool:
    """Whether a JSON value is a time that can be meant."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MAX_TIMESTAMP


def json_object(line: str, needed: Sequence[str], example: str) -> dict[str, Any]:
    """The object of a line, with the keys that it needs. Raises ValueError."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} (column {error.colno})") from None
    if not isinstance(row, dict):
        raise ValueError(f"not a JSON object; expected like {example}")  # noqa: TRY004 - a line's mistake
    if missing := [key for key in needed if key not in row]:
        raise ValueError(f"no {', '.join(missing)}; expected like {example}")
    return row


def decimal_ns(column: str, cell: str, ns_a_unit: int = NS_PER_S) -> int:
    """A decimal number of seconds (or milliseconds: `ns_a_unit` 10**6) in nanoseconds, exactly: a float would
    lose the last digits. Raises ValueError.
    """
    match = _DECIMAL.fullmatch(cell)
    if match is None:
        raise ValueError(f"{column} is {shown(cell)}; expected a number, not negative")
    digits, fraction, exponent = match[1], match[2] or "", int(match[3] or 0)
    scaled: int = int(digits + fraction) * ns_a_unit * 10**exponent
    return scaled // int(10 ** len(fraction))
