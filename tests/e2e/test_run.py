"""`llmbench run` as a user has it: the program, a server, a folder."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path
from urllib.request import urlopen

import pyarrow.parquet as pq
import pytest

from tests.programs import API_KEY, LLMBENCH, MEASURED, Bench

QUICK = ("--ttft", "5ms", "--itl", "1ms")
FORGIVING = ("--ttft", "1s", "--itl", "1ms")  # beside such a TTFT a busy machine's send lag is small


def requests_of(folder: Path) -> list[dict]:
    return pq.read_table(folder / "requests.parquet").to_pylist()


def served(url: str) -> list[dict]:
    """The generating requests that the mock answered, warm-up and probes included."""
    with urlopen(f"{url}/log") as response:
        return json.load(response)["requests"]


def test_a_run_prints_its_summary_and_leaves_a_complete_folder(bench_on):
    bench = bench_on(*QUICK)
    result = bench("run", "scenario.yaml")
    assert result.returncode in MEASURED, result.stderr
    for word in ("TTFT", "TPOT", "E2E", "20 ok"):
        assert word in result.stdout
    assert f"\n  {bench.summary()['verdict']['status']}" in result.stdout
    assert max(map(len, result.stdout.splitlines()[:-1])) <= 80
    folder = bench.run_folder
    assert str(folder.relative_to(bench.folder)) in result.stdout
    names = {path.name for path in folder.iterdir()}
    assert {"run.json", "requests.parquet", "timeline.parquet", "summary.json", "summary.md"} <= names
    assert "journal" not in names
    counts = bench.summary()["counts"]
    assert counts["planned"] == 20 == len(requests_of(folder))


def test_json_is_alone_on_stdout_and_the_same_as_in_the_folder(bench_on):
    bench = bench_on(*QUICK)
    result = bench("run", "scenario.yaml", "--json")

    def reject(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert json.loads(result.stdout, parse_constant=reject) == bench.summary()


def test_progress_is_on_stderr_and_can_be_turned_off(bench_on):
    bench = bench_on(*QUICK)
    assert "constant 40/s" in bench("run", "scenario.yaml", "--json").stderr.lower()
    assert bench("run", "scenario.yaml", "--json", "--quiet").stderr == ""


def test_two_runs_never_share_a_folder(bench_on):
    bench = bench_on(*QUICK)
    for _ in range(2):
        bench("run", "scenario.yaml", "--set", "load.requests=2", "-q")
    assert len(bench.run_folders) == 2


def test_a_wrong_scenario_is_two_and_touches_neither_disk_nor_server(bench_on):
    bench = bench_on(*QUICK)
    result = bench("run", "scenario.yaml", "--set", "load.rate=4", "--set", "load.duraton=1s")
    assert result.returncode == 2
    assert "2 mistakes" in result.stderr
    assert "did you mean duration" in result.stderr
    assert not bench.run_folders
    assert served(bench.url) == []


def test_a_folder_that_cannot_be_written_is_told_before_the_first_request(bench_on):
    bench = bench_on(*QUICK)
    (bench.folder / "taken").write_text("a file", encoding="utf-8")
    result = bench("run", "scenario.yaml", "--out", "taken")
    assert result.returncode == 2
    assert "--out taken" in result.stderr
    assert served(bench.url) == []


def test_nobody_there_is_three_with_what_to_try(bench):
    result = bench("run", "scenario.yaml", LLMBENCH_URL="http://127.0.0.1:9")
    assert result.returncode == 3
    assert "http://127.0.0.1:9 refused the connection" in result.stderr
    assert "curl http://127.0.0.1:9/v1/models" in result.stderr
    assert "Traceback" not in result.stderr


def test_when_nothing_succeeds_it_is_three_and_the_report_says_why(bench_on):
    bench = bench_on("--fault", "status,code=503")
    result = bench("run", "scenario.yaml")
    assert result.returncode == 3
    assert "503" in result.stdout
    summary = bench.summary()
    assert summary["counts"]["http_error"] == summary["counts"]["planned"] == 20
    assert summary["metrics"]["ttft"]["p50"] is None


def test_a_measurement_that_cannot_be_trusted_is_97(bench_on):
    bench = bench_on("--ttft", "300ms")
    result = bench("run", "scenario.yaml", "--set", "load.max_in_flight=2", "--set", "slo.ttft.p50=1ms")
    assert result.returncode == 97  # the broken limit would be 99: INVALID outranks FAIL
    assert "INVALID" in result.stdout
    counts = bench.summary()["counts"]
    assert counts["dropped"] > 0
    assert counts["ok"] + counts["dropped"] == counts["planned"] == 20


@pytest.mark.alone
def test_a_broken_limit_is_99(bench_on):
    bench = bench_on(*FORGIVING)
    result = bench("run", "scenario.yaml", "--set", "slo.ttft.p50=10ms")
    assert result.returncode == 99
    assert "FAIL" in result.stdout


@pytest.mark.alone
def test_a_limit_that_holds_is_0(bench_on):
    bench = bench_on(*FORGIVING)
    result = bench("run", "scenario.yaml", "--set", "slo.ttft.p50=5s", "--set", "slo.errors=10%")
    assert result.returncode == 0
    assert "PASS" in result.stdout


def wait_for_lines(bench: Bench, num_lines: int) -> list[dict]:
    """The journal's lines as soon as there are `num_lines`."""
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        lines = [
            line
            for path in bench.folder.glob("reports/*/journal/*.jsonl")
            if not path.name.startswith("timeline")
            for line in path.read_bytes().splitlines(keepends=True)
            if line.endswith(b"\n")
        ]
        if len(lines) >= num_lines:
            return [json.loads(line) for line in lines]
        time.sleep(0.02)
    raise AssertionError(f"no {num_lines} lines in the journal")


LONG = ("--set", "load.requests=2000")


def test_the_first_interrupt_drains_and_reports(bench_on):
    bench = bench_on("--ttft", "200ms")
    with bench.start("run", "scenario.yaml", *LONG) as process:
        wait_for_lines(bench, 20)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == 130, stderr
    assert "TTFT" in stdout
    assert "nterrupted" in stdout
    summary = bench.summary()
    assert summary["counts"]["ok"] >= 20
    rows = requests_of(bench.run_folder)
    assert {row["outcome"] for row in rows if row["sent_ns"] is not None} == {
        "ok"
    }  # what was in flight was awaited
    assert summary["counts"]["planned"] == len(rows)


def test_the_second_interrupt_leaves_at_once_and_nothing_is_lost(bench_on):
    bench = bench_on("--ttft", "5ms", "--fault", "stall,for=60s,every=10")
    with bench.start("run", "scenario.yaml", *LONG) as process:
        journal = wait_for_lines(bench, 20)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        start_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=20)
    assert time.monotonic() - start_s < 3
    assert process.returncode == 130, stderr
    report = bench("report", str(bench.run_folder))
    assert "TTFT" in report.stdout, report.stderr
    kept = {row["index"] for row in requests_of(bench.run_folder) if row["outcome"] == "ok"}
    assert {line["index"] for line in journal if line["outcome"] == "ok"} <= kept


def test_after_a_kill_the_report_has_every_request_that_had_ended_a_second_before(bench_on):
    bench = bench_on(*QUICK)
    with bench.start("run", "scenario.yaml", *LONG) as process:
        wait_for_lines(bench, 60)
        process.kill()
        process.communicate()
    ended = [entry for entry in served(bench.url) if entry["path"].endswith("/chat/completions")]
    report = bench("report", str(bench.run_folder))
    assert "TTFT" in report.stdout, report.stderr
    rows = requests_of(bench.run_folder)
    assert len(rows) >= 60
    assert (
        sum(row["outcome"] == "ok" for row in rows) >= len(ended) - 40 - 2
    )  # 40 a second; two probes at most


def test_the_key_is_in_no_file_and_no_output(bench_on):
    bench = bench_on(*QUICK, "--api-key", API_KEY)
    result = bench("run", "scenario.yaml", "--save-text", E2E_API_KEY=API_KEY)
    assert result.returncode in MEASURED, result.stderr
    assert API_KEY not in result.stdout + result.stderr
    for path in bench.run_folder.rglob("*"):
        if path.is_file():
            assert API_KEY.encode() not in path.read_bytes(), path
    assert API_KEY not in str(requests_of(bench.run_folder))


def test_a_server_that_repeats_the_key_in_its_errors_does_not_give_it_away(bench_on):
    bench = bench_on("--fault", f"status,code=401,message=wrong key {API_KEY},every=2")
    result = bench("run", "scenario.yaml", "--json", E2E_API_KEY=API_KEY)
    assert "wrong key" in str(requests_of(bench.run_folder))
    assert API_KEY not in result.stdout + result.stderr + str(requests_of(bench.run_folder))
    for path in bench.run_folder.rglob("*"):
        if path.is_file():
            assert API_KEY.encode() not in path.read_bytes(), path


def test_a_log_gets_whole_plain_lines(bench_on):
    bench = bench_on(*QUICK)
    result = bench("run", "scenario.yaml", TERM="xterm-256color", CI="true")
    for text in (result.stdout, result.stderr):
        assert "\r" not in text
        assert "\x1b" not in text


def in_terminal(bench: Bench, *arguments: str, **environment: str) -> tuple[str, int]:
    """What a terminal receives, both streams together, and the exit code."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*LLMBENCH, *arguments],
        cwd=bench.folder,
        env=bench.environment(**{"TERM": "xterm-256color", **environment}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    received = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux: the other side is closed
            break
        if not piece:
            break
        received += piece
    os.close(ours)
    return received.decode(), process.wait(10)


def test_in_a_terminal_one_block_rewrites_itself_and_makes_way_for_the_summary(bench_on):
    text, code = in_terminal(bench_on(*QUICK), "run", "scenario.yaml")
    assert code in MEASURED, text
    block, _, summary = text.rpartition("F\x1b[J")
    assert "in flight" in block
    assert "TTFT" in summary
    assert summary.count("constant 40/s") == 1  # the title of the block was wiped with it


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [(["--no-live"], {"NO_COLOR": "1"}), ([], {"TERM": "dumb"})],
    ids=["asked for", "dumb terminal"],
)
def test_a_terminal_gets_plain_lines_where_it_must(bench_on, arguments, environment):
    text, code = in_terminal(bench_on(*QUICK), "run", "scenario.yaml", *arguments, **environment)
    assert code in MEASURED, text
    assert "\x1b" not in text


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": "xterm-256color", "CI": "true"}])
def test_where_both_streams_are_one_the_header_stands_there_once(bench_on, environment):
    bench = bench_on(*QUICK)
    text, _ = in_terminal(bench, "run", "scenario.yaml", "--no-live", **environment)
    assert text.count("constant 40/s") == 1
    assert "started: 20 requests" in text
    log = bench.folder / "log"
    with log.open("wb") as file:
        subprocess.run(
            [*LLMBENCH, "run", "scenario.yaml"], cwd=bench.folder, env=bench.environment(**environment),
            stdout=file, stderr=file, check=False,
        )  # fmt: skip
    assert log.read_text(encoding="utf-8").count("constant 40/s") == 1


@pytest.mark.parametrize("extra", [(), ("--json",)])
@pytest.mark.parametrize("stdout", ["a full disk", "a closed pipe"])
def test_a_run_whose_output_is_lost_keeps_its_folder_and_its_code(bench_on, stdout, extra):
    bench = bench_on(*FORGIVING)
    with_limit = (*LLMBENCH, "run", "scenario.yaml", "--set", "slo.ttft.p50=10ms", "-q", *extra)
    read, write = os.pipe()
    os.close(read)
    with Path("/dev/full").open("wb") as full:
        process = subprocess.run(
            with_limit, cwd=bench.folder, env=bench.environment(), check=False, encoding="utf-8",
            stdout=full if stdout == "a full disk" else write, stderr=subprocess.PIPE,
        )  # fmt: skip
    os.close(write)
    assert process.returncode in (97, 99)  # as if it had been written; 97 where the machine is too busy
    assert bench.summary()["gate"]["status"] == "FAIL"
    if stdout == "a closed pipe":
        assert process.stderr == ""
    else:
        said = " ".join(process.stderr.split())
        assert said.startswith(
            "stdout cannot be written (No space left on device); the summary is in reports/"
        )


def test_a_locale_without_unicode_changes_the_signs_and_nothing_else(bench_on):
    bench = bench_on(*QUICK, "--text", "unicode")
    c_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = bench("run", "scenario.yaml", "--save-text", **c_locale)
    assert result.returncode in MEASURED, result.stderr
    assert result.stdout.isascii()
    assert any(not row["text"].isascii() for row in requests_of(bench.run_folder))


def test_a_bundled_scenario_runs_by_name(bench_on):
    bench = bench_on(*QUICK)
    result = bench(
        "run", "quickstart", "--url", bench.url, "--set", "load.duration=500ms", "--set", "load.warmup=0s"
    )
    assert result.returncode in (*MEASURED, 98), result.stderr  # 98: too few for its p95 limits
    assert "quickstart" in result.stdout
