"""requests.parquet and timeline.parquet, through arro3 (a few megabytes, where pyarrow takes 170).

Knows the files' schema and nothing of what the numbers mean. Both are written in row groups, so that memory
stays bounded; any parquet reader opens them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import arro3.core as ac
import arro3.io as aio
import numpy as np
from numpy.typing import NDArray

from llmbench.columns import (
    COUNTS,
    DURATIONS,
    INSTANTS,
    LABELS,
    SAVED_TEXTS,
    ColumnsBuilder,
    IntColumn,
    LabelColumn,
    RequestColumns,
)
from llmbench.errors import UsageError

# The order of the columns in the file; the saved texts follow where a run keeps them.
REQUEST_COLUMNS = (
    "index",
    "phase",
    "tenant",
    "session",
    "turn",
    "due_ns",
    "sent_ns",
    "headers_ns",
    "first_event_ns",
    "event_ns",
    "event_tokens",
    "end_ns",
    "input_tokens_asked",
    "input_tokens",
    "cached_tokens",
    "output_tokens_asked",
    "output_tokens",
    "reasoning_tokens",
    "token_source",
    "finish_reason",
    "outcome",
    "error_kind",
    "http_status",
    "error",
    "request_id",
    "worker",
    "first_answer_ns",
    "role_chunk_ns",
    "finish_chunk_ns",
    "reads",
    "shared_events",
    "shared_bound_ns",
    "read_lag_ns",
    "body_bytes",
    "warnings",
)
LATER_COLUMNS = (
    "role_chunk_ns",
    "finish_chunk_ns",
    "shared_events",
    "shared_bound_ns",
    "read_lag_ns",
    "body_bytes",
)
"""Those that files of an earlier version lack: absent in every row then."""
_ROWS_A_GROUP = 16_384
_MAGIC = b"PAR1"
_INT64 = {*INSTANTS, *DURATIONS, "index"}


def write_requests(path: Path, columns: RequestColumns) -> None:
    """Write all requests. Instants as int64, counts as int32, absent as null; `warnings` joined by commas."""
    saved = [name for name in SAVED_TEXTS if name in columns.texts]
    names = [*REQUEST_COLUMNS, *saved]
    schema = ac.Schema([ac.Field(name, _type_of(name), nullable=name != "index") for name in names])
    batches = (
        ac.RecordBatch.from_arrays([_to_arrow(columns, name, first) for name in names], schema=schema)
        for first in range(0, columns.num_rows, _ROWS_A_GROUP)
    )
    # Deltas of instants are small and nearly equal: packed, they take a third of the room and less time.
    packed = (("event_ns", "list", "element"), *_INT64)
    with _disk_errors_as_such(path):
        aio.write_parquet(
            ac.RecordBatchReader.from_batches(schema, batches),
            path,
            compression="uncompressed",
            max_row_group_size=_ROWS_A_GROUP,
            column_encoding=dict.fromkeys(packed, "delta_binary_packed"),
            column_dictionary_enabled=dict.fromkeys(packed, False),
        )


@contextmanager
def _disk_errors_as_such(path: Path) -> Iterator[None]:
    """The writer panics (a BaseException of Rust's) where the disk refuses; raises OSError instead."""
    try:
        yield
    except BaseException as problem:
        refused = re.search(r"Os \{ code: (\d+)", str(problem))
        if type(problem).__name__ != "PanicException" or refused is None:
            raise
        code = int(refused[1])
        raise OSError(code, os.strerror(code), str(path)) from problem


def read_requests(path: Path) -> RequestColumns:
    """Every request of a run, ordered by index.

    Raises UsageError for a file that is no parquet file, or not one of llmbench's.
    """
    if not _is_parquet(path):
        raise UsageError(f"{path}: not a whole parquet file")
    reader = aio.read_parquet(path, batch_size=_ROWS_A_GROUP)
    found = set(reader.schema.names)
    if missing := [name for name in REQUEST_COLUMNS if name not in found and name not in LATER_COLUMNS]:
        raise UsageError(f"{path}: not a requests.parquet of llmbench; it lacks {', '.join(missing)}")
    builder = ColumnsBuilder(save_text=all(name in found for name in SAVED_TEXTS))
    for batch in reader:
        builder.add_rows(_from_arrow(batch, builder.text_names))
    return builder.finish()


def write_timeline(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write the timeline: a row per second and source.

    Each row has `t_s` (seconds from the start of the run), `source` (client, worker 0, requests, server,
    gpu0, …) and that source's values; the file has one column for every name seen, null where a source lacks
    it.
    """
    ordered = sorted(rows, key=lambda row: (row["t_s"], row["source"]))
    names = sorted({name for row in ordered for name in row} - {"t_s", "source"})
    kinds = {"t_s": ac.DataType.float64(), "source": ac.DataType.string()}
    kinds |= dict.fromkeys(names, ac.DataType.float64())
    schema = ac.Schema([ac.Field(name, kind) for name, kind in kinds.items()])
    arrays = [
        ac.Array([_finite(row.get(name)) for row in ordered], type=kind) for name, kind in kinds.items()
    ]
    with _disk_errors_as_such(path):
        aio.write_parquet(ac.RecordBatch.from_arrays(arrays, schema=schema), path, compression="snappy")


def read_timeline(path: Path) -> list[dict[str, Any]]:
    """The rows that `write_timeline` wrote, without their nulls."""
    rows: list[dict[str, Any]] = []
    for batch in aio.read_parquet(path):
        values = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        for number in range(batch.num_rows):
            row = {name: column[number] for name, column in values.items()}
            rows.append({name: value for name, value in row.items() if value is not None})
    return rows


def _is_parquet(path: Path) -> bool:
    """Whether the file begins and ends as one; arro3 panics on others instead of raising."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        begins = file.read(len(_MAGIC))
        file.seek(max(0, size - len(_MAGIC)))
        return size > 2 * len(_MAGIC) and begins == file.read() == _MAGIC


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _type_of(name: str) -> ac.DataType:
    if name == "event_ns":
        return ac.DataType.list(ac.Field("element", ac.DataType.int64(), nullable=False))
    if name == "event_tokens":
        return ac.DataType.list(ac.Field("element", ac.DataType.int32(), nullable=False))
    if name in _INT64:
        return ac.DataType.int64()
    return ac.DataType.int32() if name in COUNTS else ac.DataType.string()


def _to_arrow(columns: RequestColumns, name: str, first: int) -> ac.Array:
    rows = slice(first, first + _ROWS_A_GROUP)
    kind = _type_of(name)
    if name == "index":
        return ac.Array.from_numpy(columns.index[rows])
    if name == "event_ns":
        return _list_array(columns, columns.event_ns, first, None)
    if name == "event_tokens":
        return _list_array(columns, columns.event_tokens, first, ~columns.has_event_tokens[rows])
    if name in columns.integers:
        integers = columns.integers[name]
        return _int_array(integers.values[rows], integers.is_set[rows], kind)
    if name in columns.labels:
        labels = columns.labels[name]
        lookup: list[str | None] = [*labels.names, None]  # code -1 finds the None at the end
        return ac.Array([lookup[code] for code in labels.codes[rows]], type=kind)
    return ac.Array(columns.texts[name][rows], type=kind)


def _list_array(
    columns: RequestColumns, values: NDArray[Any], first: int, absent: NDArray[np.bool_] | None
) -> ac.Array:
    offsets = columns.event_offsets[first : first + _ROWS_A_GROUP + 1]
    return ac.list_array(
        ac.Array.from_numpy((offsets - offsets[0]).astype(np.int32)),
        ac.Array.from_numpy(values[offsets[0] : offsets[-1]]),
        type=_type_of("event_ns" if values.dtype == np.int64 else "event_tokens"),
        mask=None if absent is None or not absent.any() else ac.Array.from_numpy(absent),
    )


def _int_array(values: NDArray[np.int64], is_set: NDArray[np.bool_], kind: ac.DataType) -> ac.Array:
    if is_set.all():
        return ac.Array.from_numpy(values.astype(np.int64 if kind == ac.DataType.int64() else np.int32))
    return ac.Array(
        [value if known else None for value, known in zip(values.tolist(), is_set, strict=True)], type=kind
    )


def _from_arrow(batch: ac.RecordBatch, text_names: Iterable[str]) -> RequestColumns:
    events, tokens = batch.column("event_ns"), batch.column("event_tokens")
    offsets = ac.list_offsets(events).to_numpy().astype(np.int64)
    has_tokens = _is_set(tokens)
    token_values = ac.list_flatten(tokens).to_numpy()
    if not has_tokens.all():
        # A null list takes no room in the file; in memory its events keep their places.
        beside = np.zeros(int(offsets[-1] - offsets[0]), dtype=np.int32)
        beside[np.repeat(has_tokens, np.diff(offsets))] = token_values
        token_values = beside
    return RequestColumns(
        index=batch.column("index").to_numpy(),
        integers={name: _int_column(batch, name) for name in INSTANTS + DURATIONS + COUNTS},
        labels={name: _label_column(batch.column(name)) for name in LABELS},
        texts={name: list(batch.column(name).to_pylist()) for name in text_names},
        event_offsets=offsets - offsets[0],
        event_ns=ac.list_flatten(events).to_numpy(),
        event_tokens=token_values,
        has_event_tokens=has_tokens,
    )


def _is_set(column: ac.Array) -> NDArray[np.bool_]:
    if column.null_count == 0:
        return np.ones(len(column), dtype=np.bool_)
    return np.array([column[row].is_valid for row in range(len(column))], dtype=np.bool_)


def _int_column(batch: ac.RecordBatch, name: str) -> IntColumn:
    if name not in batch.schema.names:
        return IntColumn(np.zeros(batch.num_rows, dtype=np.int64), np.zeros(batch.num_rows, dtype=np.bool_))
    column = batch.column(name)
    if column.null_count == 0:
        values = column.to_numpy().astype(np.int64)
        return IntColumn(values, np.ones(len(values), dtype=np.bool_))
    found = column.to_pylist()
    is_set = np.array([value is not None for value in found], dtype=np.bool_)
    return IntColumn(np.array([0 if value is None else value for value in found], dtype=np.int64), is_set)


def _label_column(column: ac.Array) -> LabelColumn:
    names: dict[str, int] = {}
    codes = [-1 if label is None else names.setdefault(label, len(names)) for label in column.to_pylist()]
    return LabelColumn(np.array(codes, dtype=np.int32), tuple(names))
