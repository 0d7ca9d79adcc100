"""`llmbench trace`, the format it writes, and what it tells of a trace."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbench.errors import UsageError
from llmbench.workload.traces import burstgpt, canonical, load_trace
from llmbench.workload.traces.detect import kind_of, kind_of_text
from llmbench.workload.traces.facts import facts_of
from llmbench.workload.traces.trace import PrefixBlocks, Trace

DATA = Path(__file__).parents[2] / "scenarios" / "data"
AZURE, MOONCAKE = DATA / "azure-sample.csv", DATA / "mooncake-sample.jsonl"


def llmbench(*arguments):
    command = [sys.executable, "-m", "llmbench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def trace_at(offsets_ns, blocks=None):
    count = len(offsets_ns)
    return Trace(
        path="t",
        offset_ns=np.array(offsets_ns, dtype=np.int64),
        input_tokens=np.arange(1, count + 1, dtype=np.int64),
        output_tokens=np.full(count, 3, dtype=np.int64),
        num_file_rows=count,
        blocks=blocks,
    )


# ---- the format of our own


@given(st.lists(st.integers(0, 10**14), min_size=1, max_size=20), st.data())
@settings(deadline=None)
def test_what_is_written_is_read_back_to_the_nanosecond(gaps, data):
    offsets = np.cumsum([0, *gaps[1:]])
    rows = [data.draw(st.lists(st.integers(0, 99), min_size=1, max_size=1)) for _ in gaps]
    blocks = PrefixBlocks(
        tokens=512, offsets=np.arange(len(rows) + 1), ids=np.array([row[0] for row in rows], dtype=np.int64)
    )
    for given_blocks in (None, blocks):
        trace = trace_at(offsets, given_blocks)
        back = canonical.parse_trace(canonical.to_lines(trace).decode(), "t")
        for name in ("offset_ns", "input_tokens", "output_tokens"):
            assert getattr(back, name).tolist() == getattr(trace, name).tolist()
        assert (back.blocks is None) == (given_blocks is None)
        if given_blocks is not None:
            assert back.blocks.ids.tolist() == blocks.ids.tolist()


@pytest.mark.parametrize("path", [AZURE, MOONCAKE], ids=["azure", "mooncake"])
def test_every_format_becomes_the_same_trace(path, tmp_path):
    out = tmp_path / "own.jsonl"
    done = llmbench("trace", "convert", path, "--out", out)
    assert done.returncode == 0, done.stderr
    first, second = load_trace(kind_of(path), path), load_trace("trace", out)
    assert kind_of(out) == "trace"
    assert first.offset_ns.tolist() == second.offset_ns.tolist()
    assert first.input_tokens.tolist() == second.input_tokens.tolist()
    assert facts_of(first)["prefix_share"] == facts_of(second)["prefix_share"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"t": 2, "input_tokens": 5}', "no output_tokens"),
        ('{"t": 2, "input_tokens": 5, "output_tokens": 5, "model": "m"}', "unknown key 'model'"),
        ('{"t": 2, "input_tokens": 5, "output_tokens": 5, "blocks": [1]}', "blocks without block_tokens"),
        ('{"t": 2, "input_tokens": 5, "output_tokens": 5, "block_tokens": 4, "blocks": [1]}', "make 2"),
        ('{"t": 0.5, "input_tokens": 5, "output_tokens": 5}', "sort the file by t"),
    ],
)
def test_a_broken_line_is_told(line, said):
    with pytest.raises(UsageError, match=r"t\.jsonl line 2: ") as refused:
        canonical.parse_trace(f'{{"t": 1, "input_tokens": 5, "output_tokens": 5}}\n{line}', "t.jsonl")
    assert said in str(refused.value)


# ---- which format it is


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("TIMESTAMP, ContextTokens, GeneratedTokens", "azure"),
        (burstgpt.EARLIER_HEADER, "burstgpt"),
        ('{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [1]}', "mooncake"),
        ('{"chat_id": 1, "timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [1]}', "bailian"),
        ('{"t": 1, "input_tokens": 5, "output_tokens": 1}', "trace"),
    ],
)
def test_a_format_is_known_by_its_first_line(line, kind):
    assert kind_of_text(f"\n{line}\r\n", "f") == kind


@given(st.text(max_size=60))
def test_any_other_text_is_refused(text):
    with pytest.raises(UsageError, match="no trace that is known"):
        kind_of_text(text, "f")


# ---- what is told


def test_the_facts_of_a_trace_known_by_construction():
    facts = facts_of(trace_at(np.arange(0, 121) * 500_000_000))
    assert facts["requests_per_s"] == pytest.approx(2.0)
    assert facts["burstiness"] == pytest.approx(0.0)
    assert facts["peak_per_s"] == {"1s": 2.0, "10s": 2.0, "60s": 2.0}
    assert facts["dispersion"]["1s"] == 0.0
    assert facts["input_tokens"]["max"] == 121
    assert sum(facts["rate_over_time"]) / 60 == pytest.approx(121 / 60)
    assert facts["prefix_share"] is None


def test_poisson_arrivals_are_known_as_such():
    rng = np.random.default_rng(3)
    facts = facts_of(trace_at(np.cumsum(rng.exponential(0.05, 40_000) * 1e9).astype(np.int64)))
    assert facts["burstiness"] == pytest.approx(1.0, abs=0.05)
    assert facts["dispersion"]["1s"] == pytest.approx(1.0, abs=0.1)


def test_one_request_has_no_rate():
    facts = facts_of(trace_at([0]))
    assert (facts["requests_per_s"], facts["burstiness"], facts["rate_over_time"]) == (None, None, [])


def test_it_is_shown_in_lines_that_fit(tmp_path):
    picture = tmp_path / "trace.png"
    done = llmbench("trace", "show", MOONCAKE, "--picture", picture)
    assert done.returncode == 0, done.stderr
    assert "400 requests" in done.stdout
    assert "prefixes" in done.stdout
    body = done.stdout.splitlines()[1:]  # the first line is the path
    assert max(map(len, body)) <= 80
    assert picture.read_bytes().startswith(b"\x89PNG")
    as_json = json.loads(llmbench("trace", "show", AZURE, "--json").stdout)
    assert (as_json["kind"], as_json["requests"]) == ("azure", 800)


def test_a_file_that_is_none_ends_with_what_to_do(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello\n", encoding="utf-8")
    done = llmbench("trace", "show", path)
    assert done.returncode == 2
    assert "--as" in done.stderr
    assert "Traceback" not in done.stderr
