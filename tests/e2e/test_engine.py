"""The main job on a real model: the bundled engine with `tiny`, started and stopped by the run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.programs import MEASURED

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")

SCENARIO = """
    name: on-engine
    target:
      engine: {model: tiny, threads: 1}
    load: {arrivals: constant, rate: 4/s, requests: 8}
    workload: {kind: synthetic, input_tokens: 40, output_tokens: 12}
"""


def engines(folder: Path) -> set[int]:
    """Pids of the engines that were started from `folder` and still run."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"reference_engine" in words and b"--port" in words and (entry / "cwd").readlink() == folder:
                found.add(int(entry.name))
        except OSError:  # it has ended, or is not ours to look at
            continue
    return found


def wait_for_engine(folder: Path, timeout_s: float = 60.0) -> int:
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if running := engines(folder):
            return running.pop()
        time.sleep(0.05)
    raise AssertionError("no engine was started")


def test_a_run_on_the_engine_measures_what_was_asked_and_leaves_no_process(bench):
    bench.write(SCENARIO)
    result = bench("run", "scenario.yaml", "--save-text")
    assert result.returncode in MEASURED, result.stdout + result.stderr
    assert "tiny" in result.stdout
    assert not engines(bench.folder)
    assert (
        (bench.run_folder / "engine.log").read_text(encoding="utf-8").startswith("reference_engine ready at ")
    )
    rows = pq.read_table(bench.run_folder / "requests.parquet").to_pylist()
    assert [row["outcome"] for row in rows] == ["ok"] * 8
    assert {row["output_tokens"] for row in rows} == {12}
    assert {row["token_source"] for row in rows} == {"usage"}
    assert all(abs(row["input_tokens"] - row["input_tokens_asked"]) <= 4 for row in rows)
    assert all(len(row["event_ns"]) <= 12 and row["text"] for row in rows)


@pytest.mark.slow  # an engine's start and a stretch of its run
def test_an_engine_that_is_killed_in_mid_run_ends_it_with_the_reason(bench):
    bench.write(SCENARIO)
    with bench.start("run", "scenario.yaml", "--set", "load.requests=400") as process:
        engine = wait_for_engine(bench.folder)
        end_s = time.monotonic() + 60
        while not list(bench.folder.glob("reports/*/journal/requests*.jsonl")) and time.monotonic() < end_s:
            time.sleep(0.05)
        time.sleep(1)
        os.kill(engine, signal.SIGKILL)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "was killed by SIGKILL" in stderr
    assert "Traceback" not in stderr


def test_an_interrupt_while_the_engine_starts_leaves_no_process(bench):
    bench.write(SCENARIO)
    with bench.start("run", "scenario.yaml") as process:
        wait_for_engine(bench.folder)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert not engines(bench.folder)


def test_wrong_engine_options_are_told_before_the_engine_is_started(bench):
    bench.write(SCENARIO)
    result = bench("run", "scenario.yaml", "--set", "target.engine.model=no-such-model")
    assert result.returncode == 2
    assert "target.engine.model: no-such-model" in result.stderr
    assert "unknown model" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_folder_that_holds_no_model_is_told_in_the_engines_words(bench):
    bench.write(SCENARIO)
    result = bench("run", "scenario.yaml", "--set", f"target.engine.model={bench.folder}")
    assert result.returncode == 3
    assert str(bench.folder) in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.alone
@pytest.mark.slow  # twenty seconds: the scenario's own load
def test_quickstart_ends_within_half_a_minute_with_a_summary(bench):
    start_s = time.monotonic()
    result = bench("run", "quickstart")
    assert time.monotonic() - start_s < 30
    assert result.returncode in MEASURED, result.stdout + result.stderr
    assert "TTFT" in result.stdout
