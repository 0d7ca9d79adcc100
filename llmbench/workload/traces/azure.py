"""The Azure LLM inference traces: when requests came, how long they were, how long their answers.

    TIMESTAMP,ContextTokens,GeneratedTokens                2023 and 2024
    2023-11-16 18:15:46.6805900,374,44

    TIMESTAMP,NumImages,ContextTokens,GeneratedTokens      2025, images and text
    2024-10-15 03:00:07.51,2,1450,210

Timestamps carry up to seven fractional digits (100 ns); a datetime would lose the last one, so they are
parsed as integers. There is no prompt text: prompts of these lengths are made up, without images.

Source of the real files: github.com/Azure/AzurePublicDataset, CC-BY 4.0 (Patel et al., "Splitwise:
Efficient generative LLM inference using phase splitting", ISCA 2024; Stojkovic et al., "DynamoLLM", HPCA
2025; Qiu et al., "ModServe", SoCC 2025).
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache
from pathlib import Path

import numpy as np

from llmbench.errors import UsageError
from llmbench.workload.traces.rows import (
    NS_PER_S,
    InOrder,
    header_problem,
    numbered_lines,
    parse_rows,
    read_text,
    shown,
    token_count,
)
from llmbench.workload.traces.trace import Trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
HEADER_WITH_IMAGES = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens"
_TIMESTAMP = re.compile(
    r"(\d{4}-\d{2}-\d{2})[ T]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?(?:Z|[+-]00:?00)?", re.ASCII
)
_IMAGES = re.compile(r"\d{1,6}", re.ASCII)


def load_trace(path: Path) -> Trace:
    """Read a trace file. UsageError names the file, and every broken row (ten at most) by its line."""
    return parse_trace(read_text(path, "a CSV file"), str(path))


def parse_trace(text: str, path: str) -> Trace:
    """The trace in `text`; `path` names it in errors."""
    lines = numbered_lines(text)
    number, header = next(lines, (0, None))
    if header is None:
        raise UsageError(f"{path}: empty; expected the header {HEADER}, then a row a request")
    names = [cell.strip() for cell in header.split(",")]
    if names not in (HEADER.split(","), HEADER_WITH_IMAGES.split(",")):
        raise header_problem(path, number, header, HEADER)
    order = InOrder("TIMESTAMP")

    def parse(line: str) -> tuple[int, int, int, int]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(names):
            raise ValueError(f"{len(cells)} columns; expected {len(names)}")
        at_ns = order.check(parse_timestamp_ns(cells[0]))
        images = _images(cells[1]) if len(cells) == 4 else 0
        return (
            at_ns,
            token_count("ContextTokens", cells[-2]),
            token_count("GeneratedTokens", cells[-1]),
            images,
        )

    columns = np.array(parse_rows(lines, parse, path), dtype=np.int64).reshape(-1, 4)
    if len(columns) == 0:
        raise UsageError(f"{path}: a header and no rows; expected a row a request")
    num_with_images = int(np.count_nonzero(columns[:, 3]))
    return Trace(
        path=path,
        offset_ns=columns[:, 0] - columns[0, 0],
        input_tokens=columns[:, 1].copy(),
        output_tokens=columns[:, 2].copy(),
        num_file_rows=len(columns),
        notes=(f"{num_with_images:,} rows had images; only their text is sent",) if num_with_images else (),
    )


def _images(cell: str) -> int:
    if not _IMAGES.fullmatch(cell):
        raise ValueError(f"NumImages is {shown(cell)}; expected a whole number")
    return int(cell)


def parse_timestamp_ns(text: str) -> int:
    """Nanoseconds since 1970 of `2023-11-16 18:15:46.6805900` (UTC; up to nine fractional digits),
    exactly.
    """
    match = _TIMESTAMP.fullmatch(text)
    days = _days(match[1]) if match else None
    if match is None or days is None:
        raise ValueError(f"TIMESTAMP is {shown(text)}; expected like 2023-11-16 18:15:46.6805900")
    seconds = ((days * 24 + int(match[2])) * 60 + int(match[3])) * 60 + int(match[4])
    return seconds * NS_PER_S + int((match[5] or "").ljust(9, "0"))


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
