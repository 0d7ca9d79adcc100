"""One answer, written down instant by instant, under each tool's formulas; by hand, from their sources."""

from __future__ import annotations

import json
import subprocess

import pytest

from llmbench.columns import ColumnsBuilder
from llmbench.definitions import TOOLS, recompute
from llmbench.definitions.table import MEANINGS, compare
from llmbench.definitions.view import View
from llmbench.records import Outcome
from tests.llmbench.sample_runs import MS, S, failed_record, limit, ok_record, open_loop, steady_run
from tests.programs import LLMBENCH

# Sent at 1 s; the role at +50 ms, reasoning at +100, two tokens at +200, one at +240, finish_reason at +250,
# end at +300. Four tokens in all, ten of input.
ANSWER = {
    "due_ns": 1 * S - 5 * MS,
    "headers_ns": 1 * S + 40 * MS,
    "role_chunk_ns": 1 * S + 50 * MS,
    "finish_chunk_ns": 1 * S + 250 * MS,
    "first_answer_ns": 1 * S + 200 * MS,
    "end_ns": 1 * S + 300 * MS,
    "input_tokens": 10,
    "output_tokens": 4,
    "reasoning_tokens": 1,
}


def columns_of(records):
    builder = ColumnsBuilder()
    builder.extend(records)
    return builder.finish()


@pytest.fixture
def one():
    """A run of that answer and a failure half a second later."""
    answer = ok_record(
        0, sent=S, events=[S + 100 * MS, S + 200 * MS, S + 240 * MS], tokens=[1, 2, 1], **ANSWER
    )
    failure = failed_record(
        1, Outcome.HTTP_ERROR, due_ns=1500 * MS, sent_ns=1500 * MS, end_ns=1600 * MS, error_kind="http_status"
    )
    return columns_of([answer, failure]), open_loop(slo=(limit("ttft", "p95", 0.15),))


def close(values):
    return pytest.approx(values, abs=1e-9)


def test_vllm_counts_from_the_role_to_the_finish(one):
    found = recompute(*one, "vllm")
    assert [found[f"median_{name}_ms"] for name in ("ttft", "e2el", "tpot")] == close([50, 250, 200 / 3])
    assert found["mean_itl_ms"] == close((50 + 100 + 40 + 10) / 4), "four gaps between five chunks"
    assert (found["completed"], found["failed"], found["num_prompts"]) == (1, 1, 2)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (10, 4)
    assert found["duration"] == close(0.6)
    assert found["output_throughput"] == close(4 / 0.6)
    assert found["request_goodput"] == close(1 / 0.6)


def test_sglang_counts_text_and_reasoning_only(one):
    found = recompute(*one, "sglang")
    assert [found[f"median_{name}_ms"] for name in ("ttft", "e2el", "tpot")] == close([100, 240, 140 / 3])
    assert found["mean_itl_ms"] == close((100 + 40) / 2)
    assert found["median_e2e_latency_ms"] == found["median_e2el_ms"]


def test_aiperfs_itl_is_a_mean_of_each_request(one):
    found = recompute(*one, "aiperf")
    names = ("time_to_first_token", "time_to_second_token", "time_to_first_output_token", "request_latency")
    assert [found[name]["avg"] for name in names] == close([100, 100, 200, 240])
    assert found["inter_token_latency"]["p99"] == close(140 / 3)
    assert (found["inter_chunk_latency"]["count"], found["inter_chunk_latency"]["avg"]) == (2, close(70))
    assert found["output_token_throughput_per_user"]["avg"] == close(3 / 0.14)
    assert (found["request_count"]["avg"], found["error_request_count"]["avg"]) == (1, 1)
    assert found["good_request_fraction"]["avg"] == close(0.5)


def test_guidellms_tpot_has_the_prefill_in_it(one):
    found = recompute(*one, "guidellm")["benchmarks"][0]["metrics"]
    ok = {name: found[name]["successful"]["mean"] for name in found}
    assert ok["time_to_first_token_ms"] == close(100)
    assert ok["time_per_output_token_ms"] == close(240 / 4)
    assert ok["inter_token_latency_ms"] == close(140 / 3)
    assert ok["request_latency"] == close(0.3), "the tail of the stream counts"
    assert ok["output_tokens_per_iteration"] == close(4 / 3)
    assert found["request_latency"]["errored"]["mean"] == close(0.1)
    assert found["request_latency"]["total"]["count"] == 2
    assert found["request_latency"]["incomplete"]["count"] == 0


def test_inference_perf_waits_for_what_can_be_read(one):
    found = recompute(*one, "inference-perf")
    latency = found["successes"]["latency"]
    assert latency["time_to_first_token"]["median"] == close(0.2)
    assert latency["request_latency"]["median"] == close(0.3)
    assert latency["time_per_output_token"]["median"] == close(0.1 / 3)
    assert latency["normalized_time_per_output_token"]["median"] == close(0.3 / 4)
    assert latency["inter_token_latency"]["mean"] == close((0.1 + 0 + 0.04) / 3), "two tokens came at once"
    assert found["load_summary"]["schedule_delay"]["max"] == close(0.005)
    assert found["failures"]["by_label"] == {"http_status": 1}


@pytest.mark.parametrize("tool", TOOLS)
def test_a_steady_stream_of_single_tokens_is_the_same_to_all(tool):
    """Where nothing is odd, the definitions agree; and the table has a figure in each of its cells."""
    records, context = steady_run()
    view = View.of(columns_of(records), context)
    table = compare(view, tool, TOOLS[tool](view))
    figures, _ = table.split("\n\n")
    assert " - " not in figures + " "
    assert max(map(len, table.splitlines())) <= 80
    assert set(MEANINGS) == set(TOOLS)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_run_without_a_success_has_a_document_too(tool):
    columns = columns_of([failed_record(0), failed_record(1, Outcome.CANCELLED, sent_ns=None)])
    document = recompute(columns, open_loop(), tool)
    json.dumps(document, allow_nan=False)
    view = View.of(columns, open_loop())
    assert compare(view, tool, document)


def test_the_command_writes_json_or_a_table(tmp_path, bench_on):
    bench = bench_on("--ttft", "20ms", "--itl", "5ms")
    assert bench("run", "scenario.yaml").returncode in (0, 97)
    folder = str(bench.run_folder)

    def definitions(*words):
        command = [*LLMBENCH, "definitions", folder, *words]
        return subprocess.run(command, capture_output=True, encoding="utf-8", check=False)

    for tool in TOOLS:
        done = definitions("--as", tool)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)
    kept = tmp_path / "vllm.json"
    done = definitions("--as", "vllm", "--out", str(kept))
    assert done.returncode == 0
    assert json.loads(kept.read_text())["completed"] == bench.summary()["counts"]["measured_outcomes"]["ok"]
    assert "TTFT" in done.stdout
    wrong = definitions("--as", "locust")
    assert wrong.returncode == 2
    assert "inference-perf" in wrong.stderr
