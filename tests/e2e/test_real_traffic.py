"""The main job on real input: Azure's conversation traffic against two real engines with the same weights.

One is the bundled engine, the other llama.cpp's own server, which nobody here wrote. The model is
SmolLM2-135M-Instruct, fetched once (93 MB); without it, or without the xllamacpp wheel, they are skipped.
The trace is Microsoft's own excerpt where it lies beside the checkout, else the sample that ships.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.programs import MEASURED, Bench

pytestmark = [pytest.mark.models, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
REAL_TRACE = ROOT.parent / "shared/data/azure-llm-2023/AzureLLMInferenceTrace_conv_first15min.csv"
SETTINGS = ["--set", "load.duration=90s", "--set", "load.speed=0.13", "--save-text"]


@pytest.fixture(scope="module")
def gguf() -> Path:
    """The model's GGUF file in the cache, fetched on first use."""
    done = subprocess.run(
        [sys.executable, "-m", "reference_engine", "fetch", "smollm2-135m"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"\S+\.gguf", done.stdout)
    if done.returncode != 0 or found is None:
        pytest.skip(f"smollm2-135m cannot be had here: {done.stderr[-300:]}")
    return Path(found.group())


@pytest.fixture
def llama_cpp(gguf: Path) -> Iterator[str]:
    """llama.cpp's server on the same file; its URL."""
    pytest.importorskip("xllamacpp")
    program = Path(__file__).with_name("llamacpp_server.py")
    server = subprocess.Popen(
        [sys.executable, str(program), str(gguf)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    url = next((line.split()[-1] for line in server.stdout if line.startswith("llama.cpp ready")), None)
    try:
        assert url is not None, "llama.cpp's server ended before it was ready"
        yield url
    finally:
        server.terminate()
        server.communicate(timeout=30)


@pytest.fixture
def trace() -> list[str]:
    """The real trace, where there is one."""
    return ["--set", f"workload.path={REAL_TRACE}"] if REAL_TRACE.is_file() else []


def rows_of(bench: Bench) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(bench.run_folder / "requests.parquet").to_pylist()
    return rows


def reads_like_text(text: str) -> bool:
    """Words of a language, not noise: mostly letters, in words of common length."""
    words = re.findall(r"[A-Za-z']+", text)
    letters = sum(map(len, words))
    return bool(words) and letters / len(text) > 0.5 and 2 <= letters / len(words) <= 9


def check_run(bench: Bench) -> None:
    """Lengths asked and real, times and outcomes of a finished run, and what the model wrote."""
    rows = rows_of(bench)
    ok = [row for row in rows if row["outcome"] == "ok"]
    assert len(rows) >= 10
    failed = [row["error"] for row in rows if row["outcome"] != "ok"]
    # A server may close a connection that was idle at the very instant of the next request on it.
    crossed = [error for error in failed if "before any answer, on a kept connection" in error]
    assert len(crossed) <= 1, failed
    assert len(failed) - len(crossed) <= 0.05 * len(rows), failed
    shortest = min(row["input_tokens"] for row in ok)  # a chat template and a word: the least there is
    for row in ok:
        asked = max(row["input_tokens_asked"], shortest)
        assert abs(row["input_tokens"] - asked) <= max(2, 0.05 * row["input_tokens"])
        assert row["token_source"] == "usage"
        assert row["sent_ns"] < row["first_event_ns"] <= row["event_ns"][-1] <= row["end_ns"]
    assert sum(row["output_tokens"] == row["output_tokens_asked"] for row in ok) >= 0.95 * len(ok)
    texts = [row["text"] for row in ok if row["output_tokens"] >= 8]
    assert texts
    # A small model may answer one or another random prompt with a list of numbers.
    assert reads_like_text(" ".join(texts)), texts
    assert sum(map(reads_like_text, texts)) >= 2 / 3 * len(texts), texts
    metrics = bench.summary()["metrics"]
    assert metrics["ttft"]["p50"] > 0
    assert metrics["tpot"]["p50"] > 0


def test_azure_traffic_on_the_bundled_engine(bench, gguf, trace):
    result = bench("run", "azure-conversation", *SETTINGS, *trace)
    assert result.returncode in (*MEASURED, 98), result.stdout + result.stderr  # 98: few for its limits
    check_run(bench)


def test_azure_traffic_on_llama_cpp(bench, llama_cpp, trace):
    result = bench("run", "azure-conversation", "--url", llama_cpp, *SETTINGS, *trace)
    assert result.returncode in (*MEASURED, 98), result.stdout + result.stderr  # 98: few for its limits
    check_run(bench)
