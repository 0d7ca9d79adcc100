"""Traces of every format: exact instants, every broken row told, prompts that share what the file says."""

from __future__ import annotations

import gzip
import itertools
import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbench.errors import UsageError
from llmbench.scenario.load import parse_scenario
from llmbench.workload.data import WorkloadData
from llmbench.workload.prompts import make_workload
from llmbench.workload.traces import TRACE_KINDS, azure, burstgpt, hashed, load_trace
from llmbench.workload.traces.trace import PrefixBlocks, Trace

MOONCAKE = hashed.MOONCAKE
BAILIAN = hashed.BAILIAN


def hashed_line(**changes):
    row = {"timestamp": 9, "input_length": 600, "output_length": 20, "hash_ids": [0, 1]} | changes
    return json.dumps({key: value for key, value in row.items() if value is not None})


# ---- each format


def test_a_trace_with_images_is_read_without_them():
    rows = ["2024-10-15 03:00:07.51,2,1450,210", "2024-10-15 03:00:08,0,30,4"]
    trace = azure.parse_trace("\n".join([azure.HEADER_WITH_IMAGES, *rows]), "t.csv")
    assert trace.offset_ns.tolist() == [0, 490_000_000]
    assert trace.input_tokens.tolist() == [1450, 30]
    assert trace.notes == ("1 rows had images; only their text is sent",)


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_both_layouts_of_burstgpt_are_read(ends):
    newer = [burstgpt.HEADER, "45.0,17,3.2,GPT-4,512,90,602,API log", "47.25,,,ChatGPT,10,5,15,API log"]
    older = [burstgpt.EARLIER_HEADER, "45,GPT-4,512,90,602,API log", "", "47.25,ChatGPT,10,5,15,API log"]
    for rows in (newer, older):
        trace = burstgpt.parse_trace(ends.join(rows) + ends, "t.csv")
        assert trace.offset_ns.tolist() == [0, 2_250_000_000]
        assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([512, 10], [90, 5])


def test_failures_of_burstgpt_are_left_out_and_counted():
    rows = ["1,m,5,0,5,x", "2,m,5,7,12,x", "3,m,0,0,0,x", "5,m,6,8,14,x"]
    trace = burstgpt.parse_trace("\n".join([burstgpt.EARLIER_HEADER, *rows]), "t.csv")
    assert trace.offset_ns.tolist() == [0, 3_000_000_000]
    assert trace.num_file_rows == 4
    assert trace.notes == ("2 failed rows (no response tokens) are left out",)


def test_milliseconds_and_seconds_are_told_apart_by_the_format():
    lines = "\n".join(hashed_line(timestamp=at) for at in (3000, 3250.5))
    assert hashed.parse_trace(lines, "t", MOONCAKE).offset_ns.tolist() == [0, 250_500_000]
    short = {"input_length": 17, "hash_ids": [4, 5]}
    lines = "\n".join(hashed_line(timestamp=at, **short) for at in (4.25, 4.26))
    assert hashed.parse_trace(lines, "t", BAILIAN).offset_ns.tolist() == [0, 10_000_000]


def test_keys_that_are_not_used_are_said():
    lines = "\n".join([hashed_line(session_id="a"), hashed_line(timestamp=12, session_id="b", delay=3)])
    notes = hashed.parse_trace(lines, "t", MOONCAKE).notes
    assert notes == ("key delay of 1 rows is not used", "key session_id of 2 rows is not used")


def test_a_packed_file_is_unpacked(tmp_path):
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + hashed_line().encode() + b"\r\n\r\n"))
    assert len(load_trace("mooncake", path)) == 1


# ---- what cannot be replayed


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        (hashed_line(hash_ids=None), "no hash_ids; expected like"),
        (hashed_line(timestamp="3"), "timestamp is '3'; expected a number"),
        (hashed_line(timestamp=-1), "timestamp is '-1'"),
        (hashed_line(timestamp=True), "timestamp is 'True'"),
        (hashed_line(input_length=0), "input_length is '0'; expected a whole number from 1"),
        (hashed_line(output_length=2.5), "output_length is '2.5'"),
        (hashed_line(hash_ids=[0]), "1 hash_ids for an input_length of 600; blocks of 512 tokens make 2"),
        (hashed_line(hash_ids=[0, "a"]), "hash_ids must be a list of whole numbers"),
        (hashed_line(timestamp=0), "earlier than the row before it; sort the file by timestamp"),
    ],
)
def test_a_broken_line_is_told_by_its_number(line, said):
    text = f"{hashed_line(timestamp=7)}\n\n{line}"
    with pytest.raises(UsageError) as refused:
        hashed.parse_trace(text, "m.jsonl", MOONCAKE)
    assert str(refused.value).startswith("m.jsonl line 3: ")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("x,m,5,6,11,x", "Timestamp is 'x'; expected a number"),
        ("-4,m,5,6,11,x", "Timestamp is '-4'"),
        ("9,m,5.5,6,11,x", "Request tokens is '5.5'"),
        ("9,m,5,many,11,x", "Response tokens is 'many'"),
        ("9,m,5,6", "4 columns; expected 6"),
        ("1,m,5,6,11,x", "earlier than the row before it; sort the file by Timestamp"),
    ],
)
def test_a_broken_row_of_burstgpt_is_told(row, said):
    with pytest.raises(UsageError, match=r"b\.csv line 3: ") as refused:
        burstgpt.parse_trace(f"{burstgpt.EARLIER_HEADER}\n3,m,5,6,11,x\n{row}", "b.csv")
    assert said in str(refused.value)


@pytest.mark.parametrize("kind", TRACE_KINDS)
@given(content=st.binary(max_size=300))
@settings(max_examples=60, deadline=None)
def test_any_bytes_are_a_trace_or_a_clear_error(tmp_path_factory, kind, content):
    path = tmp_path_factory.mktemp("any") / "t"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=str(path)):
        load_trace(kind, path)


@pytest.mark.parametrize("kind", ["mooncake", "bailian"])
@given(
    values=st.dictionaries(
        st.sampled_from(["timestamp", "input_length", "output_length", "hash_ids"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=5)
        | st.lists(st.integers() | st.text(max_size=3), max_size=4),
        min_size=4,
    )
)
@settings(max_examples=200, deadline=None)
def test_any_values_are_a_row_or_a_clear_error(kind, values):
    layout = MOONCAKE if kind == "mooncake" else BAILIAN
    try:
        trace = hashed.parse_trace(json.dumps(values), "t.jsonl", layout)
    except UsageError as error:
        assert "t.jsonl line 1: " in str(error)  # noqa: PT017 - both ends are right
    else:
        assert len(trace) == 1


@pytest.mark.slow
def test_a_million_rows_are_read_in_time():
    rng = np.random.default_rng(1)
    at = np.cumsum(rng.exponential(0.05, 1_000_000))
    tokens = rng.integers(1, 4000, (1_000_000, 2))
    rows = [f"{t:.3f},GPT-4,{a},{b},{a + b},API log" for t, (a, b) in zip(at, tokens.tolist(), strict=True)]
    text = "\n".join([burstgpt.EARLIER_HEADER, *rows])
    start = time.monotonic()
    assert len(burstgpt.parse_trace(text, "b.csv")) == 1_000_000
    assert time.monotonic() - start < 20


# ---- what prompts share


def blocks_of(rows, tokens=64):
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in rows])]).astype(np.int64)
    return PrefixBlocks(
        tokens=tokens, offsets=offsets, ids=np.array([*itertools.chain(*rows)], dtype=np.int64)
    )


def trace_of(rows, tokens=64):
    lengths = np.array([len(ids) * tokens for ids in rows], dtype=np.int64)
    return Trace(
        path="t",
        offset_ns=np.arange(len(rows), dtype=np.int64),
        input_tokens=lengths,
        output_tokens=np.ones(len(rows), dtype=np.int64),
        num_file_rows=len(rows),
        blocks=blocks_of(rows, tokens),
    )


def prompts_of(trace, salt="", **workload):
    scenario = parse_scenario(
        {
            "target": {"url": "http://127.0.0.1:1"},
            "load": {"arrivals": "trace"},
            "workload": {"kind": "mooncake", "path": "t", **workload},
        }
    )
    source = make_workload(scenario, WorkloadData(rows=(trace,)), salt=salt)
    return [source.spec(index).messages[0]["content"].split() for index in range(len(trace))]


def common(left, right):
    """How many items the two begin with in common."""
    pairs = zip(left, right, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), min_size=2, max_size=6))
@settings(max_examples=50, deadline=None)
def test_prompts_share_exactly_the_blocks_that_their_ids_share(chains):
    # an id stands for everything before it: name each block by the path that leads to it
    names = {}
    paths = [[tuple(chain[: end + 1]) for end in range(len(chain))] for chain in chains]
    rows = [[names.setdefault(path, len(names)) for path in of_one] for of_one in paths]
    texts = prompts_of(trace_of(rows))
    for left, right in ((a, b) for a in range(len(rows)) for b in range(a)):
        shared = common(rows[left], rows[right])
        words = common(texts[left], texts[right])
        whole = min(len(rows[left]), len(rows[right])) == shared
        assert words >= shared * 48 - (16 if whole else 0)  # a word is a token here, but for the frame
        if not whole:
            assert words <= (shared + 1) * 64 - 32


def test_another_salt_makes_other_text_of_the_same_length():
    trace = trace_of([[0, 1, 2], [0, 1, 3]])
    first, second = prompts_of(trace, salt="a"), prompts_of(trace, salt="b")
    assert common(first[0], second[0]) < 5
    assert [len(text) for text in first] == [len(text) for text in second]
    warm = [prompts_of(trace, salt=salt, cache="warm") for salt in "ab"]
    assert warm[0] == warm[1]


def test_the_hit_share_of_an_endless_cache():
    blocks = blocks_of([[0, 1], [0, 1, 2], [0, 3], [4]], tokens=10)
    assert blocks.hit_share(np.array([20, 30, 15, 10])) == pytest.approx((20 + 10) / 75)


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=8), st.data())
def test_some_rows_keep_their_blocks(rows, data):
    picked = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8))
    chosen = blocks_of(rows).rows(np.array(picked, dtype=np.int64))
    assert [chosen.of(row).tolist() for row in range(len(picked))] == [rows[row] for row in picked]


def test_scaled_lengths_scale_the_blocks_with_them():
    trace = trace_of([[0, 1], [0, 2]]).prepared(input_scale=0.5)
    assert trace.blocks.tokens == 32
    assert trace.input_tokens.tolist() == [64, 64]
