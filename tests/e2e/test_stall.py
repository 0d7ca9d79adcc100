"""A server that stands still for a while, seen by an open loop, which shows it, and a closed one, which says
what it hid.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

SCENARIO = """
    name: stall
    target: {url: "${LLMBENCH_URL}"}
    load: {arrivals: poisson, rate: 50/s, duration: 20s}
    workload: {kind: inline, prompts: [Say hello.], output_tokens: 8}
"""
# Answers of 185 ms: 54 a second with ten users.
SERVER = ("--ttft", "150ms", "--itl", "5ms")
CLOSED = "load={arrivals: closed, concurrency: 10, duration: %gs}"

SIZES = [
    pytest.param(1.0, 0.8, 3.0, id="short"),
    pytest.param(8.0, 2.0, 20.0, id="in full", marks=pytest.mark.slow),
]


def both_loops(bench_on, at_s, for_s, duration_s):
    """An open and a closed loop at about the same rate on a server of their own with the same stall."""
    started = []
    for change in (f"load.duration={duration_s:g}s", CLOSED % duration_s):
        bench = bench_on(*SERVER, "--stall-at", f"{at_s}s", "--stall-for", f"{for_s}s")
        bench.write(SCENARIO)
        out = f"reports-{len(started)}"
        started.append((bench, out, bench.start("run", "scenario.yaml", "-q", "--out", out, "--set", change)))
    for bench, out, process in started:
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stdout + stderr
        (folder,) = (bench.folder / out).glob("*")
        yield folder, stdout


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def times_of(folder):
    """When each request was sent, and how long it took, in seconds."""
    columns = ["sent_ns", "end_ns"]
    sent, end = (
        pq.read_table(folder / "requests.parquet", columns=columns)[name].to_numpy() / 1e9 for name in columns
    )
    return sent, end - sent


def codes(summary):
    return [reason["code"] for reason in summary["verdict"]["reasons"]]


@pytest.mark.alone
@pytest.mark.parametrize(("at_s", "for_s", "duration_s"), SIZES)
def test_an_open_loop_shows_a_stall_in_full_and_a_closed_one_says_what_it_hides(
    bench_on, at_s, for_s, duration_s
):
    (opened, _), (closed, text) = both_loops(bench_on, at_s, for_s, duration_s)

    summary = summary_of(opened)
    assert codes(summary) == []
    due = summary["metrics"]["ttft_due"]
    # Those due at its beginning wait for all of it; 1 % of the run is the tail beyond its p99.
    assert due["max"] == pytest.approx(for_s + 0.15, rel=0.1)
    assert due["p99"] >= for_s + 0.15 - 0.02 * duration_s
    sent_s, e2e_s = times_of(opened)
    assert np.diff(np.sort(sent_s)).max() < 0.5, "it went on sending"
    assert np.sum(e2e_s > for_s / 2) >= 15 * for_s

    summary = summary_of(closed)
    assert codes(summary) == ["closed_loop_stall"]
    hidden = summary["closed_loop"]
    (stall,) = hidden["stalls"]
    # The stall, and what was left of the first tokens' time: ten users who start together ask in step.
    assert for_s * 0.95 < stall["duration_s"] < for_s + 0.2
    assert stall["waiting"] == 10
    assert hidden["withheld_requests"] == pytest.approx(for_s * 10 / 0.185, rel=0.15)
    assert hidden["ttft_p99_corrected_s"] >= for_s * 0.8
    assert np.sum(times_of(closed)[1] > for_s / 2) <= 10, "each user met the stall once"
    assert "requests were never asked" in " ".join(text.split())
    assert "load.arrivals: poisson" in " ".join(text.split())
