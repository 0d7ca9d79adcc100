"""The corpus of difficult streams, each over a real socket through the whole of the product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from llmbench.columns import RequestColumns
from llmbench.selftest.check import Check
from llmbench.selftest.corpus import STREAMS, Stream
from llmbench.selftest.measured import run_against
from llmbench.selftest.scripted import serving

TRANSPORTS: Final = ("fast", "aiohttp")
_AT_ONCE: Final = 8
_SILENCE: Final = "1s"


def stream_corpus() -> list[Check]:
    """A line for each transport and API; and one for each stream that came out otherwise than expected."""
    checks = []
    for transport in TRANSPORTS:
        for api in dict.fromkeys(stream.api for stream in STREAMS):
            streams = [stream for stream in STREAMS if stream.api == api]
            wrong = played(streams, transport)
            checks.append(
                Check(
                    case="the stream corpus",
                    what=f"{api}, transport {transport}",
                    expected=f"{len(streams)} right",
                    measured=f"{len(streams) - len(wrong)} right",
                    passed=not wrong,
                )
            )
            checks += [
                Check(case="the stream corpus", what=name, expected=expected, measured=found, passed=False)
                for name, expected, found in wrong
            ]
    return checks


def played(streams: Sequence[Stream], transport: str) -> list[tuple[str, str, str]]:
    """Runs them all at once; (stream, expected, found) of each that came out otherwise."""
    with serving(streams) as url:
        seen = run_against(
            url,
            {
                "target": {"api": streams[0].api, "no_progress_timeout": _SILENCE},
                "load": {"arrivals": "closed", "concurrency": _AT_ONCE, "requests": len(streams)},
                "instrument": {"transport": transport},
            },
        )
    return [
        miss for row, stream in enumerate(streams) if (miss := _miss(stream, seen.columns, row)) is not None
    ]


def _miss(stream: Stream, columns: RequestColumns, row: int) -> tuple[str, str, str] | None:
    """What first differs from the expected, if anything does."""
    for name, wanted in stream.expect.items():
        found = _value(columns, name, row)
        right = wanted in (found or "") if name in ("error", "warnings") else found == wanted
        if not right:
            return stream.name, f"{name} {wanted}"[:18], str(found)[:16]
    events = int(columns.num_events[row])
    if stream.num_events is not None and events != stream.num_events:
        return stream.name, f"{stream.num_events} events", f"{events} events"
    if stream.ttft_at_least_s is not None:
        first = columns.event_ns[columns.event_offsets[row]]
        ttft_s = float(first - columns.integers["sent_ns"].values[row]) / 1e9
        if ttft_s < stream.ttft_at_least_s:
            return stream.name, f"TTFT ≥ {stream.ttft_at_least_s:g} s", f"{ttft_s:.3g} s"
    return None


def _value(columns: RequestColumns, name: str, row: int) -> Any:
    """One cell, None where it is empty."""
    if name in columns.labels:
        code = columns.labels[name].codes[row]
        return columns.labels[name].names[code] if code >= 0 else None
    if name in columns.texts:
        return columns.texts[name][row]
    if name in columns.integers:
        column = columns.integers[name]
        return int(column.values[row]) if np.bool_(column.is_set[row]) else None
    return None
