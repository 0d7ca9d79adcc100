"""`llmbench models` and `llmbench serve`: the engine under llmbench's name."""

from __future__ import annotations

import json
import signal
import subprocess
from urllib.request import urlopen

import pytest

from llmbench.cli import models, serve
from llmbench.errors import CannotMeasure
from tests.programs import LLMBENCH, Bench


def test_models_names_each_with_its_size_licence_and_whereabouts(bench: Bench):
    result = bench("models")
    assert result.returncode == 0, result.stderr
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert "bundled" in lines["tiny"]
    assert "Apache-2.0" in lines["smollm2-135m"]


def test_a_table_of_models_is_eighty_columns_wide_whatever_they_are_called():
    shown = {"parameters": "135M", "licence": "Apache-2.0, from text that is in the public domain"}
    shown |= {"is_here": True, "bytes": 541_614_457, "download_bytes": 0}
    path = "/home/somebody/.cache/llmbench/models/smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"
    lines = models.table([{"name": name, **shown} for name in ("tiny", path)]).splitlines()
    assert path in lines
    assert max(len(line) for line in lines if line != path) <= 80


def test_a_model_that_is_not_here_says_what_it_would_cost(bench: Bench):
    entries = json.loads(bench("models", "--json", LLMBENCH_CACHE=str(bench.folder)).stdout)
    absent = {entry["name"]: entry for entry in entries}["smollm2-135m"]
    assert absent["is_here"] is False
    assert absent["bytes"] is None
    assert models.whereabouts(absent) == "no; fetched on first use (98 MB)"


def test_serve_passes_every_option_to_the_engine(bench: Bench):
    result = bench("serve", "--help")
    assert result.returncode == 0
    assert "--max-num-seqs" in result.stdout


def test_serve_becomes_the_engine_and_ends_on_a_signal(bench: Bench):
    with subprocess.Popen(
        [*LLMBENCH, "serve", "--port", "0", "--threads", "1"], stdout=subprocess.PIPE, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        url = ready.removeprefix("reference_engine ready at ").split()[0]
        with urlopen(f"{url}/v1/models") as response:
            assert json.load(response)["data"][0]["id"] == "tiny"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0


def test_without_torch_serve_names_the_extra(monkeypatch):
    monkeypatch.setattr("llmbench.replay.engine_process.NEEDED", ("torch_that_is_not_there",))
    with pytest.raises(CannotMeasure, match=r"pip install 'llmbench\[engine\]'"):
        serve.command(None)  # type: ignore[arg-type]  # it is not looked at
