"""BurstGPT: requests to ChatGPT and GPT-4 of a campus over months, by the second, with their failures.

    Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type     (1.2)
    45.0,17,3.2,GPT-4,512,90,602,API log

Versions 1.0 and 1.1 lack `Session ID` and `Elapsed time`. Timestamp is in seconds from the first day's
midnight. A failure has 0 response tokens: nothing can be asked for that, so these rows are left out, and
counted.

Source of the real files: github.com/HPMLL/BurstGPT, CC-BY 4.0 (Wang et al., "BurstGPT: A Real-world Workload
Dataset to Optimize LLM Serving Systems", KDD 2025).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from llmbench.errors import UsageError
from llmbench.workload.traces.rows import (
    InOrder,
    decimal_ns,
    header_problem,
    numbered_lines,
    parse_rows,
    read_text,
    token_count,
)
from llmbench.workload.traces.trace import Trace

HEADER = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
EARLIER_HEADER = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"


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
    if names not in (HEADER.split(","), EARLIER_HEADER.split(",")):
        raise header_problem(path, number, header, HEADER)
    request, response = names.index("Request tokens"), names.index("Response tokens")
    order = InOrder("Timestamp")

    def parse(line: str) -> tuple[int, int, int]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(names):
            raise ValueError(f"{len(cells)} columns; expected {len(names)}")
        at_ns = order.check(decimal_ns("Timestamp", cells[0]))
        failed = cells[response] in ("0", "0.0")
        outputs = 0 if failed else token_count("Response tokens", cells[response])
        return at_ns, 1 if failed else token_count("Request tokens", cells[request]), outputs

    columns = np.array(parse_rows(lines, parse, path), dtype=np.int64).reshape(-1, 3)
    answered = columns[columns[:, 2] > 0]
    if len(answered) == 0:
        raise UsageError(f"{path}: no row with an answer; expected a row a request")
    num_failed = len(columns) - len(answered)
    return Trace(
        path=path,
        offset_ns=answered[:, 0] - answered[0, 0],
        input_tokens=answered[:, 1].copy(),
        output_tokens=answered[:, 2].copy(),
        num_file_rows=len(columns),
        notes=(f"{num_failed:,} failed rows (no response tokens) are left out",) if num_failed else (),
    )
