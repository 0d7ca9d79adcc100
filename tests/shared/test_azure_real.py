"""The real excerpt of the Azure LLM inference trace: read to the row, replayed quickly against the mock."""

from __future__ import annotations

import csv
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest

from llmbench.bench import run_scenario
from llmbench.mock import MockOptions, serve_in_thread
from llmbench.scenario.model import Scenario
from llmbench.workload.traces.azure import load_trace

FOLDER = Path(__file__).parents[3] / "shared" / "data" / "azure-llm-2023"
CONVERSATION = FOLDER / "AzureLLMInferenceTrace_conv_first15min.csv"
if not CONVERSATION.is_file():
    pytest.skip("no ../shared/data/azure-llm-2023", allow_module_level=True)

pytestmark = pytest.mark.shared


def by_hand(path):
    """(offset in 100 ns, input, output) of each row, by decimal arithmetic."""
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines))[1:]
    found = []
    for instant, context, generated in rows:
        whole, _, fraction = instant.partition(".")
        seconds = datetime.fromisoformat(f"{whole}+00:00").timestamp()
        found.append((Decimal(int(seconds)) + Decimal(f"0.{fraction or 0}"), int(context), int(generated)))
    first = found[0][0]
    return [(int((at - first) * 10**9), context, generated) for at, context, generated in found]


def test_every_row_is_read_to_the_digit():
    trace = load_trace(CONVERSATION)
    rows = by_hand(CONVERSATION)
    assert len(trace) == len(rows) == 4424
    assert trace.offset_ns.tolist() == [at for at, _, _ in rows]
    assert trace.input_tokens.tolist() == [context for _, context, _ in rows]
    assert trace.output_tokens.tolist() == [generated for _, _, generated in rows]


def test_its_first_minutes_replay_quickly(tmp_path):
    with serve_in_thread(MockOptions(ttft_s=0.001)) as server:
        scenario = Scenario.model_validate(
            {
                "name": "azure",
                "target": {"url": server.url},
                "load": {"arrivals": "trace", "duration": "2s", "speed": 20},
                "workload": {"kind": "azure", "path": str(CONVERSATION), "max_input": 200, "max_output": 4},
            }
        )
        run = run_scenario(scenario, out=tmp_path)
        log = server.log()
    rows = [row for row in by_hand(CONVERSATION) if row[0] / 20 < 2e9]
    assert run.summary["counts"]["ok"] == run.summary["counts"]["planned"] == len(rows)
    asked = [min(200, context) for _, context, _ in rows]
    got = [entry["input_tokens"] for entry in sorted(log, key=lambda entry: entry["arrival_ns"])][
        -len(rows) :
    ]
    assert sum(abs(a - b) <= 8 for a, b in zip(sorted(asked), sorted(got), strict=True)) > 0.9 * len(rows)
