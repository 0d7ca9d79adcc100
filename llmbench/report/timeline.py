"""The run second by second, as far as its requests tell: rows of timeline.parquet with source "requests"."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmbench.columns import IntColumn, RequestColumns
from llmbench.records import Outcome

SOURCE = "requests"
_SECOND_NS = 1_000_000_000
_EVENTS_AT_ONCE = 1 << 22


def request_rows(columns: RequestColumns) -> list[dict[str, Any]]:
    """One row a second from the start of the run to its last end.

    `due`, `sent`, `ended_ok`, `ended_failed` and `output_tokens` count what fell in [t_s, t_s + 1);
    `in_flight` is the state at the end of that second.
    """
    ok = columns.labels["outcome"].among(Outcome.OK)
    due, sent, end = (columns.integers[name] for name in ("due_ns", "sent_ns", "end_ns"))
    last = max([_last_second(column) for column in (due, sent, end)] + [_last_event_second(columns)])
    if last < 0:
        return []
    num = last + 1
    was_sent = sent.is_set
    started = _per_second(sent, was_sent, num)
    ended = _per_second(end, was_sent & end.is_set, num)
    series = {
        "due": _per_second(due, due.is_set, num),
        "sent": started,
        "ended_ok": _per_second(end, was_sent & end.is_set & ok, num),
        "ended_failed": _per_second(end, was_sent & end.is_set & ~ok, num),
        "output_tokens": _tokens_per_second(columns, num),
        "in_flight": np.cumsum(started - ended),
    }
    return [
        {"t_s": float(second), "source": SOURCE}
        | {name: float(values[second]) for name, values in series.items()}
        for second in range(num)
    ]


def _last_second(column: IntColumn) -> int:
    instants = column.values[column.is_set]
    return int(instants.max() // _SECOND_NS) if len(instants) else -1


def _last_event_second(columns: RequestColumns) -> int:
    return int(columns.event_ns.max() // _SECOND_NS) if len(columns.event_ns) else -1


def _per_second(column: IntColumn, rows: NDArray[np.bool_], num: int) -> NDArray[np.int64]:
    seconds = np.maximum(column.values[rows & column.is_set] // _SECOND_NS, 0)
    return np.bincount(seconds, minlength=num)


def _tokens_per_second(columns: RequestColumns, num: int) -> NDArray[np.float64]:
    totals = np.zeros(num)
    # Some millions at a time: bincount makes copies of what it counts.
    for first in range(0, len(columns.event_ns), _EVENTS_AT_ONCE):
        span = slice(first, first + _EVENTS_AT_ONCE)
        seconds = np.maximum(columns.event_ns[span] // _SECOND_NS, 0)
        totals += np.bincount(seconds, weights=columns.event_tokens[span], minlength=num)
    return totals
