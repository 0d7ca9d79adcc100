"""Traces of real traffic: files in, columns out. What a format is and where it comes from says its module.

    file ─(rows: numbered lines, every mistake told)─▶ a parser ─▶ Trace: instants, lengths, shared blocks

`azure`      Azure LLM 2023, 2024 and 2025                 CSV, instants in UTC
`burstgpt`   BurstGPT 1.0 to 1.2                           CSV, seconds
`hashed`     Mooncake (milliseconds), Bailian (seconds)    JSONL, with the ids of shared prefix blocks
`canonical`  llmbench's own, which all others map to       JSONL, seconds and tokens
`detect`     which of them a file is
`facts`      what a trace holds
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from llmbench.workload.traces import azure, burstgpt, canonical, hashed
from llmbench.workload.traces.trace import Trace

TRACE_KINDS: Final = ("azure", "burstgpt", "mooncake", "bailian", "trace")
SHARING_KINDS: Final = ("mooncake", "bailian", "trace")
"""Those whose prompts share what the file says: a prefix cache is meant to find it."""


def load_trace(kind: str, path: Path) -> Trace:
    """The trace in a file of one of `TRACE_KINDS`. UsageError names the file and its broken rows by line."""
    match kind:
        case "azure":
            return azure.load_trace(path)
        case "burstgpt":
            return burstgpt.load_trace(path)
        case "mooncake":
            return hashed.load_trace(path, hashed.MOONCAKE)
        case "bailian":
            return hashed.load_trace(path, hashed.BAILIAN)
        case "trace":
            return canonical.load_trace(path)
    raise ValueError(f"{kind} is no kind of trace")
