"""The engine as a child process, in the cases that a well-behaved engine does not show.

Each engine here is a script that stands in the working directory under the engine's module name. The real
engine runs in tests/e2e.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from llmbench.errors import CannotMeasure, TargetUnreachable
from llmbench.replay.engine_process import engine_arguments, running_engine

READY = 'print("reference_engine ready at http://127.0.0.1:4711 model=tiny", flush=True)'


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes `python -m reference_engine` run the given script; returns the log's path."""

    def install(script: str) -> Path:
        package = tmp_path / "reference_engine"
        package.mkdir()
        (package / "__init__.py").write_text("", encoding="utf-8")
        (package / "__main__.py").write_text(textwrap.dedent(script), encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        return tmp_path / "engine.log"

    return install


def is_alive(pid: int) -> bool:
    """Whether a process still runs; a zombie that nobody has reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(") ", 1)[1][0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, timeout_s: float = 20.0) -> bool:
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        ({}, []),
        ({"model": "tiny"}, ["--model", "tiny"]),
        ({"max_num_seqs": 8, "utilization": 0.9}, ["--max-num-seqs", "8", "--utilization", "0.9"]),
        ({"enable_prefix_caching": True}, ["--enable-prefix-caching"]),
        ({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
    ],
)
def test_options_are_the_engines_long_options(options, arguments):
    assert engine_arguments(options) == arguments


def test_the_ready_line_names_the_address_and_the_end_of_the_block_stops_the_engine(scripted):
    log = scripted(f"""
        import sys, time
        print("loading", sys.argv[1:], flush=True)
        {READY}
        time.sleep(60)
    """)
    told: list[str] = []
    with running_engine({"model": "tiny"}, log=log, ready_timeout_s=10, waiting=told.append) as engine:
        assert (engine.url, engine.model) == ("http://127.0.0.1:4711", "tiny")
        assert engine.returncode is None
        assert is_alive(engine.pid)
    assert not is_alive(engine.pid)
    assert told == ["starting the reference engine (tiny)"]
    assert "['--port', '0', '--model', 'tiny']" in log.read_text(encoding="utf-8")


def test_an_engine_that_ends_before_it_is_ready_is_reported_with_its_last_lines(scripted):
    log = scripted("raise SystemExit('no such model: tinny')")
    with (
        pytest.raises(CannotMeasure, match=r"code 1 before it was ready(.|\n)*no such model: tinny"),
        running_engine({}, log=log, ready_timeout_s=10),
    ):
        pytest.fail("it was never ready")


def test_a_silent_engine_is_given_up_and_stopped(scripted, tmp_path):
    log = scripted("""
        import os, pathlib, time
        pathlib.Path("pid").write_text(str(os.getpid()))
        time.sleep(60)
    """)
    with (
        pytest.raises(TargetUnreachable, match=r"target\.ready_timeout"),
        running_engine({}, log=log, ready_timeout_s=1.0),
    ):
        pytest.fail("it was never ready")
    assert not is_alive(int((tmp_path / "pid").read_text(encoding="ascii")))


def test_a_download_that_shows_progress_is_not_given_up(scripted):
    log = scripted(f"""
        import time
        for percent in range(13):
            print(percent, "%", end="\\r", flush=True)
            time.sleep(0.1)
        {READY}
        time.sleep(60)
    """)
    with running_engine({}, log=log, ready_timeout_s=1.0) as engine:
        assert engine.returncode is None


def test_an_engine_that_dies_in_mid_run_can_be_told_and_explained(scripted):
    log = scripted(f"""
        import os, signal
        {READY}
        print("out of memory", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    with running_engine({}, log=log, ready_timeout_s=10) as engine:
        assert wait_until(lambda: engine.returncode is not None)
        assert engine.returncode == -signal.SIGKILL
        assert "was killed by SIGKILL" in engine.obituary()
        assert "out of memory" in engine.obituary()


def test_an_engine_that_ignores_sigterm_is_killed(scripted, monkeypatch):
    monkeypatch.setattr("llmbench.replay.engine_process.TERM_GRACE_S", 0.2)
    log = scripted(f"""
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        {READY}
        time.sleep(60)
    """)
    with running_engine({}, log=log, ready_timeout_s=10) as engine:
        pass
    assert engine.returncode == -signal.SIGKILL


def test_what_the_engine_started_ends_with_it(scripted, tmp_path):
    log = scripted(f"""
        import pathlib, subprocess, sys, time
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        pathlib.Path("worker").write_text(str(worker.pid))
        {READY}
        time.sleep(60)
    """)
    with running_engine({}, log=log, ready_timeout_s=10):
        worker = int((tmp_path / "worker").read_text(encoding="ascii"))
        assert is_alive(worker)
    assert wait_until(lambda: not is_alive(worker))


def test_an_exception_in_the_block_stops_the_engine(scripted):
    log = scripted(f"import time\n{READY}\ntime.sleep(60)")
    with pytest.raises(ZeroDivisionError), running_engine({}, log=log, ready_timeout_s=10) as engine:
        raise ZeroDivisionError
    assert not is_alive(engine.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's")
def test_the_engine_ends_even_when_we_are_killed(scripted, tmp_path):
    log = scripted(f"import time\n{READY}\ntime.sleep(60)")
    script = f"""
import pathlib, time
from llmbench.replay.engine_process import running_engine
with running_engine({{}}, log=pathlib.Path({str(log)!r}), ready_timeout_s=10) as engine:
    print(engine.pid, flush=True)
    time.sleep(60)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=tmp_path, env=environment
    )
    with parent:
        assert parent.stdout is not None
        engine_pid = int(parent.stdout.readline())
        assert is_alive(engine_pid)
        parent.kill()
    assert wait_until(lambda: not is_alive(engine_pid))


def test_without_torch_the_message_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr("llmbench.replay.engine_process.NEEDED", ("torch_that_is_not_there",))
    with (
        pytest.raises(CannotMeasure, match=r"pip install 'llmbench\[engine\]'"),
        running_engine({}, log=tmp_path / "engine.log", ready_timeout_s=1),
    ):
        pytest.fail("it cannot have started")
