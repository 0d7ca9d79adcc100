"""A run's requests as columns: one row a request, events flattened into one long array.

Built record by record in bounded memory (the lists of a record become machine integers as they come in), read
from and written to requests.parquet. Everything after the run works on these columns, never on records.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmbench.records import RequestRecord

INSTANTS = (
    "due_ns",
    "sent_ns",
    "headers_ns",
    "first_event_ns",
    "end_ns",
    "first_answer_ns",
    "role_chunk_ns",
    "finish_chunk_ns",
)
DURATIONS = ("shared_bound_ns", "read_lag_ns")  # nanoseconds, as the instants are
COUNTS = (
    "turn",
    "input_tokens_asked",
    "input_tokens",
    "cached_tokens",
    "output_tokens_asked",
    "output_tokens",
    "reasoning_tokens",
    "http_status",
    "worker",
    "reads",
    "shared_events",
    "body_bytes",
)
# Few distinct values: kept as small integers into a table of names.
LABELS = ("phase", "tenant", "token_source", "finish_reason", "outcome", "error_kind", "warnings")
TEXTS = ("session", "error", "request_id")
SAVED_TEXTS = ("text", "reasoning", "tool_calls", "refusal")

_ABSENT = -1  # in memory only, behind `is_set`; files hold nulls
_ROWS_AT_ONCE = 8192


@dataclass(frozen=True, slots=True)
class IntColumn:
    """int64 values of each row; where `is_set` is False the row has none and the value means nothing."""

    values: NDArray[np.int64]
    is_set: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LabelColumn:
    """Names by number: row i is `names[codes[i]]`, or absent where the code is -1."""

    codes: NDArray[np.int32]
    names: tuple[str, ...]

    def among(self, *names: str) -> NDArray[np.bool_]:
        """Which rows hold one of these names."""
        wanted = [code for code, name in enumerate(self.names) if name in names]
        return np.isin(self.codes, wanted)

    def counts(self, rows: NDArray[np.bool_]) -> dict[str, int]:
        """How many of the chosen rows hold each name, the most frequent first."""
        codes = self.codes[rows]
        tally = np.bincount(codes[codes >= 0], minlength=len(self.names))
        order = np.argsort(-tally, kind="stable")
        return {self.names[code]: int(tally[code]) for code in order if tally[code]}


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestColumns:
    """All requests of a run, ordered by index.

    Events of row i are `event_ns[event_offsets[i]:event_offsets[i + 1]]`; `event_tokens` lies beside
    `event_ns` and means something only in rows where `has_event_tokens`.
    """

    index: NDArray[np.int64]
    integers: Mapping[str, IntColumn]
    labels: Mapping[str, LabelColumn]
    texts: Mapping[str, list[str | None]]
    event_offsets: NDArray[np.int64]
    event_ns: NDArray[np.int64]
    event_tokens: NDArray[np.int32]
    has_event_tokens: NDArray[np.bool_]

    @property
    def num_rows(self) -> int:
        """How many requests."""
        return len(self.index)

    @property
    def num_events(self) -> NDArray[np.int64]:
        """Events of each row."""
        return np.diff(self.event_offsets)


@dataclass(slots=True)
class ColumnsBuilder:
    """Takes records in any order and gives the columns ordered by index."""

    save_text: bool = False
    _index: array[int] = field(default_factory=lambda: array("q"))
    _integers: dict[str, array[int]] = field(
        default_factory=lambda: {name: array("q") for name in INSTANTS + DURATIONS + COUNTS}
    )
    _is_set: dict[str, bytearray] = field(
        default_factory=lambda: {name: bytearray() for name in INSTANTS + DURATIONS + COUNTS}
    )
    _codes: dict[str, array[int]] = field(default_factory=lambda: {name: array("i") for name in LABELS})
    _names: dict[str, dict[str, int]] = field(default_factory=lambda: {name: {} for name in LABELS})
    _texts: dict[str, list[str | None]] = field(default_factory=dict)
    _num_events: array[int] = field(default_factory=lambda: array("q"))
    _event_ns: array[int] = field(default_factory=lambda: array("q"))
    _event_tokens: array[int] = field(default_factory=lambda: array("i"))
    _has_event_tokens: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        names = TEXTS + SAVED_TEXTS if self.save_text else TEXTS
        self._texts = {name: [] for name in names}

    def __len__(self) -> int:
        return len(self._index)

    def add(self, record: RequestRecord) -> None:
        """Append one record. Raises ValueError where it has not one token count an event."""
        tokens = record.event_tokens
        if tokens is not None and len(tokens) != len(record.event_ns):
            raise ValueError(
                f"request {record.index}: {len(record.event_ns)} events but {len(tokens)} token counts"
            )
        self._index.append(record.index)
        for name, column in self._integers.items():
            value = getattr(record, name)
            self._is_set[name].append(value is not None)
            column.append(_ABSENT if value is None else value)
        for name, codes in self._codes.items():
            label = ",".join(record.warnings) or None if name == "warnings" else getattr(record, name)
            codes.append(self._code(name, label))
        for name, texts in self._texts.items():
            texts.append(getattr(record, name))
        self._num_events.append(len(record.event_ns))
        self._event_ns.extend(record.event_ns)
        self._event_tokens.extend([0] * len(record.event_ns) if tokens is None else tokens)
        self._has_event_tokens.append(tokens is not None)

    def extend(self, records: Iterable[RequestRecord]) -> None:
        """Append many records, one at a time."""
        for record in records:
            self.add(record)

    def add_rows(self, rows: RequestColumns) -> None:
        """Append rows that are columns already (a batch of a file)."""
        self._index.frombytes(rows.index.tobytes())
        for name, integers in rows.integers.items():
            self._integers[name].frombytes(integers.values.tobytes())
            self._is_set[name].extend(integers.is_set.tobytes())
        for name, labels in rows.labels.items():
            code_of = np.array(
                [self._code(name, label) for label in labels.names] + [_ABSENT], dtype=np.int32
            )
            self._codes[name].frombytes(code_of[labels.codes].tobytes())
        for name, texts in rows.texts.items():
            self._texts[name].extend(texts)
        self._num_events.frombytes(rows.num_events.tobytes())
        self._event_ns.frombytes(np.ascontiguousarray(rows.event_ns).data.cast("B"))
        self._event_tokens.frombytes(np.ascontiguousarray(rows.event_tokens).data.cast("B"))
        self._has_event_tokens.extend(rows.has_event_tokens.tobytes())

    @property
    def text_names(self) -> tuple[str, ...]:
        """The text columns kept."""
        return tuple(self._texts)

    def indices(self) -> NDArray[np.int64]:
        """The indices added so far, in the order they came."""
        return np.array(self._index, dtype=np.int64)

    def finish(self) -> RequestColumns:
        """The columns; the builder is empty afterwards. Column by column, so that a million requests that
        came out of order never lie in memory twice.
        """
        index = _as_array(self._index, np.int64)
        is_ordered = bool(np.all(index[1:] >= index[:-1]))
        rows = None if is_ordered else np.argsort(index, kind="stable")
        lengths = _as_array(self._num_events, np.int64)
        offsets, sorted_offsets = _offsets(lengths), _offsets(_rows_of(lengths, rows))
        starts = _rows_of(offsets[:-1], rows)

        def events_of(buffer: array[int], dtype: Any) -> NDArray[Any]:
            events = _as_array(buffer, dtype)
            return events if rows is None else _gather(events, starts, sorted_offsets)

        integers = {name: self._integer_column(name, rows) for name in list(self._integers)}
        labels = {
            name: LabelColumn(
                _rows_of(_as_array(self._codes.pop(name), np.int32), rows), tuple(self._names[name])
            )
            for name in list(self._codes)
        }
        texts = self._kept_texts()
        self._texts = {}
        event_ns, self._event_ns = events_of(self._event_ns, np.int64), array("q")
        event_tokens, self._event_tokens = events_of(self._event_tokens, np.int32), array("i")
        return RequestColumns(
            index=_rows_of(index, rows),
            integers=integers,
            labels=labels,
            texts={
                name: values if rows is None else [values[row] for row in rows]
                for name, values in texts.items()
            },
            event_offsets=sorted_offsets,
            event_ns=event_ns,
            event_tokens=event_tokens,
            has_event_tokens=_rows_of(_as_array(self._has_event_tokens, np.bool_), rows),
        )

    def _integer_column(self, name: str, rows: NDArray[np.int64] | None) -> IntColumn:
        values = _as_array(self._integers.pop(name), np.int64)
        return IntColumn(_rows_of(values, rows), _rows_of(_as_array(self._is_set.pop(name), np.bool_), rows))

    def _kept_texts(self) -> dict[str, list[str | None]]:
        """Without the saved texts of a run that saved none."""
        saved = any(text is not None for name in SAVED_TEXTS for text in self._texts.get(name, ()))
        return {name: texts for name, texts in self._texts.items() if saved or name in TEXTS}

    def _code(self, name: str, label: str | None) -> int:
        if label is None:
            return _ABSENT
        names = self._names[name]
        return names.setdefault(str(label), len(names))


def from_records(records: Iterable[RequestRecord], *, save_text: bool = False) -> RequestColumns:
    """The columns of these records, ordered by index."""
    builder = ColumnsBuilder(save_text=save_text)
    builder.extend(records)
    return builder.finish()


def take_rows(columns: RequestColumns, rows: NDArray[np.int64]) -> RequestColumns:
    """The rows at these positions, in this order."""
    offsets = _offsets(columns.num_events[rows])
    starts = columns.event_offsets[rows]
    return RequestColumns(
        index=columns.index[rows],
        integers={
            name: IntColumn(column.values[rows], column.is_set[rows])
            for name, column in columns.integers.items()
        },
        labels={
            name: LabelColumn(column.codes[rows], column.names) for name, column in columns.labels.items()
        },
        texts={name: [texts[row] for row in rows] for name, texts in columns.texts.items()},
        event_offsets=offsets,
        event_ns=_gather(columns.event_ns, starts, offsets),
        event_tokens=_gather(columns.event_tokens, starts, offsets),
        has_event_tokens=columns.has_event_tokens[rows],
    )


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where runs of these lengths begin, laid end to end, and where the last one ends."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])


def _rows_of(values: NDArray[Any], rows: NDArray[np.int64] | None) -> NDArray[Any]:
    return values if rows is None else values[rows]


def _gather(values: NDArray[Any], starts: NDArray[np.int64], offsets: NDArray[np.int64]) -> NDArray[Any]:
    """Runs of `values` that begin at `starts`, laid end to end; run i fills offsets[i] to offsets[i + 1]."""
    gathered = np.empty(int(offsets[-1]), dtype=values.dtype)
    # A few thousand rows at a time: an index over all events would double the memory.
    for first in range(0, len(starts), _ROWS_AT_ONCE):
        chunk = offsets[first : first + _ROWS_AT_ONCE + 1]
        shift = np.repeat(starts[first : first + _ROWS_AT_ONCE] - chunk[:-1], np.diff(chunk))
        gathered[chunk[0] : chunk[-1]] = values[np.arange(chunk[0], chunk[-1]) + shift]
    return gathered


def _as_array(buffer: array[int] | bytearray, dtype: Any) -> NDArray[Any]:
    return np.frombuffer(buffer, dtype=dtype) if len(buffer) else np.empty(0, dtype=dtype)
