"""Ctrl-C at every moment of a run, once and twice: always 130, one line that says what became of the run."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

NOTHING_SENT = "interrupted before the first request: nothing was sent"
NOBODY = "http://127.0.0.1:9"
SYNTHETIC = """
    name: e2e
    target: {url: "${LLMBENCH_URL}"}
    load: {arrivals: constant, rate: 40/s, requests: 20}
    workload: {kind: synthetic, input_tokens: 50, output_tokens: 8}
"""

LATE = ("--set", "load.arrivals=burst", "--set", "load.rate=null", "--set", "load.warmup=20s")
LONG = ("--set", "load.requests=2000")


def until(condition, what):
    end_s = time.monotonic() + 20
    while time.monotonic() < end_s:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError(f"in vain: {what}")


def served(bench):
    with urlopen(f"{bench.url}/log") as response:
        return json.load(response)["summary"]["requests"]


def journal_files(bench):
    return list(bench.folder.glob("reports/*/journal/requests*"))


def journal_lines(bench):
    return [line for path in journal_files(bench) for line in path.read_text(encoding="utf-8").splitlines()]


def interrupt(process, *gaps_s, number=signal.SIGINT):
    """(exit code, stdout, stderr) after one signal, and one more after each gap."""
    process.send_signal(number)
    for gap_s in gaps_s:
        time.sleep(gap_s)
        process.send_signal(number)
    stdout, stderr = process.communicate(timeout=20)
    assert "Traceback" not in stderr
    return process.returncode, stdout, stderr


def last(stderr):
    """The last line of stderr, put together again where it was folded."""
    return re.sub(r"\n  +llmbench", " llmbench", stderr.rstrip()).splitlines()[-1]


TIMES = pytest.mark.parametrize(
    "gaps_s",
    [(), (0.002,), (0.0, 0.0, 0.001)],
    ids=["once", "2 ms", "4"],
)


@TIMES
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_while_the_server_is_waited_for_nothing_is_sent_and_no_folder_stays(bench, gaps_s, number):
    with bench.start(
        "run", "scenario.yaml", "--set", "target.ready_timeout=60s", LLMBENCH_URL=NOBODY
    ) as process:
        until(lambda: bench.run_folders, "a folder")
        time.sleep(0.1)
        code, stdout, stderr = interrupt(process, *gaps_s, number=number)
    assert (code, stdout) == (130, "")
    assert last(stderr).startswith(NOTHING_SENT)
    assert stderr.count("interrupted") == 1
    assert not bench.run_folders


@TIMES
def test_while_lengths_are_fitted_nothing_is_sent_and_no_folder_stays(bench_on, gaps_s):
    bench = bench_on("--ttft", "200ms", "--no-tokenize")
    bench.write(SYNTHETIC)
    with bench.start("run", "scenario.yaml") as process:
        until(lambda: served(bench) > 1, "probes")
        code, stdout, stderr = interrupt(process, *gaps_s)
    assert (code, stdout) == (130, "")
    assert last(stderr).startswith(NOTHING_SENT)
    assert not bench.run_folders


@TIMES
def test_before_the_first_request_is_due_nothing_is_sent_and_no_folder_stays(bench_on, gaps_s):
    """run.json and an empty journal once stayed behind, of which `report` knew nothing to say."""
    bench = bench_on()
    with bench.start("run", "scenario.yaml", *LATE) as process:
        until(lambda: list(bench.folder.glob("reports/*/journal/requests*")), "a journal")
        code, stdout, stderr = interrupt(process, *gaps_s)
    assert (code, stdout) == (130, "")
    assert last(stderr).startswith(NOTHING_SENT)
    assert not bench.run_folders


def test_in_the_warm_up_what_was_sent_is_reported_and_the_folder_named(bench_on):
    bench = bench_on("--ttft", "50ms")
    with bench.start("run", "scenario.yaml", *LONG, "--set", "load.warmup=20s") as process:
        until(lambda: len(journal_lines(bench)) > 3, "records")
        code, stdout, stderr = interrupt(process)
    assert code == 130
    assert "INVALID" in stdout
    folder = bench.run_folder.relative_to(bench.folder)
    assert last(stderr) == f"interrupted; what was measured: llmbench report {folder}"
    assert bench("report", str(folder)).returncode == 0


@pytest.mark.parametrize("quiet", [(), ("--quiet",), ("--json",)], ids=["plain", "quiet", "json"])
def test_in_the_drain_what_is_in_flight_is_awaited(bench_on, quiet):
    bench = bench_on("--ttft", "2s")
    with bench.start("run", "scenario.yaml", *quiet) as process:
        until(lambda: bench.run_folders and journal_files(bench), "a journal")
        time.sleep(1.0)  # the last of twenty, forty a second, has been sent
        code, stdout, stderr = interrupt(process)
    assert code == 130
    assert bench.summary()["counts"]["ok"] == 20
    if "--json" in quiet:
        assert json.loads(stdout)["counts"]["ok"] == 20
    assert last(stderr).startswith("interrupted; what was measured: llmbench report reports/")


@pytest.mark.parametrize("gap_s", [0.1, 0.5])
def test_twice_leaves_at_once_and_names_the_folder(bench_on, gap_s):
    bench = bench_on("--ttft", "5ms", "--fault", "stall,for=60s,every=10")
    with bench.start("run", "scenario.yaml", *LONG) as process:
        until(lambda: len(journal_lines(bench)) > 20, "records")
        started_s = time.monotonic()
        code, stdout, stderr = interrupt(process, gap_s)
    assert time.monotonic() - started_s < 5
    assert (code, stdout) == (130, "")
    folder = bench.run_folder.relative_to(bench.folder)
    assert last(stderr) == f"left at once; what had ended: llmbench report {folder}"
    report = bench("report", str(folder))
    assert report.returncode == 0
    assert "killed" in report.stdout


@pytest.mark.parametrize("gap_s", [0.0, 0.001])
def test_two_signals_that_the_system_may_make_one_still_end_in_order(bench_on, gap_s):
    bench = bench_on("--ttft", "300ms")
    with bench.start("run", "scenario.yaml", *LONG) as process:
        until(lambda: len(journal_lines(bench)) > 20, "records")
        code, _, stderr = interrupt(process, gap_s)
    assert code == 130
    folder = bench.run_folder.relative_to(bench.folder)
    assert last(stderr).endswith(f": llmbench report {folder}")


WRITING = """
import sys, time
import llmbench.bench
def write_results(*_):
    open("writing", "w").close()
    time.sleep(30)
llmbench.bench.write_results = write_results
from llmbench.cli.app import main
sys.exit(main(["run", "scenario.yaml"]))
"""


@pytest.mark.parametrize("gaps_s", [(), (0.001,)])
def test_while_the_results_are_written_the_journal_stays(bench_on, gaps_s):
    bench = bench_on()
    with subprocess.Popen(
        [sys.executable, "-c", WRITING],
        cwd=bench.folder,
        env=bench.environment(PYTHONPATH=str(Path(__file__).parents[2])),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        until((bench.folder / "writing").exists, "results")
        code, _, stderr = interrupt(process, *gaps_s)
    assert code == 130
    folder = bench.run_folder.relative_to(bench.folder)
    assert last(stderr).endswith(f"what had ended: llmbench report {folder}")
    assert "20 ok" in bench("report", str(folder)).stdout


def test_an_interrupted_engine_start_leaves_neither_folder_nor_log(bench):
    bench.write("""
        name: on-engine
        target: {engine: {model: tiny, threads: 1}}
        load: {arrivals: constant, rate: 4/s, requests: 8}
        workload: {kind: inline, prompts: [Say hi.], output_tokens: 12}
    """)
    with bench.start("run", "scenario.yaml") as process:
        until(lambda: list(bench.folder.glob("reports/*/engine.log")), "an engine")
        code, stdout, stderr = interrupt(process)
    assert (code, stdout) == (130, "")
    assert last(stderr).startswith(NOTHING_SENT)
    assert not bench.run_folders
