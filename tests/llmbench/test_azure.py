"""The Azure 2023 trace: exact times, every broken row named, nothing cut in silence; and our own sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.errors import UsageError
from llmbench.workload.data import resolve_data_path
from llmbench.workload.sample import main, sample_csv
from llmbench.workload.traces.azure import HEADER, load_trace, parse_timestamp_ns, parse_trace

SAMPLE = Path(__file__).parents[2] / "scenarios" / "data" / "azure-sample.csv"

ROWS = (
    "2023-11-16 18:15:46.6805900,374,44",
    "2023-11-16 18:15:50.9951690,396,109",
    "2023-11-16 18:15:51.2224671,879,55",
)
OFFSETS_NS = [0, 4_314_579_000, 4_541_877_100]


def text(rows=ROWS, end="\r\n", header=HEADER) -> str:
    return end.join((header, *rows)) + end


@pytest.mark.parametrize(
    "content",
    [
        text(),
        text(end="\n"),
        text().rstrip("\r\n"),
        text(rows=("", ROWS[0], "", "  ", *ROWS[1:], "")),
        text(header="TIMESTAMP, ContextTokens, GeneratedTokens"),
        text(rows=tuple(row.replace(",", " , ") for row in ROWS)),
    ],
    ids=["CRLF", "LF", "no end of the last line", "blank lines", "blanks in the header", "blanks in cells"],
)
def test_times_and_lengths_are_read_exactly(content):
    trace = parse_trace(content, "t.csv")
    assert trace.offset_ns.tolist() == OFFSETS_NS
    assert trace.input_tokens.tolist() == [374, 396, 879]
    assert trace.output_tokens.tolist() == [44, 109, 55]
    assert trace.num_file_rows == len(trace) == 3
    assert trace.offset_ns.dtype == np.int64


def test_a_byte_order_mark_is_passed_over(tmp_path):
    path = tmp_path / "bom.csv"
    path.write_bytes(b"\xef\xbb\xbf" + text().encode())
    assert load_trace(path).offset_ns.tolist() == OFFSETS_NS


@pytest.mark.parametrize(
    ("written", "nanoseconds"),
    [
        ("1970-01-01 00:00:00.0000001", 100),
        ("1970-01-01 00:00:01", 1_000_000_000),
        ("1970-01-02 00:00:00.5", 86_400_500_000_000),
        ("2024-02-29 23:59:59.9999999", 1_709_251_199_999_999_900),
        ("2024-05-12T00:00:00.004513+00:00", 1_715_472_000_004_513_000),
        ("2024-05-12 00:00:00.123456789Z", 1_715_472_000_123_456_789),
    ],
)
def test_every_fractional_digit_counts(written, nanoseconds):
    assert parse_timestamp_ns(written) == nanoseconds


@given(st.integers(0, 2**62).map(lambda value: value - value % 100))
def test_a_written_instant_is_read_back(instant):
    seconds, fraction = divmod(instant, 10**9)
    written = str(np.datetime64(seconds, "s")).replace("T", " ") + f".{fraction // 100:07}"
    assert parse_timestamp_ns(written) == instant


BROKEN = [
    ("2023-11-16 18:15:51.2224671,879", "2 columns; expected 3"),
    ("2023-11-16 18:15:51.2224671,879,55,1", "4 columns; expected 3"),
    ("2023-11-16 18:15:51.2224671,0,55", "ContextTokens is '0'"),
    ("2023-11-16 18:15:51.2224671,-3,55", "ContextTokens is '-3'"),
    ("2023-11-16 18:15:51.2224671,12.5,55", "ContextTokens is '12.5'"),
    ("2023-11-16 18:15:51.2224671,879,nan", "GeneratedTokens is 'nan'"),
    ("2023-11-16 18:15:51.2224671,879,", "GeneratedTokens is ''"),
    ("2023-11-16 18:15:51.2224671,99999999999999999999999,5", "ContextTokens is '99999999999999999999999'"),
    ("2023-11-16 18:15:51.2224671,٣,5", "ContextTokens is '٣'"),
    ("2023-13-16 18:15:51.2224671,879,55", "TIMESTAMP is '2023-13-16 18:15:51.2224671'"),
    ("2023-02-29 18:15:51.2224671,879,55", "TIMESTAMP is '2023-02-29"),
    ("2023-11-16 25:15:51.2224671,879,55", "TIMESTAMP is"),
    ("2023-11-16 18:15:51.1234567890,879,55", "TIMESTAMP is"),
    ("2023-11-16 18:15:51+02:00,879,55", "TIMESTAMP is"),
    ("9999-11-16 18:15:51,879,55", "TIMESTAMP is"),
    ("1700158551,879,55", "TIMESTAMP is '1700158551'"),
    ("2023-11-16 18:15:45.0000000,879,55", "earlier than the row before it; sort the file by TIMESTAMP"),
]


@pytest.mark.parametrize(("row", "message"), BROKEN)
def test_a_broken_row_is_named_by_file_and_line(row, message):
    with pytest.raises(UsageError) as caught:
        parse_trace(text(rows=(*ROWS[:2], "", row)), "t.csv")
    assert str(caught.value).startswith("t.csv line 5: ")
    assert message in str(caught.value)


def test_all_broken_rows_are_named_up_to_ten():
    with pytest.raises(UsageError) as caught:
        parse_trace(text(rows=(ROWS[0], *["x,y,z"] * 13)), "t.csv")
    lines = str(caught.value).split("\n")
    assert [line.split(":")[0] for line in lines[:10]] == [f"t.csv line {number}" for number in range(3, 13)]
    assert lines[10:] == ["and 3 more broken rows"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty"),
        ("\r\n \n", "empty"),
        (HEADER + "\r\n", "a header and no rows"),
        ("Timestamp,Model,Request tokens\n1,2,3\n", "the header is 'Timestamp,Model,Request tokens'"),
        (ROWS[0] + "\n", "line 1: the header is"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(content, message):
    with pytest.raises(UsageError, match=message):
        parse_trace(content, "t.csv")


def test_a_file_that_is_no_text_or_not_there_is_refused(tmp_path):
    path = tmp_path / "trace.gz"
    path.write_bytes(b"\x1f\x8b\x08\xff\xfe")
    with pytest.raises(UsageError, match=r"trace\.gz: not a whole gzip file"):
        load_trace(path)
    with pytest.raises(UsageError, match=r"gone\.csv: cannot be read: No such file"):
        load_trace(tmp_path / "gone.csv")


class TestPrepared:
    def test_a_start_skips_rows_counts_from_there_and_says_so(self):
        trace = parse_trace(text(), "t.csv").prepared(start_s=4.0)
        assert trace.offset_ns.tolist() == [314_579_000, 541_877_100]
        assert trace.input_tokens.tolist() == [396, 879]
        assert trace.num_file_rows == 3
        assert trace.notes == ("1 rows before load.start 4s are left out",)

    def test_lengths_are_scaled_then_clipped_and_it_is_said(self):
        trace = parse_trace(text(), "t.csv").prepared(
            input_scale=0.1, output_scale=0.001, max_input=50, max_output=10
        )
        assert trace.input_tokens.tolist() == [37, 40, 50]
        assert trace.output_tokens.tolist() == [1, 1, 1]
        assert trace.notes == (
            "input lengths scaled by 0.1",
            "1 input lengths cut to 50",
            "output lengths scaled by 0.001",
        )

    def test_untouched_is_unchanged(self):
        trace = parse_trace(text(), "t.csv")
        assert trace.prepared().notes == ()
        assert trace.prepared().input_tokens.tolist() == trace.input_tokens.tolist()

    def test_a_start_after_the_end_is_refused(self):
        with pytest.raises(UsageError, match=r"load.start: 60s skips all of t\.csv \(4\.5s long\)"):
            parse_trace(text(), "t.csv").prepared(start_s=60)


class TestSample:
    def test_the_bundled_file_is_what_the_script_makes(self, tmp_path):
        path = tmp_path / "sample.csv"
        main([str(path)])
        assert path.read_bytes() == SAMPLE.read_bytes()

    def test_it_is_bursty_with_lengths_of_that_kind(self):
        trace = load_trace(SAMPLE)
        gaps_s = np.diff(trace.offset_ns) / 1e9
        assert 600 <= len(trace) <= 1000
        assert 3 < 1 / np.mean(gaps_s) < 8
        assert np.std(gaps_s) / np.mean(gaps_s) > 1.05
        assert 500 < np.median(trace.input_tokens) < 1500
        assert 80 < np.median(trace.output_tokens) < 250
        assert np.mean(trace.input_tokens) > 1.2 * np.median(trace.input_tokens)

    def test_another_seed_is_another_trace_of_the_length_asked(self):
        assert sample_csv(seed=1, num_rows=50) != sample_csv(seed=2, num_rows=50)
        assert len(parse_trace(sample_csv(seed=1, num_rows=50).decode(), "s")) == 50


class TestPaths:
    def test_beside_the_scenario_first_then_the_working_directory_then_bundled(self, tmp_path, monkeypatch):
        here, scenario_dir = tmp_path / "here", tmp_path / "scenario"
        here.mkdir()
        scenario_dir.mkdir()
        monkeypatch.chdir(here)
        name = "azure-sample.csv"
        assert resolve_data_path(name, scenario_dir) == SAMPLE
        assert resolve_data_path(f"data/{name}", scenario_dir) == SAMPLE
        (here / name).touch()
        assert resolve_data_path(name, scenario_dir) == here / name
        (scenario_dir / name).touch()
        assert resolve_data_path(name, scenario_dir) == scenario_dir / name
        assert resolve_data_path(str(here / name), scenario_dir) == here / name

    def test_a_missing_file_is_named_with_the_places_tried(self, tmp_path):
        with pytest.raises(UsageError, match=r"gone\.csv: no such file \(looked in "):
            resolve_data_path("gone.csv", tmp_path)
        with pytest.raises(UsageError, match="no such file"):
            resolve_data_path(str(tmp_path / "gone.csv"), None)
