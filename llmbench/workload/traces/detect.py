"""Which format a trace file is in, by its header or the keys of its first line."""

from __future__ import annotations

from pathlib import Path

import orjson

from llmbench.errors import UsageError
from llmbench.workload.traces import azure, burstgpt
from llmbench.workload.traces.rows import numbered_lines, read_text, shown

_HEADERS = {
    azure.HEADER: "azure",
    azure.HEADER_WITH_IMAGES: "azure",
    burstgpt.HEADER: "burstgpt",
    burstgpt.EARLIER_HEADER: "burstgpt",
}


def kind_of(path: Path) -> str:
    """The kind of a trace file. UsageError where it is none that is known."""
    return kind_of_text(read_text(path, "a trace, CSV or a JSON object a line"), str(path))


def kind_of_text(text: str, path: str) -> str:
    """The same of a file's text; `path` names it in errors."""
    _, first = next(numbered_lines(text), (0, ""))
    header = ",".join(cell.strip() for cell in first.split(","))
    if header in _HEADERS:
        return _HEADERS[header]
    try:
        row = orjson.loads(first)
    except orjson.JSONDecodeError:
        row = None
    keys = row.keys() if isinstance(row, dict) else set()
    if {"chat_id", "hash_ids"} <= keys:
        return "bailian"
    if {"timestamp", "input_length"} <= keys:
        return "mooncake"
    if {"t", "input_tokens"} <= keys:
        return "trace"
    raise UsageError(
        f"{path}: no trace that is known: the first line is {shown(first, 60)}.\n"
        "Known are Azure's and BurstGPT's CSV, Mooncake's and Bailian's JSON lines, and llmbench's own\n"
        "(llmbench trace --help); say which it is with --as"
    )
