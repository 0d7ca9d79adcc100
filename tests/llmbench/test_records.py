from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.records import Outcome, RequestRecord, from_journal, read_journal, to_journal
from tests.llmbench.sample_runs import failed_record, ok_record

INSTANT = st.one_of(st.none(), st.integers(0, 2**62))
RECORDS = st.builds(
    RequestRecord,
    index=st.integers(0, 2**40),
    phase=st.sampled_from(["warmup", "measure", "drain"]),
    outcome=st.sampled_from(Outcome),
    sent_ns=INSTANT,
    end_ns=INSTANT,
    event_ns=st.lists(st.integers(0, 2**62)),
    event_tokens=st.one_of(st.none(), st.lists(st.integers(0, 1000))),
    error=st.one_of(st.none(), st.text()),
    warnings=st.lists(st.sampled_from(["usage_missing", "buffered"])),
    text=st.one_of(st.none(), st.text()),
)


@given(RECORDS)
def test_a_record_comes_back_from_its_journal_line_as_it_was(record):
    line = to_journal(record)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert from_journal(line) == record
    assert from_journal(line).outcome is record.outcome


def test_absent_is_null_in_the_journal():
    line = orjson.loads(to_journal(failed_record(3, Outcome.DROPPED, sent_ns=None)))
    assert line["sent_ns"] is None
    assert line["outcome"] == "dropped"


def test_keys_of_a_later_version_are_left_out():
    line = orjson.loads(to_journal(ok_record(3, events=[5]))) | {"colour": "blue"}
    assert from_journal(orjson.dumps(line)) == ok_record(3, events=[5])


@pytest.mark.parametrize("line", [b"", b"{", b"[1]", b"null", b"7", b"{}", b'{"index": 1}', b"\0\0\0"])
def test_what_is_no_record_is_a_value_error(line):
    with pytest.raises(ValueError):
        from_journal(line)


def test_an_outcome_nobody_knows_is_a_value_error():
    line = orjson.loads(to_journal(ok_record(1))) | {"outcome": "fine"}
    with pytest.raises(ValueError):
        from_journal(orjson.dumps(line))


@pytest.mark.parametrize("kept", [0, 1, 40, -2])
def test_a_torn_last_line_of_a_killed_run_is_skipped_and_counted(tmp_path: Path, kept):
    whole = [to_journal(ok_record(index, events=[5, 9])) for index in range(3)]
    path = tmp_path / "requests-0.jsonl"
    path.write_bytes(b"".join(whole) + whole[0][:kept])
    damaged: list[str] = []
    assert [record.index for record in read_journal([path], damaged)] == [0, 1, 2]
    assert damaged == ([] if kept == 0 else ["requests-0.jsonl:4"])


def test_damage_in_the_middle_costs_only_its_own_line(tmp_path: Path):
    path = tmp_path / "requests-0.jsonl"
    path.write_bytes(to_journal(ok_record(0)) + b"\0" * 64 + b"\n\n" + to_journal(ok_record(1)))
    damaged: list[str] = []
    assert [record.index for record in read_journal([path], damaged)] == [0, 1]
    assert damaged == ["requests-0.jsonl:2"]


def test_journals_of_several_workers_are_read_one_after_the_other(tmp_path: Path):
    for worker in (0, 1):
        (tmp_path / f"{worker}.jsonl").write_bytes(to_journal(ok_record(worker, worker=worker)))
    found = list(read_journal([tmp_path / "0.jsonl", tmp_path / "1.jsonl"], []))
    assert [record.worker for record in found] == [0, 1]
