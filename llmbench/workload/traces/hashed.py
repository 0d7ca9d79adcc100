"""Traces that say which blocks of their prompts are the same: Mooncake's and Qwen-Bailian's.

    Mooncake   {"timestamp": 3000, "input_length": 1600, "output_length": 210, "hash_ids": [0, 7, 8, 9]}
    Bailian    {"chat_id": 12, "parent_chat_id": -1, "timestamp": 4.25, "input_length": 40,
                "output_length": 18, "type": "text", "turn": 1, "hash_ids": [5, 6, 9]}

One JSON object a line. Mooncake's `timestamp` is in milliseconds and its blocks hold 512 tokens; Bailian's is
in seconds and its blocks hold 16. An id stands for a block and everything before it, so that prompts share
their beginning as far as their ids agree. The last block of a prompt may be shorter.

Sources of the real files: github.com/kvcache-ai/Mooncake, Apache-2.0 (Qin et al., "Mooncake", FAST 2025);
github.com/alibaba-edu/qwen-bailian-usagetraces-anon, Apache-2.0 (Wang et al., "KVCache Cache in the Wild",
ATC 2025).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from llmbench.errors import UsageError
from llmbench.workload.traces.canonical import block_ids
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What sets a format apart. `ns_a_unit` is of `timestamp`; `known` are its keys beyond the four."""

    name: str
    block_tokens: int
    ns_a_unit: int
    known: tuple[str, ...] = ()

    @property
    def example(self) -> str:
        """A line of it, for messages."""
        return '{"timestamp": 3000, "input_length": 600, "output_length": 210, "hash_ids": [0, 7]}'


MOONCAKE = Layout(name="mooncake", block_tokens=512, ns_a_unit=NS_PER_S // 1000)
BAILIAN = Layout(
    name="bailian",
    block_tokens=16,
    ns_a_unit=NS_PER_S,
    known=("chat_id", "parent_chat_id", "turn", "type"),
)
_NEEDED = ("timestamp", "input_length", "output_length", "hash_ids")


def load_trace(path: Path, layout: Layout) -> Trace:
    """Read a trace file. UsageError names the file, and every broken row (ten at most) by its line."""
    return parse_trace(read_text(path, "a JSON object a line"), str(path), layout)


def parse_trace(text: str, path: str, layout: Layout) -> Trace:
    """The trace in `text`; `path` names it in errors."""
    order = InOrder("timestamp")
    ids, counts = array("q"), array("q")
    others: dict[str, int] = {}

    def parse(line: str) -> tuple[int, int, int]:
        row = json_object(line, _NEEDED, layout.example)
        at_ns = order.check(_instant(row["timestamp"], layout))
        inputs = whole_tokens("input_length", row["input_length"])
        outputs = whole_tokens("output_length", row["output_length"])
        blocks = _ids(row["hash_ids"], inputs, layout)
        for key in row:
            if key not in _NEEDED and key not in layout.known:
                others[key] = others.get(key, 0) + 1
        ids.extend(blocks)
        counts.append(len(blocks))
        return at_ns, inputs, outputs

    columns = np.array(parse_rows(numbered_lines(text), parse, path), dtype=np.int64).reshape(-1, 3)
    if len(columns) == 0:
        raise UsageError(f"{path}: no rows; expected a line like {layout.example}")
    lengths = np.array(counts, dtype=np.int64)
    return Trace(
        path=path,
        offset_ns=columns[:, 0] - columns[0, 0],
        input_tokens=columns[:, 1].copy(),
        output_tokens=columns[:, 2].copy(),
        num_file_rows=len(columns),
        blocks=PrefixBlocks(
            tokens=layout.block_tokens,
            offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]),
            ids=np.array(ids, dtype=np.int64),
        ),
        notes=tuple(f"key {key} of {count:,} rows is not used" for key, count in sorted(others.items())),
    )


def _instant(value: Any, layout: Layout) -> int:
    if not is_instant(value):
        raise ValueError(f"timestamp is {shown(str(value))}; expected a number, not negative")
    if isinstance(value, int):
        return int(value) * layout.ns_a_unit
    # the shortest text of a float is what was written: 4.25 s stays 4.25 s to the nanosecond
    return int(Decimal(repr(value)) * layout.ns_a_unit)


def _ids(value: Any, inputs: int, layout: Layout) -> list[int]:
    ids = block_ids("hash_ids", value)
    wanted = -(-inputs // layout.block_tokens)
    if len(ids) != wanted:
        raise ValueError(
            f"{len(ids)} hash_ids for an input_length of {inputs:,}; "
            f"blocks of {layout.block_tokens} tokens make {wanted}"
        )
    return ids
