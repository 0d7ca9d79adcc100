"""Mooncake's real excerpts: read to the row, and what their prompts share found by a real cache."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from llmbench.bench import run_scenario
from llmbench.scenario.load import parse_scenario
from llmbench.workload.traces import load_trace

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "mooncake-fast25"
FILES = sorted(FOLDER.glob("*.jsonl"))
if not FILES:
    pytest.skip("no ../shared/data/mooncake-fast25", allow_module_level=True)

pytestmark = pytest.mark.shared


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_row_is_read_to_the_digit(path):
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    trace = load_trace("mooncake", path)
    assert len(trace) == len(rows)
    assert trace.offset_ns.tolist() == [(row["timestamp"] - rows[0]["timestamp"]) * 10**6 for row in rows]
    assert trace.input_tokens.tolist() == [row["input_length"] for row in rows]
    assert trace.output_tokens.tolist() == [row["output_length"] for row in rows]
    assert [trace.blocks.of(index).tolist() for index in range(len(rows))] == [
        row["hash_ids"] for row in rows
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_real_prefix_cache_finds_what_the_hashes_say(path, tmp_path):
    """Requests one after the other, so that what is still being computed is no excuse; within 2 points."""
    num_requests, scale, most = 100, 0.125, 1_800
    run = run_scenario(
        parse_scenario(
            {
                "name": "mooncake",
                "target": {"engine": {"model": "tiny", "block_size": 16, "kv_cache_memory": "1GB"}},
                "load": {"arrivals": "closed", "concurrency": 1, "requests": num_requests},
                "workload": {
                    "kind": "mooncake",
                    "path": str(path),
                    "input_scale": scale,
                    "output_scale": 0.01,
                    "max_input": most,
                },
            }
        ),
        out=tmp_path,
    )
    trace = load_trace("mooncake", path).prepared(input_scale=scale, max_input=most)
    wanted = trace.blocks.rows(np.arange(num_requests)).hit_share(trace.input_tokens[:num_requests])
    tokens = run.summary["tokens"]
    assert tokens["cached_share"] == pytest.approx(wanted, abs=0.02)
    assert wanted > 0.03
    assert tokens["asked"]["input_deviation_p50"] < 0.01
    assert "cache_hits" not in {reason["code"] for reason in run.summary["verdict"]["reasons"]}
