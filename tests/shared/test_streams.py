"""Every difficult stream of ../shared/tools/streams, end to end: scenario in, requests.parquet out, graded.

One run a stream, each in a thread with an event loop of its own; the server is a process.
"""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyarrow import parquet

from llmbench.bench import run_scenario
from llmbench.scenario.model import Scenario

STREAMS = Path(__file__).parents[3] / "shared" / "tools" / "streams"
if not STREAMS.is_dir():
    pytest.skip("no ../shared/tools/streams", allow_module_level=True)

pytestmark = [pytest.mark.shared, pytest.mark.alone]

ROWS = json.loads((STREAMS / "streams.json").read_text(encoding="utf-8"))
API_NAMES = {"chat": "chat", "text": "completions"}  # theirs to ours
AT_ONCE = 4  # more would make the clients late: two cores, and the server on one of them
KEPT = ("B51b", "B55")  # four requests, one at a time, on kept connections
KEY = "sk-streams-0123456789"


@pytest.fixture(scope="module")
def server_url():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    command = [sys.executable, str(STREAMS / "streamserver.py"), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        for _ in range(100):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
        process.terminate()


@pytest.fixture(scope="module")
def judge():
    spec = importlib.util.spec_from_file_location("grade", STREAMS / "grade.py")
    grade = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(grade)
    return grade.judge


def scenario_of(row_id, server_url, *, api, transport):
    row = ROWS[row_id]
    target = {
        "url": f"{server_url}/q/{row_id}/v1",
        "model": "quirk-model",
        "api": API_NAMES[api],
        "api_key": KEY,
        "ignore_eos": False,
        "timeout": row["client_timeout_s"],
    }
    if row_id == "B62":
        target["no_progress_timeout"] = "2s"
    if row_id == "B38":
        target["body"] = {"n": 2}
    requests = 4 if row_id in KEPT else 1
    return Scenario.model_validate(
        {
            "name": row_id,
            "target": target,
            "load": {"arrivals": "closed", "concurrency": 1, "requests": requests},
            "workload": {"kind": "inline", "prompts": ["Say hi"]},
            "instrument": {"transport": transport},
        }
    )


def observed(row_id, folder):
    """The last row of requests.parquet in the words of grade.py."""
    row = parquet.read_table(folder / "requests.parquet").to_pylist()[-1]
    sent, events = row["sent_ns"], row["event_ns"]

    def since(instant):
        return None if instant is None or sent is None else (instant - sent) / 1e6

    span_ms = (events[-1] - events[0]) / 1e6 if events else None
    tokens = row["output_tokens"]
    return {
        "id": row_id,
        "ok": row["outcome"] == "ok",
        "error_kind": row["error_kind"],
        "error_message": row["error"],
        "http_status": row["http_status"],
        "text": row["text"] or "",
        "partial_text": row["text"] or "",
        "reasoning": row["reasoning"] or "",
        "refusal": row["refusal"] or "",
        "tool_calls": json.loads(row["tool_calls"]) if row["tool_calls"] else [],
        "token_events": len(events),
        "output_tokens": tokens,
        "output_tokens_source": {"events": "chunks"}.get(row["token_source"], row["token_source"]),
        "prompt_tokens": row["input_tokens"],
        "finish_reason": row["finish_reason"],
        "ttft_ms": since(events[0] if events else None),
        "ttft_text_ms": since(row["first_answer_ns"]),
        "last_token_ms": since(events[-1] if events else None),
        "tpot_ms": span_ms / (tokens - 1) if events and tokens is not None and tokens > 1 else None,
        "finished_ms": since(row["end_ns"]),
        "warnings": row["warnings"],
    }


@pytest.mark.parametrize("api", ["chat", "text"])
@pytest.mark.parametrize("transport", ["fast", "aiohttp"])
def test_every_difficult_stream_comes_out_right(server_url, judge, tmp_path, api, transport):
    ids = [row_id for row_id, row in ROWS.items() if api in row["apis"]]

    def miss(row_id, attempt=0):
        out = tmp_path / f"{row_id}-{attempt}"
        run = run_scenario(
            scenario_of(row_id, server_url, api=api, transport=transport),
            out=out,
            save_text=True,
            command_line=["llmbench", "run"],
        )
        missed = judge(ROWS[row_id], observed(row_id, run.folder))
        late = missed and all(line.split(" ")[0].endswith("_ms") for line in missed)
        return miss(row_id, attempt + 1) if late and attempt < 2 else missed

    with ThreadPoolExecutor(AT_ONCE) as threads:
        misses = {
            row_id: missed for row_id, missed in zip(ids, threads.map(miss, ids), strict=True) if missed
        }
    assert {row_id: missed for row_id, missed in misses.items() if ROWS[row_id]["level"] == "must"} == {}
    assert misses == {}  # the rows of level `should` too: what we decided passes as one of the ways
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > len(ids)
    for path in written:
        content = path.read_bytes()
        assert KEY.encode() not in content
        assert path.suffix != ".json" or not (b"NaN" in content or b"Infinity" in content)
