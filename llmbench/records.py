"""What became of each planned request: one record a request, and its line in the journal.

A record is raw: instants and counts as they were seen, nothing derived. Metrics, reports and other tools'
definitions are all computed from records later. Instants are integer nanoseconds of one monotonic clock,
counted from the start of the run. Absent is None, never 0 or -1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import orjson


class Outcome(StrEnum):
    """How a planned request ended. The number of planned requests is the sum over all of these."""

    OK = "ok"
    HTTP_ERROR = "http_error"
    CONNECT_ERROR = "connect_error"
    TIMEOUT = "timeout"
    BAD_STREAM = "bad_stream"
    CANCELLED = "cancelled"
    DROPPED = "dropped"


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One planned request. Mutable while it is in flight; read-only by convention once it has ended.

    `event_ns` holds the instant of every event that carried output (text, reasoning, tool call, refusal);
    `event_tokens` the tokens of each of them, or None where tokens cannot be laid to events (n > 1).
    `token_source` is usage, tokenizer or events. `reads` counts the socket reads that carried output.
    `first_answer_ns` is the first event with output that is not reasoning. `role_chunk_ns` and
    `finish_chunk_ns` are the first and the last event with choices where those carried no output: some tools
    count from them and up to them (see `definitions`). `read_lag_ns` is the longest time between a read's
    arrival, as the kernel stamped it, and the read; None without the kernel's stamps. `shared_events` came in
    one read with a later event, so that they may have arrived up to `shared_bound_ns` before their stamps.
    `body_bytes` is the size of an event stream, without HTTP's framing and compression.
    `warnings` are short codes such as
    usage_missing, malformed_event, buffered.
    """

    index: int
    phase: str
    outcome: Outcome
    tenant: str | None = None
    session: str | None = None
    turn: int | None = None
    due_ns: int | None = None
    sent_ns: int | None = None
    headers_ns: int | None = None
    first_event_ns: int | None = None
    event_ns: list[int] = field(default_factory=list)
    event_tokens: list[int] | None = field(default_factory=list)
    end_ns: int | None = None
    input_tokens_asked: int | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens_asked: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    token_source: str | None = None
    finish_reason: str | None = None
    error_kind: str | None = None
    http_status: int | None = None
    error: str | None = None
    request_id: str | None = None
    worker: int | None = None
    first_answer_ns: int | None = None
    role_chunk_ns: int | None = None
    finish_chunk_ns: int | None = None
    reads: int | None = None
    shared_events: int | None = None
    shared_bound_ns: int | None = None
    read_lag_ns: int | None = None
    body_bytes: int | None = None
    warnings: list[str] = field(default_factory=list)
    text: str | None = None
    reasoning: str | None = None
    tool_calls: str | None = None
    refusal: str | None = None


_FIELDS = frozenset(item.name for item in fields(RequestRecord))


def to_journal(record: RequestRecord) -> bytes:
    """The record as one JSON line, newline included."""
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def from_journal(line: bytes) -> RequestRecord:
    """The record of one journal line. Keys that this version does not know are left out.

    Raises ValueError for a line that is not a whole record (torn by a kill, or not a journal).
    """
    values: Any = orjson.loads(line)
    try:
        if not values.keys() <= _FIELDS:
            values = {key: value for key, value in values.items() if key in _FIELDS}
        record = RequestRecord(**values)
    except (AttributeError, TypeError) as error:
        raise ValueError(f"not a journal record: {error}") from None
    record.outcome = Outcome(record.outcome)
    return record


def read_journal(paths: Iterable[Path], damaged: list[str]) -> Iterator[RequestRecord]:
    """Every whole record of the journal files, in file order, one at a time.

    A line that is no record (the torn last line of a killed run, a block of zeros after a power cut) is
    skipped and appended to `damaged` as "file:line"; it is never fatal.
    """
    for path in paths:
        with path.open("rb") as journal:
            for number, line in enumerate(journal, start=1):
                if not line.strip():
                    continue
                try:
                    yield from_journal(line)
                except ValueError:
                    damaged.append(f"{path.name}:{number}")
