"""A run over several processes: the same run, whoever sends it; and whatever becomes of them, it ends."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyarrow import parquet

from llmbench.bench import run_scenario
from llmbench.client.choose import tls_context
from llmbench.client.control import ServerInfo
from llmbench.client.wire import BodyStyle, Destination, request_headers
from llmbench.context import LostWorker
from llmbench.errors import CannotMeasure
from llmbench.load.plan import make_plan
from llmbench.mock import MockOptions, serve_in_thread
from llmbench.parquet import read_timeline
from llmbench.replay import crew
from llmbench.replay.assignment import Assignment, read_assignment
from llmbench.replay.facts import worst_of
from llmbench.replay.identity import RunIdentity
from llmbench.replay.lines import Lines
from llmbench.replay.reach import Reached, timeouts_of
from llmbench.replay.tally import Tally
from llmbench.replay.worker_process import environment_of_a_worker
from llmbench.scenario.address import parse_address
from llmbench.workload.data import WorkloadData
from tests.llmbench.sample_runs import closed_loop, ok_record
from tests.llmbench.test_bench import scenario_of
from tests.programs import MEASURED

KEY = "sk-worker-5d0c7e1b9a42"
WORKER = "llmbench.replay.worker"
OPEN = {"arrivals": "poisson", "rate": "60/s", "requests": 60, "warmup": "500ms"}
LONG = ("--set", "load.requests=4000", "--set", "instrument.workers=3")


def run_on(tmp_path, workers, *, options=None, **parts):
    with serve_in_thread(options or MockOptions(ttft_s=0.02, itl_s=0.002)) as server:
        scenario = scenario_of(server.url, **parts, instrument={"workers": workers})
        return run_scenario(scenario, out=tmp_path / f"reports-{workers}")


def rows_of(folder):
    return parquet.read_table(folder / "requests.parquet").to_pylist()


def document_of(folder):
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))


def until(condition, what, within_s=20):
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        if found := condition():
            return found
        time.sleep(0.01)
    raise AssertionError(f"in vain: {what}")


def workers_of(parent):
    """The pids of a process's workers, the first one first."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return sorted(int(pid) for pid, ppid, *args in rows if int(ppid) == parent and WORKER in "".join(args))


def is_alive(pid):
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return state.stdout.strip()[:1] not in ("", "Z")


def journals(bench):
    return sorted(bench.folder.glob("reports/*/journal/requests-*.jsonl"))


def num_lines(bench):
    return [len(path.read_bytes().splitlines()) for path in journals(bench)]


def test_the_same_run_whoever_sends_it(tmp_path):
    alone, shared = (run_on(tmp_path, workers, load=OPEN) for workers in (1, 2))
    assert document_of(alone.folder)["schedule_hash"] == document_of(shared.folder)["schedule_hash"]
    assert document_of(alone.folder)["prompt_set_hash"] == document_of(shared.folder)["prompt_set_hash"]
    planned = ("index", "phase", "due_ns", "input_tokens_asked", "output_tokens_asked")
    one, two = (
        [{name: row[name] for name in planned} for row in rows_of(run.folder)] for run in (alone, shared)
    )
    assert one == two
    for counts in (alone.summary["counts"], shared.summary["counts"]):
        assert counts["ok"] == counts["planned"] == len(one)
    rows = rows_of(shared.folder)
    assert [row["worker"] for row in rows] == [row["index"] % 2 for row in rows]
    assert all(row["due_ns"] <= row["sent_ns"] < row["due_ns"] + 200_000_000 for row in rows)
    assert not (shared.folder / "journal").exists()


def test_each_worker_tells_of_itself(tmp_path):
    result = run_on(tmp_path, 2, load={**OPEN, "requests": 120})
    instrument = result.summary["instrument"]
    assert (instrument["workers"], instrument["workers_reason"]) == (2, "as asked")
    assert (instrument["transport"], instrument["timestamps"]) in {("fast", "kernel"), ("fast", "loop")}
    parts = instrument["per_worker"]
    assert [part["worker"] for part in parts] == [0, 1]
    assert sum(part["requests"] for part in parts) == result.summary["counts"]["planned"]
    assert sum(part["events"] for part in parts) == 6 * result.summary["counts"]["planned"]
    assert all(0 < part["cpu_share"] <= instrument["cpu_share"] for part in parts)
    assert {part["died"] for part in parts} == {None}
    sources = {row["source"] for row in read_timeline(result.folder / "timeline.parquet")}
    assert sources == {"requests", "worker 0", "worker 1"}


def test_one_process_tells_the_same_of_itself(tmp_path):
    result = run_on(tmp_path, "auto", load=OPEN)
    assert result.summary["instrument"]["workers"] == 1
    (part,) = result.summary["instrument"]["per_worker"]
    assert part["cpu_share"] == result.summary["instrument"]["cpu_share"]
    assert part["requests"] == result.summary["counts"]["planned"]


@pytest.mark.parametrize("asked", [3, 64])
def test_a_closed_loop_sends_as_many_as_it_was_asked_for(tmp_path, asked):
    load = {"arrivals": "closed", "concurrency": 4, "requests": 10, "rate": None}
    result = run_on(tmp_path, asked, load=load)
    assert result.summary["counts"]["ok"] == result.summary["counts"]["planned"] == 10
    assert result.summary["instrument"]["workers"] == min(asked, 4)
    if asked == 64:
        assert result.summary["instrument"]["workers_reason"] == "64 asked, 4 find something to do"


def test_a_closed_loop_of_some_time_has_only_what_was_sent_on_record(tmp_path):
    """Workers go on for as long as it takes: gaps between their last requests are no planned requests."""
    load = {"arrivals": "closed", "concurrency": 5, "duration": "1s", "rate": None, "requests": None}
    result = run_on(tmp_path, 2, load=load)
    rows = rows_of(result.folder)
    assert {row["outcome"] for row in rows} == {"ok"}
    for worker in (0, 1):
        own = [row["index"] for row in rows if row["worker"] == worker]
        assert own == list(range(worker, own[-1] + 1, 2))
        assert len(own) > 5


def test_workers_share_what_may_be_in_flight(tmp_path):
    load = {"rate": "400/s", "requests": 40, "max_in_flight": 5}
    result = run_on(tmp_path, 2, load=load, options=MockOptions(ttft_s=0.8))
    rows = rows_of(result.folder)
    for worker, most in ((0, 3), (1, 2)):
        own = [row for row in rows if row["worker"] == worker]
        assert sum(row["outcome"] == "ok" for row in own) == most
        dropped = next(row for row in own if row["outcome"] == "dropped")
        assert dropped["error"] == f"max_in_flight of {most} was reached, this worker's part"


class Watcher:
    """An observer that keeps what it is shown."""

    def __init__(self):
        self.shown = []

    def waiting(self, what): ...

    def started(self, plan_text, planned, ends_at_s): ...

    def progress(self, snapshot):
        self.shown.append(snapshot)

    def finished(self): ...


def test_the_live_view_counts_what_all_workers_do(tmp_path):
    watcher = Watcher()
    load = {"rate": "100/s", "requests": 200}
    with serve_in_thread(MockOptions(ttft_s=0.05, itl_s=0.002)) as server:
        scenario = scenario_of(server.url, load=load, instrument={"workers": 2})
        run_scenario(scenario, out=tmp_path, observer=watcher)
    done = [now.done for now in watcher.shown]
    assert done == sorted(done)
    assert done[-1] > 100
    late = watcher.shown[-2]
    assert late.planned == 200
    assert late.rate_asked_per_s == pytest.approx(100, rel=0.05)
    assert late.ttft_p50_s > 0.05
    assert late.tpot_p95_s > 0.001
    assert any(0 < now.in_flight < 100 for now in watcher.shown)


def test_the_number_of_workers_is_shown(bench_on):
    bench = bench_on("--ttft", "5ms")
    result = bench("run", "scenario.yaml", "--set", "load.requests=60", "--set", "instrument.workers=2")
    assert result.returncode in MEASURED, result.stderr
    assert "2 workers (as asked)" in " ".join(result.stdout.split())
    assert bench.summary()["counts"]["ok"] == 60


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_drains_in_every_worker(bench_on, number):
    bench = bench_on("--ttft", "400ms")
    with bench.start("run", "scenario.yaml", *LONG, "--set", "instrument.workers=2") as process:
        until(lambda: num_lines(bench) and min(num_lines(bench)) > 3, "records of both")
        process.send_signal(number)
        _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert "in flight; Ctrl-C again leaves at once" in stderr
    rows = rows_of(bench.run_folder)
    assert len(rows) == 4000
    sent = [row for row in rows if row["sent_ns"] is not None]
    assert {row["outcome"] for row in sent} == {"ok"}
    assert {row["worker"] for row in sent} == {0, 1}
    unsent = next(row for row in rows if row["sent_ns"] is None)
    assert unsent["error"] == "the run was stopped before this request was sent"


def test_a_second_interrupt_leaves_at_once_and_what_had_ended_is_kept(bench_on):
    bench = bench_on("--ttft", "5ms", "--fault", "stall,for=60s,every=10")
    with bench.start("run", "scenario.yaml", *LONG) as process:
        until(lambda: num_lines(bench) and min(num_lines(bench)) > 5, "records of all")
        workers = workers_of(process.pid)
        assert len(workers) == 3
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=5)
    assert process.returncode == 130
    assert "left at once" in stderr
    until(lambda: not any(map(is_alive, workers)), "the workers' end", 2)
    report = bench("report", str(bench.run_folder))
    assert report.returncode in (0, 97, 98), report.stderr
    assert bench.summary()["counts"]["ok"] > 15


def test_a_worker_that_is_killed_is_named_and_the_run_ends(bench_on):
    bench = bench_on("--ttft", "50ms", "--itl", "5ms")
    with bench.start("run", "scenario.yaml", *LONG, "--json") as process:
        until(lambda: num_lines(bench) and min(num_lines(bench)) > 5, "records of all")
        os.kill(workers_of(process.pid)[1], signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=10)
    assert process.returncode == 97, stderr
    summary = json.loads(stdout)
    assert summary["verdict"]["status"] == "INVALID"
    first = summary["verdict"]["reasons"][0]
    assert first["code"] == "worker_died"
    assert first["message"].startswith("worker 1 of 3 was killed by SIGKILL")
    assert [reason["code"] for reason in summary["verdict"]["reasons"]] == ["worker_died"]
    assert [part["died"] for part in summary["instrument"]["per_worker"]] == [
        None, "was killed by SIGKILL", None,
    ]  # fmt: skip
    rows = rows_of(bench.run_folder)
    assert [row["index"] for row in rows] == list(range(4000))
    lost = [row for row in rows if row["error"] and "SIGKILL" in row["error"]]
    assert {(row["outcome"], row["worker"], row["index"] % 3) for row in lost} == {("cancelled", 1, 1)}
    assert len(lost) > 1000
    others = [row for row in rows if row["worker"] != 1]
    assert {row["outcome"] for row in others} == {"ok", "cancelled"}
    again = bench("report", str(bench.run_folder), "--json")
    assert json.loads(again.stdout)["verdict"] == summary["verdict"]


def test_a_killed_worker_of_a_closed_loop_leaves_records_of_what_it_had_begun(bench_on):
    bench = bench_on("--ttft", "500ms")
    closed = ["--set", "load.arrivals=closed", "--set", "load.rate=null", "--set", "load.concurrency=8"]
    closed += ["--set", "load.requests=null", "--set", "load.duration=30s", "--set", "instrument.workers=2"]
    with bench.start("run", "scenario.yaml", *closed) as process:
        until(lambda: num_lines(bench) and min(num_lines(bench)) >= 8, "records of both")
        time.sleep(0.3)  # a beat has told of what is in flight
        os.kill(workers_of(process.pid)[0], signal.SIGKILL)
        _, stderr = process.communicate(timeout=10)
    assert process.returncode == 97, stderr
    lost = [row for row in rows_of(bench.run_folder) if row["error"] and "SIGKILL" in row["error"]]
    assert [row["worker"] for row in lost] == [0] * 4
    assert bench.summary()["counts"]["cancelled"] == 4


BROKEN = """
import os, sys
import llmbench.replay.runner
good = llmbench.replay.runner.Runner._launch
def _launch(self, due_ns):
    if self._next == 10 and self._plan.worker == 1:
        raise RuntimeError("no more, key " + os.environ.get("E2E_API_KEY", "gone") + " {key}")
    good(self, due_ns)
llmbench.replay.runner.Runner._launch = _launch
"""


def test_a_worker_that_raises_is_quoted_and_secrets_are_masked(bench_on, tmp_path):
    bench = bench_on("--ttft", "20ms")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(BROKEN.replace("{key}", KEY), encoding="utf-8")
    paths = os.pathsep.join([str(broken), str(Path(__file__).parents[2])])
    result = bench("run", "scenario.yaml", *LONG, "--json", E2E_API_KEY=KEY, PYTHONPATH=paths)
    assert result.returncode == 97, result.stderr
    reason = json.loads(result.stdout)["verdict"]["reasons"][0]
    assert "worker 1 of 3 ended with code 1: RuntimeError: no more, key gone ***" in reason["message"]
    for path in bench.run_folder.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes()


def test_a_worker_that_cannot_even_begin_is_no_measurement(bench_on, tmp_path):
    bench = bench_on()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import sys\nif 'llmbench.replay.worker' in sys.orig_argv: raise SystemExit('no room for me')\n",
        encoding="utf-8",
    )
    paths = os.pathsep.join([str(broken), str(Path(__file__).parents[2])])
    result = bench("run", "scenario.yaml", *LONG, PYTHONPATH=paths)
    assert result.returncode == 3
    assert "no room for me, before the first request was sent" in " ".join(result.stderr.split())


def test_workers_that_the_system_refuses_to_start_are_too_many(tmp_path):
    """The limit of open files is one: each worker takes three pipes."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serve_in_thread(MockOptions(ttft_s=0.01)) as server:
        scenario = scenario_of(server.url, instrument={"workers": 20})
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/dev/fd").iterdir())) + 40, hard))
        try:
            with pytest.raises(CannotMeasure, match=r"could not be started \(Too many open files\)"):
                run_scenario(scenario, out=tmp_path)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_when_the_parent_is_killed_its_workers_leave_and_the_report_is_made_from_what_they_wrote(bench_on):
    bench = bench_on("--ttft", "50ms")
    with bench.start("run", "scenario.yaml", *LONG) as process:
        until(lambda: num_lines(bench) and min(num_lines(bench)) > 5, "records of all")
        workers = workers_of(process.pid)
        process.kill()
        process.communicate(timeout=5)
        until(lambda: not any(map(is_alive, workers)), "the workers' end", 2)
    assert len(journals(bench)) == 3
    written = sum(num_lines(bench))
    report = bench("report", str(bench.run_folder))
    assert report.returncode in (0, 97, 98), report.stderr
    counts = bench.summary()["counts"]
    assert counts["planned"] == 4000
    assert counts["planned"] - counts["cancelled"] == written
    assert {part["worker"] for part in bench.summary()["instrument"]["per_worker"]} == {0, 1, 2}


def test_the_key_is_in_no_argument_no_environment_and_no_file(bench_on):
    bench = bench_on("--ttft", "20ms")
    with bench.start("run", "scenario.yaml", *LONG, E2E_API_KEY=KEY) as process:
        until(lambda: num_lines(bench) and min(num_lines(bench)) > 5, "records of all")
        workers = workers_of(process.pid)
        assert len(workers) == 3
        for pid in workers:
            shown = subprocess.run(
                ["ps", "eww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=True
            ).stdout
            assert WORKER in shown
            assert KEY not in shown
            if sys.platform == "linux":
                assert KEY.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    for path in bench.run_folder.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), path


def test_a_worker_that_hangs_is_ended_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(crew, "SILENCE_S", 1)
    load = {"rate": "40/s", "requests": 4000}
    ended = []
    with serve_in_thread(MockOptions(ttft_s=0.05, itl_s=0.01)) as server:
        scenario = scenario_of(server.url, load=load, instrument={"workers": 2})
        run = threading.Thread(target=lambda: ended.append(run_scenario(scenario, out=tmp_path)))
        run.start()
        until(lambda: list(tmp_path.glob("*/journal/requests-1.jsonl")), "a journal")
        time.sleep(0.5)
        os.kill(workers_of(os.getpid())[1], signal.SIGSTOP)
        run.join(20)
    (result,) = ended
    assert result.exit_code == 97
    reason = result.summary["verdict"]["reasons"][0]
    assert "worker 1 of 2 gave no sign of life for 1 s and was ended" in reason["message"]


@pytest.mark.parametrize("after_s", [0.0, 0.2, 0.4])
def test_an_interrupt_while_workers_start_leaves_nothing_and_nobody(bench_on, after_s):
    bench = bench_on("--ttft", "50ms")
    late = ("--set", "load.arrivals=burst", "--set", "load.rate=null", "--set", "load.warmup=20s")
    with bench.start("run", "scenario.yaml", *late, "--set", "instrument.workers=3") as process:
        until(lambda: list(bench.folder.glob("reports/*/run.json")), "a run")
        time.sleep(after_s)
        workers = workers_of(process.pid)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in stderr
    assert "nothing was sent" in stderr
    assert not bench.run_folders
    until(lambda: not any(map(is_alive, workers)), "the workers' end", 2)


def test_an_assignment_travels_whole_but_for_what_it_must_not_say(tmp_path):
    """TLS settings cannot be pickled: they are made again over there."""
    scenario = scenario_of("https://h:9", target={"api_key": KEY, "tls_verify": False})
    address = parse_address("https://h:9")
    destination = Destination(
        address=address, api="chat", headers=request_headers(api_key=KEY, extra={}, stream=True, agent="a")
    )
    reached = Reached(
        destination=destination,
        tls=tls_context(address, False),
        timeouts=timeouts_of(scenario.target),
        transport_name="fast",
        info=ServerInfo(model="m"),
        style=BodyStyle(api="chat", model="m", extra={}),
        fit=None,
    )
    plan = make_plan(scenario).share(1, 2)
    run = RunIdentity(
        scenario=scenario, plan=plan, reached=reached, salt="s", started=datetime.now(UTC),
        command_line=["llmbench", "run", f"--set=target.api_key={KEY}"],
    )  # fmt: skip
    sent = Assignment(run=run, data=WorkloadData(rows=(None,)), folder=tmp_path, save_text=True)
    reader, writer = os.pipe()
    thread = threading.Thread(target=lambda: (os.write(writer, sent.encoded()), os.close(writer)))
    thread.start()
    got = read_assignment(reader)
    thread.join()
    with pytest.raises(EOFError):
        read_assignment(reader)
    os.close(reader)
    assert got.run.plan.due_ns.tolist() == plan.due_ns.tolist()
    assert (got.run.plan.worker, got.run.plan.workers) == (1, 2)
    assert ("Authorization", f"Bearer {KEY}") in got.run.reached.destination.headers
    assert got.run.scenario.hash() == scenario.hash()
    assert got.run.reached.tls.verify_mode == ssl.CERT_NONE
    assert got.run.command_line == ()
    assert (got.folder, got.save_text) == (tmp_path, True)


def test_a_full_disk_under_one_worker_ends_the_run(bench_on):
    """`/dev/full` in place of a worker's journal refuses every write."""
    if not Path("/dev/full").exists():
        pytest.skip("Linux only")
    bench = bench_on("--ttft", "5ms")
    command = [sys.executable, "-c", FULL]
    with subprocess.Popen(
        command,
        cwd=bench.folder,
        env=bench.environment(PYTHONPATH=str(Path(__file__).parents[2])),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        _, stderr = process.communicate(timeout=20)
    assert process.returncode == 3, stderr
    assert "the journal could not be written (No space left on device)" in " ".join(stderr.split())
    assert "Traceback" not in stderr


FULL = """
import sys
import llmbench.report.folder as folder
made = folder.create
def create(*arguments):
    found = made(*arguments)
    (found.journal / "requests-1.jsonl").symlink_to("/dev/full")
    return found
import llmbench.bench
llmbench.bench.create = create
from llmbench.cli.app import main
sets = ["load.requests=4000", "instrument.workers=2"]
sys.exit(main(["run", "scenario.yaml", *[word for one in sets for word in ("--set", one)]]))
"""


def test_many_requests_are_planned_and_sent_at_once(tmp_path):
    """A million requests over two processes: the first is sent within three seconds, whatever comes later."""
    load = {"arrivals": "constant", "rate": "1000/s", "requests": 1_000_000}
    with serve_in_thread(MockOptions()) as server:
        scenario = scenario_of(server.url, load=load)
        program = subprocess.Popen(
            [sys.executable, "-c", MANY, scenario.target.url, str(tmp_path)], start_new_session=True
        )
        start_s = time.monotonic()
        until(lambda: [path for path in tmp_path.glob("*/journal/requests-1.jsonl") if path.stat().st_size],
              "a first record")  # fmt: skip
        elapsed_s = time.monotonic() - start_s
        program.kill()
        program.wait()
    assert elapsed_s < 10  # the three seconds are measured on a quiet machine; this one is shared


MANY = """
import sys
from pathlib import Path
from llmbench.bench import run_scenario
from llmbench.scenario.model import Scenario
run_scenario(Scenario.model_validate({
    "name": "many", "target": {"url": sys.argv[1]},
    "load": {"arrivals": "constant", "rate": "1000/s", "requests": 1_000_000},
    "workload": {"kind": "inline", "prompts": ["Hi"], "output_tokens": 1},
    "instrument": {"workers": 2},
}), out=Path(sys.argv[2]))
"""


# ---- parts


def test_a_tally_that_absorbs_what_others_drained_says_what_one_alone_would():
    whole, part, merged = Tally(), Tally(), Tally()
    for number in range(50):
        record = ok_record(number, events=[(number + 1) * 10**6, (number + 3) * 10**6])
        whole.add(record)
        part.add(record)
        if number % 7 == 0:
            merged.absorb(json.loads(json.dumps(part.drain())))
    merged.absorb(part.drain())
    merged.absorb(part.drain())
    for percent in (0, 50, 95, 100):
        assert merged.ttft(percent) == whole.ttft(percent)
        assert merged.tpot(percent) == whole.tpot(percent)
    assert (merged.errors, merged.dropped) == (whole.errors, whole.dropped)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_lines_come_whole_however_a_pipe_tears_them(size):
    heard = []
    lines = Lines(heard.append, lambda: heard.append("end"))
    text = b"first\n\nthe second, longer\nrest"
    for start in range(0, len(text), size):
        lines.data_received(text[start : start + size])
    lines.connection_lost(None)
    assert heard == [b"first", b"", b"the second, longer", "end"]


def test_the_figures_of_several_workers_are_those_of_the_worst():
    found = worst_of([
        {"transport": "fast", "cpu_share": 0.2, "loop_lag_p99_s": None, "timestamps": "kernel"},
        {"transport": "fast", "cpu_share": 0.7, "loop_lag_p99_s": 0.001, "timestamps": "loop"},
    ])  # fmt: skip
    assert found == {"transport": "fast", "cpu_share": 0.7, "loop_lag_p99_s": 0.001, "timestamps": None}
    assert worst_of([]) == {}


def test_a_worker_is_given_what_python_needs_and_no_more_of_the_environment():
    given = environment_of_a_worker(
        {
            "PATH": "/bin",
            "HTTPS_PROXY": "http://p",
            "OPENAI_API_KEY": KEY,
            "SSL_CERT_FILE": "/ca",
            "HOME": "/h",
        },
        ["/work", "/lib/python"],
    )
    assert given == {
        "PATH": "/bin", "HTTPS_PROXY": "http://p", "SSL_CERT_FILE": "/ca", "HOME": "/h",
        "PYTHONPATH": "/work:/lib/python", "PYTHONUTF8": "1",
    }  # fmt: skip


def test_a_context_with_a_lost_worker_comes_back_from_its_json():
    context = closed_loop(
        instrument={"workers": 3}, lost_workers=(LostWorker(worker=2, how="was killed", started=4),)
    )
    again = type(context).from_json(json.loads(json.dumps(context.to_json())))
    assert again == context
    assert again.lost_worker_of(5) == context.lost_workers[0]
    assert again.lost_worker_of(4) is None
    assert again.cut_short


def summary_with(share, *, count=1, at_most=1, seconds=10.0, died=None):
    """A summary with one fact to be judged."""
    parts = [{"worker": number, "cpu_share": share, "died": died} for number in range(count)]
    return {
        "instrument": {"workers": count, "workers_at_most": at_most, "per_worker": parts},
        "throughput_whole": {"window": {"duration_s": seconds}},
    }


@pytest.mark.parametrize(
    ("summary", "hint"),
    [
        (summary_with(0.95, at_most=4), "share the work: set instrument.workers: 2"),
        (summary_with(0.95, count=3, at_most=4), "share the work: set instrument.workers: 4"),
        (summary_with(0.95, count=4, at_most=4), "lower the load, or send it from a machine with more cores"),
        (summary_with(0.95), "lower the load, or send it from a machine with more cores"),
        (summary_with(0.90), None),
        (summary_with(None), None),
        (summary_with(0.95, seconds=1.0), None),
    ],
)
def test_a_worker_without_time_to_spare_makes_the_run_suspect(summary, hint):
    from llmbench.trust.workers import CHECKS

    found = [reason for check in CHECKS if (reason := check(summary)) is not None]
    if hint is None:
        assert found == []
        return
    (reason,) = found
    assert (reason["code"], reason["severity"]) == ("client_busy", "SUSPECT")
    assert reason["hint"].startswith(hint)
    assert "95 % of a core (limit 90 %)" in reason["message"]
