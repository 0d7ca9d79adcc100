from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import orjson
import pytest

from llmbench.cli.app import main
from llmbench.columns import from_records
from llmbench.context import LostWorker, RunContext, StageWindow
from llmbench.errors import UsageError
from llmbench.parquet import read_requests, read_timeline
from llmbench.records import to_journal
from llmbench.report.folder import RunFolder, create, open_folder, replace_file, write_json
from llmbench.report.rebuild import NO_RECORD, read_journals, rebuild, write_results
from llmbench.report.timeline import request_rows
from tests.llmbench.sample_runs import MS, S, closed_loop, failed_record, limit, ok_record, steady_run

START = datetime(2026, 11, 30, 20, 45, 12, tzinfo=UTC)


def new_folder(base: Path, context: RunContext, name: str = "chat-steady") -> RunFolder:
    folder = create(base, name, START)
    folder.write_run({"scenario": {"name": name}, "measurement": context.to_json()})
    return folder


def journal_of(folder: RunFolder, records, worker: int = 0) -> Path:
    path = folder.journal / f"requests-{worker}.jsonl"
    path.write_bytes(b"".join(to_journal(record) for record in records))
    return path


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- the folder


def test_a_folder_is_named_after_its_start_in_utc_and_its_scenario(tmp_path: Path):
    start = START.astimezone(timezone(timedelta(hours=2)))
    assert create(tmp_path, "chat steady/x", start).path == tmp_path / "20261130T204512Z-chat-steady-x"


@pytest.mark.parametrize("name", ["..", "/", "", "a/../../b", ".hidden"])
def test_no_name_leads_out_of_the_base_folder(tmp_path: Path, name):
    folder = create(tmp_path / "reports", name, START)
    assert folder.path.parent == tmp_path / "reports"
    assert not folder.path.name.endswith((".", "-"))


def test_a_run_never_overwrites_another(tmp_path: Path):
    paths = [create(tmp_path, "x", START).path.name for _ in range(3)]
    assert paths == ["20261130T204512Z-x", "20261130T204512Z-x-2", "20261130T204512Z-x-3"]


def test_a_folder_that_cannot_be_written_to_is_a_usage_error_before_the_first_request(tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UsageError, match="name a folder that can be written to"):
        create(tmp_path / "file", "x", START)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path):
    path = tmp_path / "summary.json"
    write_json(path, {"old": 1})

    def fails(unfinished: Path) -> None:
        unfinished.write_bytes(b'{"ne')
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        replace_file(path, fails)
    assert orjson.loads(path.read_bytes()) == {"old": 1}
    assert names_in(tmp_path) == ["summary.json"]


def test_json_files_are_strict(tmp_path: Path):
    write_json(tmp_path / "x.json", {"a": float("nan"), "b": float("inf"), "é": "ü"})
    assert orjson.loads((tmp_path / "x.json").read_bytes()) == {"a": None, "b": None, "é": "ü"}


def test_a_context_comes_back_from_run_json():
    context = replace(
        steady_run()[1],
        tenant_slo={"a": (limit("ttft", "p95", 0.1),)},
        stages=(StageWindow(label="1/s", start_ns=0, end_ns=S),),
        instrument={"workers": 2},
    )
    assert RunContext.from_json(orjson.loads(orjson.dumps(context.to_json()))) == context


# ---- results


def test_a_finished_run_leaves_its_files_and_no_journal(tmp_path: Path):
    records, context = steady_run()
    folder = new_folder(tmp_path, context)
    journal_of(folder, records)
    samples = [{"t_s": 0.0, "source": "client", "cpu_share": 0.06}]
    summary = write_results(folder, from_records(records), context, samples)
    assert names_in(folder.path) == [
        "requests.parquet",
        "run.json",
        "summary.json",
        "summary.md",
        "timeline.parquet",
    ]
    assert orjson.loads(folder.summary_json.read_bytes()) == orjson.loads(orjson.dumps(summary))
    sources = {row["source"] for row in read_timeline(folder.timeline)}
    assert sources == {"client", "requests"}


def test_a_rebuilt_report_is_the_one_the_run_wrote(tmp_path: Path):
    records, context = steady_run()
    folder = new_folder(tmp_path, context)
    samples = [{"t_s": 0.0, "source": "client", "cpu_share": 0.06}]
    write_results(folder, from_records(records), context, samples)
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    folder.summary_md.unlink()
    folder.summary_json.unlink()
    rebuild(folder.path)
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before


def test_a_killed_run_gives_every_request_that_had_ended(tmp_path: Path):
    records, context = steady_run()
    folder = new_folder(tmp_path, context)
    ended = sorted(records[:200], key=lambda record: record.end_ns)
    journal_of(folder, ended[::2], worker=0)
    torn = journal_of(folder, ended[1::2], worker=1)
    torn.write_bytes(torn.read_bytes()[:-30])
    (folder.journal / "timeline.jsonl").write_bytes(
        b'{"t_s": 1.0, "source": "client", "cpu_share": 0.5}\n{"t_s": 2.0, "sour'
    )
    rebuilt = rebuild(folder.path)
    counts = rebuilt.summary["counts"]
    assert rebuilt.damaged == ["requests-1.jsonl:100"]
    assert counts["planned"] == 247
    assert (counts["ok"], counts["cancelled"]) == (197, 48)
    assert not folder.journal.exists()
    columns = read_requests(folder.requests)
    assert columns.index.tolist() == list(range(247))
    assert columns.texts["error"].count(NO_RECORD) == 48
    assert {"t_s": 1.0, "source": "client", "cpu_share": 0.5} in read_timeline(folder.timeline)
    assert [reason["code"] for reason in rebuilt.summary["verdict"]["reasons"]] == ["interrupted"]
    assert "killed" in rebuilt.summary["verdict"]["reasons"][0]["message"]
    # Reported again, from the parquet file this time, it says the same.
    assert rebuild(folder.path).summary == rebuilt.summary


def test_a_killed_closed_loop_planned_what_its_records_say(tmp_path: Path):
    records, context = steady_run(40)
    folder = new_folder(tmp_path, replace(context, planned=None, open_loop=False))
    journal_of(folder, [records[index] for index in range(40) if index not in (3, 38)])
    counts = rebuild(folder.path).summary["counts"]
    assert (counts["planned"], counts["ok"], counts["cancelled"]) == (40, 38, 2)


def test_requests_without_a_record_keep_their_phase(tmp_path: Path):
    records, context = steady_run()
    folder = new_folder(tmp_path, context)
    journal_of(folder, records[30:40])
    counts = rebuild(folder.path).summary["counts"]
    assert (counts["planned"], counts["warmup"], counts["measured"]) == (247, 20, 227)


def test_a_record_that_is_in_the_journal_twice_counts_once(tmp_path: Path):
    records, context = steady_run(10)
    folder = new_folder(tmp_path, replace(context, planned=10))
    journal_of(folder, [*records, records[4]])
    assert rebuild(folder.path).summary["counts"]["planned"] == 10


def test_token_counts_that_do_not_match_the_events_cost_only_themselves(tmp_path: Path):
    records, context = steady_run(3)
    records[1].event_tokens = [1]
    folder = new_folder(tmp_path, replace(context, planned=3, num_warmup=0))
    journal_of(folder, [replace(record, phase="measure") for record in records])
    summary = rebuild(folder.path).summary
    assert (summary["metrics"]["ttft"]["count"], summary["metrics"]["tpot"]["count"]) == (3, 2)
    assert summary["tokens"]["warnings"] == {"token_counts_mismatch": 1}


def test_a_kill_between_the_parquet_file_and_the_journals_end_loses_nothing(tmp_path: Path):
    records, context = steady_run(10)
    context = replace(context, planned=10)
    folder = new_folder(tmp_path, context)
    summary = write_results(folder, from_records(records), context)
    folder.journal.mkdir()
    journal_of(folder, records)
    folder.summary_json.unlink()
    assert rebuild(folder.path).summary == summary
    assert not folder.journal.exists()


def test_a_run_killed_before_anything_ended_still_gives_a_report(tmp_path: Path):
    folder = new_folder(tmp_path, replace(steady_run()[1], planned=5))
    journal_of(folder, [])
    summary = rebuild(folder.path).summary
    assert summary["counts"]["cancelled"] == 5
    assert summary["verdict"]["status"] == "INVALID"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no run folder of llmbench"),
        ({"run.json": b"{"}, "not JSON"),
        ({"run.json": b"[]"}, "an object was expected"),
        ({"run.json": b"{}"}, r"run\.json: not written by this version.*no key measurement\."),
        ({"run.json": b'{"measurement": {"name": "x"}}'}, r"no key measurement\.open_loop"),
        ({"run.json": b'{"measurement": {}}'}, r"no key measurement\.name"),
        ({"run.json": b'{"measurement": 7}'}, "measurement must be an object"),
        (
            {"run.json": b'{"measurement": {"name": "x", "open_loop": true, "slo": [{"metric": "ttft"}]}}'},
            r"measurement\.slo cannot be read",
        ),
        (
            {"run.json": b'{"measurement": {"name": "x", "open_loop": true, "window_ns": "soon"}}'},
            r"measurement\.window_ns cannot be read",
        ),
        ({"run.json": b'{"measurement": {"name": "x", "open_loop": true}}'}, "there is nothing to report"),
        (
            {"run.json": b'{"measurement": {"name": "x", "open_loop": true}}', "requests.parquet": b"PAR1"},
            "not a whole parquet file",
        ),
    ],
)
def test_a_foreign_folder_is_a_usage_error_that_says_what_is_wrong(tmp_path: Path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=f"(?s){message}"):
        rebuild(tmp_path)


@pytest.mark.parametrize("with_file", [False, True], ids=["no journal file", "an empty one"])
def test_a_folder_of_a_run_that_ended_before_its_first_request_is_said_to_be_empty(tmp_path, with_file):
    folder = new_folder(tmp_path, replace(steady_run()[1], planned=None, open_loop=False))
    if with_file:
        journal_of(folder, [])
    with pytest.raises(UsageError, match=r"(?s)ended before its first request did.*nothing to report"):
        rebuild(folder.path)


def test_a_file_that_is_in_no_run_folder_is_named(tmp_path: Path):
    """A scenario was once taken for its folder, and `.` was said to be no run folder."""
    (tmp_path / "base.yaml").write_text("name: x\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"base\.yaml: a file, and not one of a run folder"):
        open_folder(tmp_path / "base.yaml")


def test_no_folder_at_all_is_a_usage_error(tmp_path: Path):
    with pytest.raises(UsageError, match="no such run folder"):
        open_folder(tmp_path / "nowhere")


def test_a_file_in_a_run_folder_stands_for_the_folder(tmp_path: Path):
    folder = new_folder(tmp_path, steady_run()[1])
    assert open_folder(folder.run_json) == folder


# ---- the command


def test_llmbench_report_prints_the_summary_and_names_what_was_torn(tmp_path: Path, capfd):
    records, context = steady_run(50)
    folder = new_folder(tmp_path, replace(context, planned=50))
    path = journal_of(folder, records)
    path.write_bytes(path.read_bytes()[:-9])
    assert main(["report", str(folder.path)]) == 0
    out, err = capfd.readouterr()
    assert "chat-steady" in out
    assert "requests-0.jsonl:50" in err


def test_llmbench_report_json_prints_the_summary_alone(tmp_path: Path, capfd):
    records, context = steady_run(50)
    context = replace(context, planned=50)
    folder = new_folder(tmp_path, context)
    write_results(folder, from_records(records), context)
    assert main(["report", "--json", str(folder.path)]) == 0
    assert orjson.loads(capfd.readouterr().out)["schema"] == "llmbench.summary/1"


def test_llmbench_report_of_no_run_folder_is_wrong_usage(tmp_path: Path, capfd):
    assert main(["report", str(tmp_path)]) == 2
    assert "no run folder of llmbench" in " ".join(capfd.readouterr().err.split())


@pytest.mark.parametrize("outcome", ["all failed", "none sent"])
def test_llmbench_report_exits_0_when_it_could_report_and_says_the_verdict(tmp_path: Path, capfd, outcome):
    context = replace(steady_run()[1], planned=5)
    folder = new_folder(tmp_path, context)
    journal_of(folder, [] if outcome == "none sent" else [failed_record(index) for index in range(5)])
    assert main(["report", str(folder.path)]) == 0
    assert "INVALID" in capfd.readouterr().out


# ---- second by second


def test_the_requests_timeline_counts_what_fell_in_each_second():
    records = [
        ok_record(0, due_ns=0, sent=10 * MS, events=[500 * MS, 1500 * MS], tokens=[1, 4], end_ns=1600 * MS),
        ok_record(1, due_ns=900 * MS, sent=900 * MS, events=[950 * MS], end_ns=960 * MS),
    ]
    first, second = request_rows(from_records(records))
    assert first == {
        "t_s": 0.0,
        "source": "requests",
        "due": 2,
        "sent": 2,
        "ended_ok": 1,
        "ended_failed": 0,
        "output_tokens": 2,
        "in_flight": 1,
    }
    assert (second["ended_ok"], second["output_tokens"], second["in_flight"]) == (1, 4, 0)


def test_no_requests_no_timeline():
    assert request_rows(from_records([])) == []


def test_a_run_that_never_began_leaves_no_folder_and_one_that_did_is_kept(tmp_path):
    unused = create(tmp_path, "unused", START)
    unused.remove_if_unused()
    assert not unused.path.exists()
    used = create(tmp_path, "used", START)
    (used.journal / "requests-0.jsonl").write_text("{}\n", encoding="utf-8")
    used.remove_if_unused()
    assert used.journal.exists()


def test_of_a_closed_loop_of_several_workers_only_what_each_had_begun_was_planned(tmp_path: Path):
    """Worker 0 went on for longer: its last requests are no evidence of any of the others'."""
    context = closed_loop(instrument={"workers": 3})
    folder = new_folder(tmp_path, context)
    journal_of(folder, [ok_record(index, worker=0) for index in (0, 3, 9, 12)], worker=0)
    journal_of(folder, [ok_record(index, worker=1) for index in (1, 4)], worker=1)
    columns, _ = read_journals(folder, context)
    assert columns.index.tolist() == [0, 1, 3, 4, 6, 9, 12]
    died = closed_loop(
        instrument={"workers": 3},
        lost_workers=(LostWorker(worker=2, how="was killed by SIGKILL", started=2),),
    )
    columns, _ = read_journals(folder, died)
    assert columns.index.tolist() == [0, 1, 2, 3, 4, 5, 6, 9, 12]
    assert columns.texts["error"][2] == "worker 2, whose request it was, was killed by SIGKILL"
    assert columns.texts["error"][6] == NO_RECORD
