"""Every kind of stream and of refusal, by a real server: exactly the reasons that are true, and no other."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from llmbench.bench import run_scenario
from llmbench.scenario.model import Scenario
from tests.programs import LLMBENCH

SLOW = {"ttft": "300ms", "itl": "8ms"}  # beside such times a busy machine's lag is small


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """One mock for all: each scenario says in its body how it is to be answered."""
    with subprocess.Popen(
        [*LLMBENCH, "mock", "--port", "0"], stdout=subprocess.PIPE, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1]
        process.terminate()


def scenario_of(url: str, how: dict, *, output_tokens: int = 64, slo: dict | None = None, **target) -> dict:
    return {
        "name": "verdict",
        "target": {"url": url, "body": {"mock": how}, **target},
        "load": {"arrivals": "closed", "concurrency": 16, "requests": 16},
        "workload": {"kind": "inline", "prompts": ["Say hello."], "output_tokens": output_tokens},
        "slo": slo or {},
    }


def run(document: dict, out: Path) -> dict:
    return run_scenario(Scenario.model_validate(document), out=out).summary


def codes(summary: dict) -> list[str]:
    return [reason["code"] for reason in summary["verdict"]["reasons"]]


@pytest.mark.alone
@pytest.mark.parametrize(
    ("how", "kind", "found"),
    [
        ({}, "tokens", []),
        ({"ttft": "1s", "itl": "2ms"}, "tokens", []),
        ({"usage": "every"}, "tokens", []),
        ({"buffered": True}, "one_piece", ["buffered"]),
        ({"buffered": True, "head": "first"}, "one_piece", ["buffered"]),
        ({"tokens_per_chunk": 64}, "one_piece", ["fake_streaming"]),
        ({"hold_bytes": 4096}, "blocks", ["buffered_in_blocks"]),
        ({"hold_bytes": 1500}, "blocks", ["buffered_in_blocks"]),
        ({"events_per_send": 8}, "blocks", ["buffered_in_blocks"]),
        ({"tokens_per_chunk": 8}, "intervals", []),
        ({"tokens_per_chunk": 4, "usage": "every"}, "intervals", []),
        ({"tokens_per_chunk": 1, "tokens_per_chunk_max": 5}, "speculative", []),
        ({"tokens_per_chunk": 1, "tokens_per_chunk_max": 5, "usage": "every"}, "speculative", []),
        ({"events_per_send": 2}, "speculative", []),
        ({"itl": "lognormal:8ms:1"}, "tokens", []),
        ({"reasoning_tokens": 20}, "tokens", []),
        ({"usage": "none"}, "tokens", ["usage_missing"]),
        ({"tokens_per_chunk": 8, "usage": "none"}, "tokens", ["usage_missing"]),
        ({"ignore_max": True, "tokens": 80}, "tokens", ["output_long"]),
        ({"fault": ["malformed,share=20%"]}, "tokens", ["malformed_events"]),
    ],
    ids=str,
)
def test_a_stream_of_64_tokens(server, tmp_path, how, kind, found):
    summary = run(scenario_of(server, SLOW | how), tmp_path)
    assert (summary["streams"]["kind"], codes(summary)) == (kind, found)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("num", "how", "found"),
    [
        (1, {}, []),
        (2, {}, []),
        (8, {"itl": "1ms"}, []),
        (8, {"itl": "1ms", "ttft": "1s"}, []),
        (8, {"tokens_per_chunk": 1, "tokens_per_chunk_max": 5}, []),
        (5, {"tokens_per_chunk": 5}, []),
    ],
    ids=str,
)
def test_a_short_answer_is_no_buffer(server, tmp_path, num, how, found):
    assert codes(run(scenario_of(server, SLOW | how, output_tokens=num), tmp_path)) == found


@pytest.mark.alone
def test_answers_that_are_not_streamed_are_no_fault(server, tmp_path):
    summary = run(scenario_of(server, SLOW, stream=False), tmp_path)
    assert (summary["streams"]["kind"], codes(summary)) == (None, [])


@pytest.mark.alone
def test_what_was_set_decides_what_is_advised(server, tmp_path):
    stopping = SLOW | {"stop_after": 20}
    hints = []
    for ignore_eos in (False, "auto"):
        summary = run(scenario_of(server, stopping, ignore_eos=ignore_eos), tmp_path)
        hints += [reason["hint"] for reason in summary["verdict"]["reasons"]]
        assert codes(summary) == ([] if ignore_eos else ["output_short"])
    assert "set target.ignore_eos: true" in hints[0]


@pytest.mark.alone
def test_a_limit_on_tokens_through_a_buffer_is_invalid_and_97(bench_on):
    bench = bench_on("--buffered", "--ttft", "300ms", "--itl", "10ms")
    settings = ["--set", "workload.output_tokens=64", "--set", "slo.tpot.p50=50ms"]
    result = bench("run", "scenario.yaml", *settings)
    assert result.returncode == 97, result.stdout
    assert "streams  in one piece at the end" in result.stdout
    assert codes(bench.summary()) == ["buffered"]
    assert max(map(len, result.stdout.splitlines()[:-1])) <= 80


@pytest.mark.alone
@pytest.mark.parametrize(
    ("flags", "found", "said"),
    [
        (("--buffered",), ["buffered"], "proxy_buffering off"),
        (("--fault", "status,code=429,share=30%,retry_after=2s"), ["many_errors"], "Retry-After: 2"),
        (("--ignore-max", "--tokens", "100"), ["output_long"], "ignores max_tokens"),
    ],
    ids=["a buffering proxy", "30 % of 429", "max_tokens ignored"],
)
def test_what_is_wrong_with_a_server_is_named_and_nothing_else(bench_on, flags, found, said):
    bench = bench_on("--ttft", "300ms", "--itl", "10ms", *flags)
    scenario = yaml.safe_load((bench.folder / "scenario.yaml").read_text(encoding="utf-8"))
    scenario["workload"]["output_tokens"] = 48
    scenario["load"] = {"arrivals": "constant", "rate": "40/s", "requests": 60}
    bench.write(yaml.safe_dump(scenario))
    result = bench("run", "scenario.yaml")
    assert result.returncode == 0, result.stdout + result.stderr
    (reason,) = bench.summary()["verdict"]["reasons"]
    assert ([reason["code"]], reason["severity"]) == (found, "SUSPECT")
    assert said in " ".join(result.stdout.split())
    stored = bench.summary()["run"]["settings"]
    assert (stored["timeout_s"], stored["arrivals"], stored["num_choices"]) == (120.0, "constant", 1)
