from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbench.columns import RequestColumns, from_records
from llmbench.errors import UsageError
from llmbench.parquet import (
    REQUEST_COLUMNS,
    read_requests,
    read_timeline,
    write_requests,
    write_timeline,
)
from llmbench.records import Outcome
from tests.llmbench.sample_runs import failed_record, ok_record

ROWS_A_GROUP = 16_384


def some_records():
    return [
        ok_record(2, sent=5, events=[10, 20, 30], tokens=[1, 2, 1], warnings=["buffered", "usage_missing"]),
        failed_record(0, Outcome.DROPPED, sent_ns=None, end_ns=None, tenant="a", due_ns=4),
        ok_record(1, events=[7, 8], session="s-1", turn=2, text="hello"),
        ok_record(3, events=[4, 6]),
    ]


def with_unknown_tokens():
    records = some_records()
    records[2].event_tokens = None
    return records


def assert_same(left: RequestColumns, right: RequestColumns) -> None:
    np.testing.assert_array_equal(left.index, right.index)
    for name, column in left.integers.items():
        np.testing.assert_array_equal(column.is_set, right.integers[name].is_set, err_msg=name)
        known = column.is_set
        np.testing.assert_array_equal(column.values[known], right.integers[name].values[known], err_msg=name)
    for name, labels in left.labels.items():
        other = right.labels[name]
        assert [(*labels.names, None)[code] for code in labels.codes] == [
            (*other.names, None)[code] for code in other.codes
        ]
    for name, texts in left.texts.items():
        assert texts == right.texts[name]
    np.testing.assert_array_equal(left.event_offsets, right.event_offsets)
    np.testing.assert_array_equal(left.event_ns, right.event_ns)
    np.testing.assert_array_equal(left.has_event_tokens, right.has_event_tokens)
    known = np.repeat(left.has_event_tokens, left.num_events)
    np.testing.assert_array_equal(left.event_tokens[known], right.event_tokens[known])


def test_rows_are_ordered_by_index_whatever_order_requests_ended_in():
    columns = from_records(some_records())
    assert columns.index.tolist() == [0, 1, 2, 3]
    assert columns.event_offsets.tolist() == [0, 0, 2, 5, 7]
    assert columns.event_ns.tolist() == [7, 8, 10, 20, 30, 4, 6]
    assert columns.event_tokens.tolist() == [1, 1, 1, 2, 1, 1, 1]
    assert columns.labels["outcome"].among("ok").tolist() == [False, True, True, True]


def test_absent_is_not_a_number():
    sent = from_records(some_records()).integers["sent_ns"]
    assert sent.is_set.tolist() == [False, True, True, True]


def test_events_without_as_many_token_counts_are_refused():
    with pytest.raises(ValueError, match=r"request 4: 2 events but 1 token counts"):
        from_records([ok_record(4, events=[1, 2], tokens=[1], output_tokens=2)])


@pytest.mark.parametrize("records", [[], some_records(), with_unknown_tokens()])
def test_requests_parquet_gives_back_what_was_written(tmp_path: Path, records):
    columns = from_records(records)
    write_requests(tmp_path / "requests.parquet", columns)
    assert_same(columns, read_requests(tmp_path / "requests.parquet"))


def test_a_run_larger_than_a_row_group_comes_back_whole(tmp_path: Path):
    records = [ok_record(index, events=range(index % 4)) for index in range(2 * ROWS_A_GROUP + 5)]
    columns = from_records(records)
    write_requests(tmp_path / "requests.parquet", columns)
    assert pq.ParquetFile(tmp_path / "requests.parquet").num_row_groups == 3
    assert_same(columns, read_requests(tmp_path / "requests.parquet"))


def test_saved_texts_are_kept_where_the_run_kept_them(tmp_path: Path):
    write_requests(tmp_path / "with.parquet", from_records(some_records(), save_text=True))
    write_requests(tmp_path / "without.parquet", from_records(some_records()))
    assert pq.read_table(tmp_path / "with.parquet")["text"].to_pylist() == [None, "hello", None, None]
    assert read_requests(tmp_path / "with.parquet").texts["text"] == [None, "hello", None, None]
    assert "text" not in read_requests(tmp_path / "without.parquet").texts


def test_pyarrow_reads_the_contracts_schema_and_nulls(tmp_path: Path):
    write_requests(tmp_path / "requests.parquet", from_records(with_unknown_tokens()))
    table = pq.read_table(tmp_path / "requests.parquet")
    assert tuple(table.schema.names) == REQUEST_COLUMNS
    for name in ("index", "due_ns", "sent_ns", "headers_ns", "first_event_ns", "end_ns"):
        assert table.schema.field(name).type == pa.int64(), name
    assert table.schema.field("event_ns").type.value_type == pa.int64()
    assert table.schema.field("event_tokens").type.value_type == pa.int32()
    rows = table.to_pylist()
    assert rows[0]["sent_ns"] is None
    assert rows[0]["tenant"] == "a"
    assert rows[0]["event_ns"] == []
    assert rows[0]["outcome"] == "dropped"
    assert rows[1]["event_ns"] == [7, 8]
    assert rows[1]["event_tokens"] is None
    assert rows[2]["event_tokens"] == [1, 2, 1]
    assert rows[2]["warnings"] == "buffered,usage_missing"


def test_pandas_reads_it_too(tmp_path: Path):
    write_requests(tmp_path / "requests.parquet", from_records(some_records()))
    frame = pd.read_parquet(tmp_path / "requests.parquet")
    assert frame["outcome"].tolist() == ["dropped", "ok", "ok", "ok"]
    assert frame["sent_ns"].isna().tolist() == [True, False, False, False]
    assert list(frame["event_ns"][2]) == [10, 20, 30]


def test_a_foreign_file_is_a_usage_error_that_names_it(tmp_path: Path):
    (tmp_path / "requests.parquet").write_bytes(b"hello")
    with pytest.raises(UsageError, match=r"requests\.parquet"):
        read_requests(tmp_path / "requests.parquet")
    pq.write_table(pa.table({"index": [1]}), tmp_path / "other.parquet")
    with pytest.raises(UsageError, match="lacks phase"):
        read_requests(tmp_path / "other.parquet")


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 10**12), max_size=5), max_size=12), st.randoms(use_true_random=False))
def test_records_in_any_order_make_the_same_rows(events, random):
    records = [
        ok_record(index, sent=index, events=sorted(each), tenant=f"t{index % 3}", request_id=f"r-{index}")
        for index, each in enumerate(events)
    ]
    in_order = from_records(records)
    random.shuffle(records)
    columns = from_records(records)
    assert columns.index.tolist() == list(range(len(events)))
    assert columns.texts["request_id"] == in_order.texts["request_id"]
    for row in range(columns.num_rows):
        span = slice(columns.event_offsets[row], columns.event_offsets[row + 1])
        assert columns.event_ns[span].tolist() == sorted(events[row])
        assert columns.event_tokens[span].tolist() == [1] * len(events[row])
        assert columns.integers["sent_ns"].values[row] == row
        tenant = columns.labels["tenant"]
        assert tenant.names[tenant.codes[row]] == f"t{row % 3}"


def test_labels_count_what_they_name():
    columns = from_records(some_records())
    everything = np.ones(4, dtype=np.bool_)
    assert columns.labels["outcome"].counts(everything) == {"ok": 3, "dropped": 1}
    assert columns.labels["tenant"].counts(everything) == {"a": 1}
    assert not columns.labels["tenant"].among("nobody").any()


def test_the_timeline_holds_a_row_a_second_and_source(tmp_path: Path):
    rows = [
        {"t_s": 1.0, "source": "client", "cpu_share": 0.25},
        {"t_s": 0.0, "source": "server", "queue": 3.0, "kv_use": float("nan")},
        {"t_s": 0.0, "source": "client", "cpu_share": 0.5},
    ]
    write_timeline(tmp_path / "timeline.parquet", rows)
    assert read_timeline(tmp_path / "timeline.parquet") == [
        {"t_s": 0.0, "source": "client", "cpu_share": 0.5},
        {"t_s": 0.0, "source": "server", "queue": 3.0},
        {"t_s": 1.0, "source": "client", "cpu_share": 0.25},
    ]
    frame = pd.read_parquet(tmp_path / "timeline.parquet")
    assert frame["queue"].isna().tolist() == [True, False, True]


def test_an_empty_timeline_is_a_file_too(tmp_path: Path):
    write_timeline(tmp_path / "timeline.parquet", [])
    assert read_timeline(tmp_path / "timeline.parquet") == []
