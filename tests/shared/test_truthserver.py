"""Reported times against the account of ../shared/tools/truthserver, which notes what it sent and when."""

from __future__ import annotations

import csv
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from array import array
from pathlib import Path

import numpy as np
import pytest

SOURCE = Path(__file__).parents[3] / "shared" / "tools" / "truthserver" / "truthserver.cpp"
if not SOURCE.is_file():
    pytest.skip("no ../shared/tools/truthserver", allow_module_level=True)

pytestmark = [pytest.mark.shared, pytest.mark.alone]

STREAMS, REQUESTS, TOKENS = 64, 192, 60
TTFT_MS, ITL_MS = 200, 10
CLOSE_MS = 2.0  # of the medians, on a machine with other work

SCENARIO = """
name: truth
target: {{url: "http://127.0.0.1:{port}", model: truth, ignore_eos: false}}
load: {{arrivals: closed, concurrency: {streams}, requests: {requests}}}
workload: {{kind: inline, prompts: [hello there], output_tokens: {tokens}}}
"""


@pytest.fixture(scope="module")
def truthserver(tmp_path_factory):
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C++ compiler")
    program = tmp_path_factory.mktemp("truth") / "truthserver"
    subprocess.run([compiler, "-O2", "-std=c++17", "-o", program, SOURCE], check=True)
    return program


def true_times(log):
    """(TTFT, gaps) in ms: requests had arrived and events were sent at these instants."""
    events = array("q")
    events.frombytes(Path(f"{log}.ev").read_bytes())
    ttft, gaps = [], []
    with log.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            first, count = int(row["ev_off"]), int(row["ev_n"])
            if count < 2:
                continue
            sent = np.array(events[first : first + count])
            arrived = int(row.get("t_karr") or 0) or int(row["t_arr"])
            ttft.append((sent[0] - arrived) / 1e6)
            gaps.append(np.diff(sent) / 1e6)
    return np.array(ttft), np.concatenate(gaps)


def test_the_reported_times_are_those_of_the_server(truthserver, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    log = tmp_path / "truth.csv"
    scenario = tmp_path / "truth.yaml"
    text = SCENARIO.format(port=port, streams=STREAMS, requests=REQUESTS, tokens=TOKENS)
    scenario.write_text(text, encoding="utf-8")
    server = [truthserver, "--port", str(port), "--ttft-ms", str(TTFT_MS), "--itl-ms", str(ITL_MS), "--usage"]
    with subprocess.Popen([*server, "--log", log], stderr=subprocess.PIPE, text=True) as process:
        process.stderr.readline()
        command = [sys.executable, "-m", "llmbench", "run", scenario, "--out", tmp_path / "reports"]
        ran = subprocess.run(
            [*command, "--json", "--quiet"], capture_output=True, text=True, timeout=120, check=False
        )
        process.send_signal(signal.SIGTERM)
        account = process.stderr.read()
    summary = json.loads(ran.stdout)
    ttft, gaps = true_times(log)
    assert summary["counts"]["ok"] == REQUESTS == len(ttft)
    for name, truth in (("ttft", ttft), ("itl", gaps)):
        for stat, percent in (("p50", 50), ("p99", 99)):
            said, true = summary["metrics"][name][stat] * 1e3, float(np.percentile(truth, percent))
            print(f"{name} {stat}: reported {said:.3f} ms, true {true:.3f} ms, error {said - true:+.3f} ms")  # noqa: T201
            if stat == "p50":
                assert abs(said - true) < CLOSE_MS
            else:  # both ends share the machine with whatever else it does
                assert abs(said - true) < 10 * CLOSE_MS
    print(re.sub(r"\s+", " ", account.strip().splitlines()[-1]))  # noqa: T201
