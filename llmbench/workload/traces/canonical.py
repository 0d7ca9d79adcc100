"""llmbench's own trace: one JSON object a line, everything in seconds and tokens, and only what is needed.

    {"t": 0.0, "input_tokens": 600, "output_tokens": 20, "block_tokens": 512, "blocks": [0, 1]}
    {"t": 1.25, "input_tokens": 40, "output_tokens": 7}

`t` is in seconds from the first request, to the nanosecond. `blocks` name what prompts share (`hashed`), each
of `block_tokens` tokens, which the first line with blocks says for all. Every other format is turned into
this one (`llmbench trace convert`).
"""

from __future__ import annotations

import io
from array import array
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from llmbench.errors import UsageError
from llmbench.workload.traces.rows import (
    NS_PER_S,
    InOrder,
    is_instant,
    json_object,
    numbered_lines,
    parse_rows,
    read_text,
    shown,
    whole_tokens,
)
from llmbench.workload.traces.trace import PrefixBlocks, Trace

EXAMPLE = '{"t": 1.25, "input_tokens": 40, "output_tokens": 7}'
KEYS = ("t", "input_tokens", "output_tokens", "block_tokens", "blocks")
_NEEDED = KEYS[:3]


def load_trace(path: Path) -> Trace:
    """Read a trace file. UsageError names the file, and every broken row (ten at most) by its line."""
    return parse_trace(read_text(path, "a JSON object a line"), str(path))


def parse_trace(text: str, path: str) -> Trace:
    """The trace in `text`; `path` names it in errors."""
    order, reader = InOrder("t"), _Blocks()

    def parse(line: str) -> tuple[int, int, int]:
        row = json_object(line, _NEEDED, EXAMPLE)
        if unknown := [key for key in row if key not in KEYS]:
            raise ValueError(f"unknown key {shown(unknown[0])} (known: {', '.join(KEYS)})")
        if not is_instant(row["t"]):
            raise ValueError(f"t is {shown(str(row['t']))}; expected seconds, not negative")
        at_ns = order.check(int(Decimal(repr(row["t"])) * NS_PER_S))
        inputs = whole_tokens("input_tokens", row["input_tokens"])
        reader.add(row, inputs)
        return at_ns, inputs, whole_tokens("output_tokens", row["output_tokens"])

    columns = np.array(parse_rows(numbered_lines(text), parse, path), dtype=np.int64).reshape(-1, 3)
    if len(columns) == 0:
        raise UsageError(f"{path}: no rows; expected a line like {EXAMPLE}")
    return Trace(
        path=path,
        offset_ns=columns[:, 0] - columns[0, 0],
        input_tokens=columns[:, 1].copy(),
        output_tokens=columns[:, 2].copy(),
        num_file_rows=len(columns),
        blocks=reader.finish(),
    )


class _Blocks:
    """The blocks of the rows as they are read. A row without any shares nothing with anyone."""

    def __init__(self) -> None:
        self._tokens: int | None = None
        self._ids, self._counts = array("q"), array("q")

    def add(self, row: dict[str, Any], inputs: int) -> None:
        tokens = row.get("block_tokens")
        if tokens is not None:
            tokens = whole_tokens("block_tokens", tokens)
            if self._tokens not in (None, tokens):
                raise ValueError(f"block_tokens is {tokens}, but {self._tokens} in a row before; keep to one")
            self._tokens = tokens
        ids = block_ids("blocks", row.get("blocks") or [])
        if ids and self._tokens is None:
            raise ValueError("blocks without block_tokens; say how many tokens a block has")
        if ids and self._tokens is not None and len(ids) != -(-inputs // self._tokens):
            raise ValueError(
                f"{len(ids)} blocks for {inputs:,} input_tokens; blocks of {self._tokens} tokens make "
                f"{-(-inputs // self._tokens)}"
            )
        self._ids.extend(ids)
        self._counts.append(len(ids))

    def finish(self) -> PrefixBlocks | None:
        if self._tokens is None:
            return None
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(np.array(self._counts, np.int64))])
        return PrefixBlocks(tokens=self._tokens, offsets=offsets, ids=np.array(self._ids, dtype=np.int64))


def block_ids(key: str, value: Any) -> list[int]:
    """A list of block ids. Raises ValueError."""
    is_list = isinstance(value, list) and all(type(one) is int and 0 <= one < 2**63 for one in value)
    if not is_list:
        raise ValueError(f"{key} must be a list of whole numbers")
    return list(value)


def to_lines(trace: Trace) -> bytes:
    """The trace in this format."""
    out = io.BytesIO()
    blocks = trace.blocks
    for row, at_ns in enumerate(trace.offset_ns.tolist()):
        whole, fraction = divmod(at_ns, NS_PER_S)
        digits = f"{fraction:09}".rstrip("0") or "0"
        line: dict[str, Any] = {
            "t": orjson.Fragment(f"{whole}.{digits}"),
            "input_tokens": int(trace.input_tokens[row]),
            "output_tokens": int(trace.output_tokens[row]),
        }
        if blocks is not None and len(ids := blocks.of(row).tolist()):
            line |= {"block_tokens": int(blocks.tokens), "blocks": ids}
        out.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
    return out.getvalue()
