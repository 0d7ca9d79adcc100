"""The Azure LLM inference trace of 2023: when requests came, how long they were, how long their answers.

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:15:46.6805900,374,44

Timestamps carry seven fractional digits (100 ns); a datetime would lose the last one, so they are parsed as
integers. Lines may end in CRLF or LF. There is no prompt text: prompts of these lengths are made up.

Source of the real files: github.com/Azure/AzurePublicDataset, CC-BY 4.0 (Patel et al., "Splitwise: Efficient
generative LLM inference using phase splitting", ISCA 2024).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from llmbench.errors import UsageError
from llmbench.workload.lengths import MAX_TOKENS

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
MAX_NAMED_ROWS = 10
_NS_PER_S = 1_000_000_000
_TIMESTAMP = re.compile(
    r"(\d{4}-\d{2}-\d{2})[ T]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?(?:Z|[+-]00:?00)?", re.ASCII
)
_COUNT = re.compile(r"\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Arrivals and lengths in columns of equal length, sorted by time.

    `offset_ns` counts from the first row of the file, or from the start that `prepared` was told.
    `num_file_rows` is what the file held; `notes` say in words what was left out or changed since.
    """

    path: str
    offset_ns: npt.NDArray[np.int64]
    input_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    num_file_rows: int
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.offset_ns)

    def prepared(
        self,
        *,
        start_s: float = 0.0,
        input_scale: float = 1.0,
        output_scale: float = 1.0,
        max_input: int | None = None,
        max_output: int | None = None,
    ) -> Trace:
        """The rows from `start_s` (seconds of the trace's own time) on, with lengths scaled, then clipped.

        Offsets count from `start_s` afterwards. Raises UsageError when no row is left.
        """
        first = int(np.searchsorted(self.offset_ns, round(start_s * _NS_PER_S), side="left"))
        if first == len(self):
            length_s = float(self.offset_ns[-1]) / _NS_PER_S
            raise UsageError(f"load.start: {start_s:g}s skips all of {self.path} ({length_s:.1f}s long)")
        notes = [*self.notes, f"{first:,} rows before load.start {start_s:g}s are left out"] if first else []
        inputs, input_note = _rescaled(self.input_tokens[first:], input_scale, max_input, "input")
        outputs, output_note = _rescaled(self.output_tokens[first:], output_scale, max_output, "output")
        return replace(
            self,
            offset_ns=self.offset_ns[first:] - round(start_s * _NS_PER_S),
            input_tokens=inputs,
            output_tokens=outputs,
            notes=(*notes, *input_note, *output_note),
        )


def _rescaled(
    tokens: npt.NDArray[np.int64], scale: float, most: int | None, what: str
) -> tuple[npt.NDArray[np.int64], list[str]]:
    scaled = np.clip(np.rint(tokens * scale), 1, MAX_TOKENS).astype(np.int64)
    notes = [f"{what} lengths scaled by {scale:g}"] if scale != 1 else []
    if most is not None and (num_cut := int(np.count_nonzero(scaled > most))):
        scaled = np.minimum(scaled, most)
        notes.append(f"{num_cut:,} {what} lengths cut to {most:,}")
    return scaled, notes


def load_trace(path: Path) -> Trace:
    """Read a trace file. UsageError names the file, and every broken row (ten at most) by its line."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 text (byte {error.start}); expected a CSV file") from error
    return parse_trace(text, str(path))


def parse_trace(text: str, path: str) -> Trace:
    """The trace in `text`; `path` names it in errors."""
    rows = _lines(text)
    header = next(rows, None)
    if header is None:
        raise UsageError(f"{path}: empty; expected the header {HEADER}, then a row a request")
    if [cell.strip() for cell in header[1].split(",")] != HEADER.split(","):
        found = header[1] if len(header[1]) <= 80 else header[1][:77] + "..."
        raise UsageError(f"{path} line {header[0]}: the header is {found!r}; expected {HEADER}")
    columns = _columns(rows, path)
    if len(columns) == 0:
        raise UsageError(f"{path}: a header and no rows; expected a row a request")
    return Trace(
        path=path,
        offset_ns=columns[:, 0] - columns[0, 0],
        input_tokens=columns[:, 1].copy(),
        output_tokens=columns[:, 2].copy(),
        num_file_rows=len(columns),
    )


def _columns(rows: Iterator[tuple[int, str]], path: str) -> npt.NDArray[np.int64]:
    parsed: list[tuple[int, int, int]] = []
    broken: list[str] = []
    latest = -(2**63)
    for number, line in rows:
        try:
            row = _parse_row(line, latest)
        except ValueError as error:
            broken.append(f"{path} line {number}: {error}")
            continue
        latest = row[0]
        parsed.append(row)
    if broken:
        named = broken[:MAX_NAMED_ROWS]
        if len(broken) > len(named):
            named.append(f"and {len(broken) - len(named):,} more broken rows")
        raise UsageError("\n".join(named))
    return np.array(parsed, dtype=np.int64).reshape(-1, 3)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Line numbers from 1 and lines without their ends; blank lines are skipped."""
    for number, line in enumerate(text.split("\n"), start=1):
        if stripped := line.strip():
            yield number, stripped


def _parse_row(line: str, latest_ns: int) -> tuple[int, int, int]:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 3:
        raise ValueError(f"{len(cells)} columns; expected 3")
    at_ns = parse_timestamp_ns(cells[0])
    if at_ns < latest_ns:
        raise ValueError("earlier than the row before it; sort the file by TIMESTAMP")
    return at_ns, _tokens("ContextTokens", cells[1]), _tokens("GeneratedTokens", cells[2])


def _tokens(column: str, cell: str) -> int:
    value = int(cell) if _COUNT.fullmatch(cell) else 0
    if not 1 <= value <= MAX_TOKENS:
        shown = cell if len(cell) <= 40 else cell[:37] + "..."
        raise ValueError(f"{column} is {shown!r}; expected a whole number from 1 to {MAX_TOKENS:,}")
    return value


def parse_timestamp_ns(text: str) -> int:
    """Nanoseconds since 1970 of `2023-11-16 18:15:46.6805900` (UTC; up to nine fractional digits),
    exactly.
    """
    match = _TIMESTAMP.fullmatch(text)
    days = _days(match[1]) if match else None
    if match is None or days is None:
        shown = text if len(text) <= 40 else text[:37] + "..."
        raise ValueError(f"TIMESTAMP is {shown!r}; expected like 2023-11-16 18:15:46.6805900")
    seconds = ((days * 24 + int(match[2])) * 60 + int(match[3])) * 60 + int(match[4])
    return seconds * _NS_PER_S + int((match[5] or "").ljust(9, "0"))


@lru_cache(maxsize=512)
def _days(text: str) -> int | None:
    """Days since 1970 of `2023-11-16`; None where that day is in no calendar or outside what int64 ns can
    hold.
    """
    try:
        day = date.fromisoformat(text)
    except ValueError:
        return None
    return day.toordinal() - date(1970, 1, 1).toordinal() if 1700 <= day.year <= 2250 else None
