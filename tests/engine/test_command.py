"""The command as a program: one line on stdout, clear refusals, a clean end."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import pytest

COMMAND = [sys.executable, "-m", "reference_engine"]


def run(*words):
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def serving(*words):
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", "--threads", "1", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.communicate()


def test_help_explains_every_switch_and_needs_no_torch():
    code = (
        "import sys, reference_engine.__main__ as command\n"
        "try: command.main(['--help'])\n"
        "finally: print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.endswith("False\n")
    switches = re.findall(r"^  (--[a-z-]+)", out, flags=re.MULTILINE)
    assert {"--model", "--max-num-seqs", "--max-num-batched-tokens", "--threads", "--dtype"} <= set(switches)
    for switch in ("--max-num-seqs", "--max-num-batched-tokens", "--threads"):
        about = out[out.index(f"  {switch} ") :].split("\n  --")[0]
        assert "TTFT" in about or "lowers both" in about


def test_it_serves_prints_one_line_and_ends_cleanly_on_sigterm():
    with serving("--served-model-name", "bard", "--max-model-len", "256") as (process, line):
        match = re.fullmatch(r"reference_engine ready at (http://127\.0\.0\.1:\d+) model=bard\n", line)
        assert match, line
        with urllib.request.urlopen(f"{match[1]}/v1/models") as response:
            (model,) = json.load(response)["data"]
        assert (model["id"], model["max_model_len"]) == ("bard", 256)
        process.send_signal(signal.SIGTERM)
        rest, log = process.communicate(timeout=20)
    assert process.returncode == 0
    assert rest == ""
    assert "Traceback" not in log


LIMITS = ("--max-num-seqs", "--max-num-batched-tokens")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "nowhere"], "--model nowhere: neither one of"),
        (["--max-model-len", "4096"], "more than the 2048 positions"),
        (["--max-num-seqs", "0"], "--max-num-seqs must be at least 1"),
        (["--swap-space", "16"], "unrecognized arguments: --swap-space"),
        (["--max-num-batched-tokens", "31"], "--max-num-batched-tokens 31 is less than"),
        (["--kv-cache", "none", "--enable-prefix-caching"], "--enable-prefix-caching needs --kv-cache paged"),
        (["--device", "tpu"], "invalid choice: 'tpu'"),
        (
            ["--kv-cache-memory", "9000TB", *(x for n in LIMITS for x in (n, "10000000000"))],
            "lower --kv-cache-memory",
        ),
    ],
)
def test_a_wrong_switch_is_one_clear_message_and_exit_code_2(words, message):
    done = run(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run("--port", str(port))
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1 port {port}: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_by_path_is_served_under_its_own_name_until_ctrl_c(tiny_folder):
    with serving("--model", str(tiny_folder)) as (process, line):
        assert line.endswith(" model=tiny\n")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode == 0
