"""A whole run in this process against the mock: what is in the folder, what is said when it cannot be."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from pyarrow import parquet

from llmbench.bench import run_scenario
from llmbench.errors import TargetRefused, TargetUnreachable, UsageError
from llmbench.mock import Fault, MockOptions, serve_in_thread
from llmbench.mock.faults import read_fault
from llmbench.report.rebuild import rebuild
from llmbench.scenario.model import Scenario

KEY = "sk-bench-0123456789abcdef"
CONTRACT_COLUMNS = [
    "index", "phase", "tenant", "session", "turn", "due_ns", "sent_ns", "headers_ns", "first_event_ns",
    "event_ns", "event_tokens", "end_ns", "input_tokens_asked", "input_tokens", "cached_tokens",
    "output_tokens_asked", "output_tokens", "reasoning_tokens", "token_source", "finish_reason", "outcome",
    "error_kind", "http_status", "error", "request_id", "worker",
]  # fmt: skip


def scenario_of(url, *, target=None, load=None, workload=None, **rest):
    return Scenario.model_validate(
        {
            "name": "bench",
            "target": {"url": url, "ready_timeout": "500ms", **(target or {})},
            "load": {"arrivals": "constant", "rate": "400/s", "requests": 20, **(load or {})},
            "workload": {
                "kind": "inline",
                "prompts": ["Say hi", "Say ho"],
                "output_tokens": 6,
                **(workload or {}),
            },
            **rest,
        }
    )


def run_on(options, tmp_path, *, save_text=False, command_line=(), **parts):
    """(result, the mock's log) of a run on a mock with these options."""
    with serve_in_thread(options) as server:
        scenario = scenario_of(server.url, **parts)
        result = run_scenario(
            scenario, out=tmp_path / "reports", save_text=save_text, command_line=command_line
        )
        return result, server.log()


def rows_of(result):
    return parquet.read_table(result.folder / "requests.parquet").to_pylist()


def test_a_run_leaves_a_complete_folder(tmp_path):
    result, log = run_on(
        MockOptions(ttft_s=0.01, itl_s=0.002), tmp_path, command_line=["llmbench", "run", "x"]
    )
    assert sorted(path.name for path in result.folder.iterdir()) == [
        "requests.parquet", "run.json", "summary.json", "summary.md", "timeline.parquet",
    ]  # fmt: skip
    rows = rows_of(result)
    assert set(CONTRACT_COLUMNS) <= rows[0].keys()
    assert [row["index"] for row in rows] == list(range(20))
    assert {row["outcome"] for row in rows} == {"ok"}
    measured = {entry["id"]: entry for entry in log if "-" in (entry["id"] or "")}
    for row in rows:
        entry = measured[row["request_id"]]
        assert (row["input_tokens"], row["output_tokens"]) == (entry["input_tokens"], 6)
        assert len(row["event_ns"]) == 6
        assert row["due_ns"] <= row["sent_ns"] <= row["headers_ns"] <= row["event_ns"][0]
        assert row["event_ns"][-1] <= row["end_ns"]
    assert result.summary["counts"]["planned"] == 20
    assert result.exit_code in (0, 97)  # a busy machine may not be able to measure
    document = json.loads((result.folder / "run.json").read_text(encoding="utf-8"))
    assert document["scenario"]["target"]["url"].startswith("http://127.0.0.1")
    for name in ("scenario_hash", "schedule_hash", "prompt_set_hash", "started", "ended", "host", "seed"):
        assert document[name] not in (None, ""), name


def test_a_run_may_be_made_in_a_thread(tmp_path):
    """Signals can be watched in the main thread only; elsewhere the run goes without."""
    ended = []
    thread = threading.Thread(target=lambda: ended.append(run_on(MockOptions(), tmp_path)[0]))
    thread.start()
    thread.join(30)
    assert ended[0].summary["counts"]["ok"] == 20


@pytest.mark.parametrize("api", ["chat", "completions", "responses"])
@pytest.mark.parametrize("stream", [True, False])
def test_every_api_streaming_or_not(tmp_path, api, stream):
    result, log = run_on(MockOptions(), tmp_path, target={"api": api, "stream": stream}, save_text=True)
    rows = rows_of(result)
    assert {row["outcome"] for row in rows} == {"ok"}, rows[0]["error"]
    assert {row["output_tokens"] for row in rows} == {6}
    assert {len(row["event_ns"]) for row in rows} == {6 if stream else 0}
    assert all(row["text"] for row in rows)
    assert {row["token_source"] for row in rows} == {"usage"}
    count = result.summary["metrics"]["ttft"]["count"]
    assert count == (20 if stream else 0)
    assert {entry["stream"] for entry in log[-20:]} == {stream}


@pytest.mark.parametrize("transport", ["fast", "aiohttp", "httpx"])
def test_every_transport(tmp_path, transport):
    result, _ = run_on(MockOptions(), tmp_path, instrument={"transport": transport})
    assert result.summary["counts"]["ok"] == 20
    assert result.summary["instrument"]["transport"] == transport


def test_texts_are_kept_only_when_asked(tmp_path):
    options = MockOptions(reasoning_tokens=2)
    kept = rows_of(run_on(options, tmp_path, save_text=True)[0])
    lean = rows_of(run_on(options, tmp_path)[0])
    assert all(row["text"] and row["reasoning"] for row in kept)
    assert not any(row.get("text") for row in lean)


# ---- failures


def test_when_every_request_fails_there_is_a_report_and_code_3(tmp_path):
    result, _ = run_on(MockOptions(faults=(read_fault("status,code=503"),)), tmp_path)
    assert result.exit_code == 3
    assert result.summary["counts"]["http_error"] == 20
    assert result.summary["metrics"]["ttft"]["count"] == 0
    assert result.summary["metrics"]["ttft"]["p50"] is None
    assert "503" in (result.folder / "summary.md").read_text(encoding="utf-8")
    content = (result.folder / "summary.json").read_text(encoding="utf-8")
    assert "NaN" not in content
    assert "Infinity" not in content


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [("drop", "connect_error"), ("reset", "bad_stream"), ("cut", "bad_stream"), ("truncate", "bad_stream"),
     ("error", "bad_stream"), ("empty", "bad_stream"), ("json-error", "bad_stream"), ("malformed", "ok")],
)  # fmt: skip
def test_half_the_requests_fail(tmp_path, kind, outcome):
    result, log = run_on(MockOptions(faults=(Fault(kind=kind, every=2),)), tmp_path)
    counts = result.summary["counts"]
    assert sum(counts[name] for name in ("ok", "bad_stream", "connect_error")) == 20
    assert counts[outcome] >= 9
    good = [row for row in rows_of(result) if row["outcome"] == "ok"]
    assert result.summary["metrics"]["ttft"]["count"] == len(good)
    assert len([entry for entry in log if entry["id"] and "-" in entry["id"]]) <= 21  # nothing is sent twice


def test_a_stream_that_stalls_times_out_and_is_no_cancellation(tmp_path):
    """In a closed loop the drain once ended just before the last requests' own timeouts."""
    options = MockOptions(faults=(Fault(kind="stall"),))
    closed = {"arrivals": "closed", "rate": None, "concurrency": 4, "requests": 4}
    result, _ = run_on(options, tmp_path, target={"timeout": "500ms", "ignore_eos": False}, load=closed)
    assert result.summary["counts"]["timeout"] == 4


def test_a_refused_key_is_said_before_anything_is_measured(tmp_path):
    with pytest.raises(TargetRefused, match=r"target\.api_key"):
        run_on(MockOptions(api_key="another"), tmp_path, target={"api_key": KEY})
    assert not any((tmp_path / "reports").glob("*/requests.parquet"))


def test_nobody_there_is_known_in_time(tmp_path):
    started = time.monotonic()
    with pytest.raises(TargetUnreachable, match="refused the connection"):
        run_scenario(scenario_of("http://127.0.0.1:9"), out=tmp_path)
    assert time.monotonic() - started < 5


def test_the_wrong_path_is_shown_whole(tmp_path):
    result, _ = run_on(MockOptions(faults=(read_fault("status,code=404"),)), tmp_path)
    assert "/v1/chat/completions" in rows_of(result)[0]["error"]


def test_a_folder_that_cannot_be_written_is_said_before_the_first_request(tmp_path):
    (tmp_path / "reports").write_text("a file", encoding="utf-8")
    with serve_in_thread(MockOptions()) as server:
        with pytest.raises(UsageError, match="cannot write there"):
            run_scenario(scenario_of(server.url), out=tmp_path / "reports")
        assert server.log() == []


# ---- secrets


def everything_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def texts_of(folder):
    """All bytes, and parquet's strings as they are once unpacked."""
    for path, content in everything_in(folder).items():
        yield path.name, content
        if path.suffix == ".parquet":
            yield path.name, repr(parquet.read_table(path).to_pylist()).encode()


@pytest.mark.parametrize("code", [200, 401, 500])
def test_the_key_is_in_no_file_also_when_the_server_repeats_it(tmp_path, code):
    """In the command line, in a header, in the body the user sends, in an error and in the text."""
    kind = "error" if code == 200 else "status"
    fault = read_fault({"kind": kind, "message": f"no: {KEY}", "code": code})
    result, log = run_on(
        MockOptions(faults=(fault,), log_bodies=True),
        tmp_path,
        target={"api_key": KEY, "ignore_eos": False, "headers": {"X-Api-Key": f"{KEY}-2"}},
        save_text=True,
        command_line=["llmbench", "run", "--set", f"target.api_key={KEY}"],
    )
    assert result.exit_code == 3
    assert "no: ***" in rows_of(result)[0]["error"]
    assert len(log) >= 20
    for name, content in texts_of(result.folder):
        assert KEY.encode() not in content, name
    assert KEY not in json.dumps(result.summary)


# ---- the disk

LIMITED = """
    import resource, sys
    from pathlib import Path
    from llmbench.bench import run_scenario
    from llmbench.errors import CannotMeasure
    from llmbench.scenario.model import Scenario

    scenario = Scenario.model_validate({
        "name": "bench",
        "target": {"url": sys.argv[1], "ignore_eos": False},
        "load": {"arrivals": "constant", "rate": "200/s", "requests": int(sys.argv[3])},
        "workload": {"kind": "inline", "prompts": ["Say hi"], "output_tokens": 4},
    })
    limit = int(sys.argv[4])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        result = run_scenario(scenario, out=Path(sys.argv[2]))
    except CannotMeasure as error:
        print(error)
        raise SystemExit(3)
    raise SystemExit(result.exit_code)
"""


@pytest.mark.parametrize(
    ("requests", "limit", "what"),
    [(200, 40_000, "journal"), (5, 6_000, "results")],
    ids=["in the run", "at its end"],
)
def test_a_full_disk_ends_the_run_with_words_and_keeps_what_was_written(tmp_path, requests, limit, what):
    """A parquet file of five rows is larger than their journal: that one fits, and is kept for later."""
    with serve_in_thread(MockOptions()) as server:
        command = [sys.executable, "-c", textwrap.dedent(LIMITED), server.url, str(tmp_path)]
        command += [str(requests), str(limit)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    (folder,) = Path(tmp_path).iterdir()
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert f"the {what} could not be written" in done.stdout
    assert "llmbench report" in done.stdout
    rebuilt = rebuild(folder)
    assert rebuilt.summary["counts"]["ok"] >= min(requests, 20)
    assert len(rebuilt.damaged) <= 1


def test_what_this_version_cannot_do_is_refused_by_name(tmp_path):
    for part, name in [
        ({"matrix": {"load.rate": ["1/s", "2/s"]}}, "matrix"),
    ]:
        with pytest.raises(UsageError, match=name):
            run_scenario(scenario_of("http://127.0.0.1:9", **part), out=tmp_path)
    with pytest.raises(UsageError, match=r"load\.until"):
        run_scenario(scenario_of("http://127.0.0.1:9", load={"until": {"ttft.p95": "5%"}}), out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_closed_loop_does_not_hammer_a_server_that_answers_nothing(tmp_path):
    """With only a duration to end it, such a loop once sent as fast as connections could be refused."""
    options = MockOptions(faults=(read_fault("drop"),))
    load = {"arrivals": "closed", "concurrency": 4, "duration": "1s", "rate": None, "requests": None}
    result, _ = run_on(options, tmp_path, load=load, target={"ignore_eos": False})
    assert result.exit_code == 3
    assert 4 <= len(rows_of(result)) <= 4 * 11


def test_limits_of_a_single_workload_are_refused_rather_than_ignored(tmp_path):
    """Set on a workload, they were accepted and never judged: a gate that always passes."""
    workload = {"tenant": "a", "slo": {"ttft": {"p50": "1ms"}}}
    with pytest.raises(UsageError, match=r"workload\.slo   not in this version; write the limits under slo"):
        run_scenario(scenario_of("http://127.0.0.1:9", workload=workload), out=tmp_path)
