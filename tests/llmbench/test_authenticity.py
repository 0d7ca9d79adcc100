"""How streams that came one way or another are told apart, on made-up arrivals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbench.authenticity import FASTEST_TOKEN_NS, FIRST_READ_BYTES
from llmbench.client import kernel_stamps
from llmbench.columns import from_records
from llmbench.report.summary import summarise
from llmbench.report.text import stream_words
from tests.llmbench.sample_runs import MS, S, closed_loop, limit, ok_record

LAG_S = 0.001


def run_of(streams, *, lag_s=LAG_S, slo=(), **more):
    """A summary of streams, each a list of events: (gap before it in ns, tokens); the first gap is TTFT."""
    records = []
    for index, stream in enumerate(streams):
        sent = index * S
        events = (sent + np.cumsum([gap for gap, _ in stream])).tolist()
        tokens = [count for _, count in stream]
        extra = {"reads": len(set(events)), "body_bytes": 200 * len(events)} | more
        records.append(ok_record(index, sent=sent, events=events, tokens=tokens, **extra))
    instrument = {"timestamps": "kernel", "loop_lag_p99_s": lag_s}
    return summarise(from_records(records), closed_loop(instrument=instrument, slo=slo))


def codes(summary):
    return [reason["code"] for reason in summary["verdict"]["reasons"]]


def steady(num=64, gap=20 * MS, ttft=300 * MS, tokens=1):
    return [(ttft, tokens)] + [(gap, tokens)] * (num - 1)


def one_piece(num=64, at=1500 * MS):
    """In three segments, some microseconds apart."""
    return [(at, 1)] + [(40_000 if place % 25 == 24 else 0, 1) for place in range(num - 1)]


def in_blocks(num=128, size=20, gap=10 * MS):
    """Every `size` events together; two segments a block."""
    return [
        (300 * MS + size * gap if place == 0 else size * gap if place % size == 0 else 30_000, 1)
        if place % size in (0, 12)
        else (0, 1)
        for place in range(num)
    ]


def several(sizes, gap=20 * MS, ttft=300 * MS):
    return [(ttft if place == 0 else gap, count) for place, count in enumerate(sizes)]


def bursts(sizes, gap=20 * MS, ttft=300 * MS):
    """As `several`, but each token in an event of its own."""
    stream = [item for count in sizes for item in [(gap, 1)] + [(0, 1)] * (count - 1)]
    return [(ttft, 1), *stream[1:]]


RANDOM = np.random.default_rng(7)
SPECULATED = [RANDOM.integers(1, 6, size=40).tolist() for _ in range(30)]
INTERVAL = [[8] * (RANDOM.integers(5, 20)) + [int(RANDOM.integers(1, 9))] for _ in range(30)]


@pytest.mark.parametrize(
    ("streams", "kind", "found"),
    [
        ([steady()] * 30, "tokens", []),
        ([one_piece()] * 30, "one_piece", ["buffered"]),
        ([[(20 * MS, 1), *one_piece()]] * 30, "one_piece", ["buffered"]),  # the first token was let through
        ([[(1500 * MS, 128)]] * 30, "one_piece", ["fake_streaming"]),
        ([[(200 * MS, 1), (1300 * MS, 127)]] * 30, "one_piece", ["fake_streaming"]),
        ([in_blocks()] * 30, "blocks", ["buffered_in_blocks"]),
        ([in_blocks(num=30)] * 30, "blocks", ["buffered_in_blocks"]),  # one whole block, and the rest
        ([several(sizes) for sizes in INTERVAL], "intervals", []),
        ([several(sizes) for sizes in SPECULATED], "speculative", []),
        ([bursts(sizes) for sizes in SPECULATED], "speculative", []),
        ([several([5])] * 30, None, []),
        ([[(300 * MS, 1)]] * 30, None, []),
        ([[]] * 30, None, []),
        ([steady()] * 15 + [one_piece()] * 15, "mixed", ["buffered"]),
        ([steady()] * 28 + [one_piece()] * 2, "tokens", []),
    ],
    ids=[
        "an event a token",
        "buffered",
        "buffered after the first token",
        "one event",
        "one event after the first token",
        "blocks",
        "a block and a rest",
        "stream interval",
        "speculative, in one event",
        "speculative, an event a token",
        "a short answer in one event",
        "one token",
        "not streamed",
        "half buffered",
        "a few buffered",
    ],
)
def test_streams_are_called_what_they_are(streams, kind, found):
    summary = run_of(streams)
    assert summary["streams"]["kind"] == kind
    assert codes(summary) == found
    assert bool(stream_words(summary["streams"])) is (kind not in (None, "tokens"))


def test_a_block_is_given_in_events_bytes_and_seconds():
    blocks = run_of([in_blocks(size=20, gap=10 * MS)] * 30)["streams"]["blocks"]
    assert blocks == {"events": 20, "bytes": 4000, "every_s": pytest.approx(0.2, rel=0.001)}
    assert run_of([in_blocks()] * 30, body_bytes=None)["streams"]["blocks"]["bytes"] is None


@pytest.mark.parametrize("shares", [True, False])
def test_an_interval_is_found_from_counts_and_without_them(shares):
    """Where a server does not say what each event holds, words of different lengths blur the counts."""
    streams = []
    for sizes in INTERVAL:
        blurred = list(sizes)
        if shares:
            blurred[1], blurred[2] = blurred[1] + 1, blurred[2] - 1
        streams.append(several(blurred))
    facts = run_of(streams, warnings=["tokens_shared_out"] if shares else [])["streams"]
    assert facts["kind"] == "intervals"
    assert facts["tokens_per_event"]["interval"] == 8
    assert facts["tokens_per_event"]["exact"] is not shares


def test_speculation_without_counts_is_no_interval():
    facts = run_of([several(sizes) for sizes in SPECULATED], warnings=["tokens_shared_out"])["streams"]
    assert facts["kind"] == "speculative"


def test_an_interval_is_a_caveat_where_a_limit_is_on_itl():
    streams = [several(sizes) for sizes in INTERVAL]
    assert codes(run_of(streams, slo=(limit("tpot", "p95", 0.05),))) == []
    assert codes(run_of(streams, slo=(limit("itl", "p95", 0.05),))) == ["stream_interval"]


@pytest.mark.parametrize(
    ("streams", "metric", "severity"),
    [
        ([one_piece()] * 30, "ttft", "SUSPECT"),
        ([one_piece()] * 30, "tpot", "INVALID"),
        ([one_piece()] * 30, "itl", "INVALID"),
        ([one_piece()] * 15 + [steady()] * 15, "tpot", "SUSPECT"),
        ([[(1500 * MS, 128)]] * 30, "tpot", "INVALID"),
    ],
)
def test_a_limit_that_any_server_meets_makes_the_run_invalid(streams, metric, severity):
    summary = run_of(streams, slo=(limit(metric, "p90", 5.0),))
    assert summary["verdict"]["status"] == severity
    assert (metric in summary["verdict"]["reasons"][0]["message"].split()) is (severity == "INVALID")


@pytest.mark.parametrize("stream", [[(20 * MS, 1), *one_piece()], [(20 * MS, 1), (1500 * MS, 127)]])
def test_where_a_first_token_was_let_through_ttft_is_right(stream):
    summary = run_of([stream] * 30, slo=(limit("tpot", "p90", 5.0),))
    (reason,) = summary["verdict"]["reasons"]
    assert reason["severity"] == "SUSPECT"
    assert "TTFT" not in reason["message"]


# ---- what is not to be called buffering


@pytest.mark.parametrize("lag_s", [None, 0.0001, 0.005])
@pytest.mark.parametrize(
    "stream",
    [
        steady(num=8, gap=MS),
        steady(num=8, gap=MS, ttft=3 * S),
        steady(num=64, gap=3 * MS, ttft=20 * S),
        steady(num=2000, gap=MS, ttft=60 * S),
        several([4, 4, 4, 4], ttft=10 * S),
    ],
    ids=["fast and short", "fast after a wait", "a long queue", "a very long queue", "four events"],
)
def test_a_fast_server_and_a_slow_first_token_are_no_buffer(stream, lag_s):
    summary = run_of([stream] * 30, lag_s=lag_s)
    assert codes(summary) == []
    assert "one_piece" not in summary["streams"]["shares"]


def test_what_a_late_client_found_in_one_read_is_not_held_against_a_proxy():
    """Eight tokens within 8 ms, read 10 ms late: as fast as that they may have been written."""
    at_once = [[(500 * MS, 1), *[(0, 1)] * 7]] * 30
    assert codes(run_of(at_once, lag_s=0.010)) == ["too_fast_to_tell"]
    assert codes(run_of(at_once, lag_s=0.0002)) == ["buffered"]


def test_what_the_kernel_stamped_needs_no_look_at_the_clients_lag():
    """A burst of more than a read: all but the first read's events came between two stamps of the kernel."""
    assert kernel_stamps._READ_SIZES[0] == FIRST_READ_BYTES
    streams, late = [[(1500 * MS, 1), *[(0, 1)] * 63]] * 30, 0.030
    assert codes(run_of(streams, lag_s=late)) == ["too_fast_to_tell"]
    assert codes(run_of(streams, lag_s=late, reads=2)) == ["too_fast_to_tell"]
    stamped = {"read_lag_ns": 20 * MS, "reads": 2}
    assert codes(run_of(streams, lag_s=late, **stamped)) == ["buffered"]
    assert codes(run_of(streams, lag_s=late, **stamped, body_bytes=4500)) == ["too_fast_to_tell"]
    spread = [[(1500 * MS, 1), *[(0, 1)] * 20, (30 * MS, 1), *[(0, 1)] * 42]] * 30
    assert "buffered" not in codes(run_of(spread, lag_s=late, **stamped))


def test_groups_that_the_clients_lag_explains_are_no_blocks():
    grouped = in_blocks(size=8, gap=2 * MS)  # every 16 ms
    assert codes(run_of([grouped] * 30, lag_s=0.001)) == ["buffered_in_blocks"]
    assert codes(run_of([grouped] * 30, lag_s=0.016)) == []


def test_several_choices_come_together_and_are_no_blocks():
    step = [(20 * MS, 1), (0, 1), (0, 1), (0, 1)]
    summary = run_of([[(300 * MS, 1), *step[1:], *step * 30]] * 30, event_tokens=None)
    assert codes(summary) == []
    assert summary["streams"]["kind"] is None
    assert codes(run_of([one_piece()] * 30, event_tokens=None)) == ["buffered"]


def test_reasoning_that_is_not_streamed_makes_no_events_of_many_tokens():
    """Two thousand hidden tokens are in the usage, and in the counts laid to the twenty events that came."""
    stream = [(20 * S, 101), *[(20 * MS, 101)] * 19]
    summary = run_of([stream] * 30, reasoning_tokens=2000, warnings=["tokens_shared_out"])
    assert summary["streams"]["kind"] == "tokens"
    short = run_of([[(20 * S, 2003)]] * 30, reasoning_tokens=2000)
    assert codes(short) == []


def test_a_tool_call_that_comes_whole_is_no_fault():
    assert codes(run_of([[(S, 60)]] * 30, finish_reason="tool_calls")) == []


def test_an_instant_answer_was_held_back_by_nobody():
    """A server without a model, or a cache: all of it within a few milliseconds of the request."""
    assert codes(run_of([[(3 * MS, 1), *[(0, 1)] * 63]] * 30)) == ["too_fast_to_tell"]


def test_more_streams_than_are_looked_at_give_the_same_picture(monkeypatch):
    monkeypatch.setattr("llmbench.authenticity._MOST_STREAMS", 10)
    facts = run_of([in_blocks()] * 35)["streams"]
    assert (facts["kind"], facts["judged"], facts["blocks"]["events"]) == ("blocks", 9, 20)


# ---- properties

EVENTS = st.lists(st.tuples(st.integers(0, 50 * MS), st.integers(1, 6)), min_size=1, max_size=40)


@settings(max_examples=80)
@given(st.lists(EVENTS, min_size=1, max_size=12), st.sampled_from([None, 0.0, 0.002]))
def test_every_stream_is_of_one_kind_at_most(streams, lag_s):
    facts = run_of(streams, lag_s=lag_s)["streams"]
    assert facts["judged"] <= len(streams)
    assert sum(facts["shares"].values()) == pytest.approx(1 if facts["judged"] else 0)
    assert 0 <= (facts["near_zero_gap_share"] or 0) <= 1
    assert 0 <= facts["ttft_share_of_e2e_p50"] <= 1
    assert facts["tokens_at_a_time"] >= facts["tokens_per_event"]["mean"] - 1e-9 or facts["judged"] == 0


@settings(max_examples=60)
@given(
    num=st.integers(4, 60),
    gap_us=st.integers(1000, 50_000),
    ttft_ms=st.integers(1, 100_000),
    lag_us=st.integers(0, 900),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_model_that_writes_is_never_called_buffered(num, gap_us, ttft_ms, lag_us, seed):
    """Tokens 1 ms apart or more, read by a client that is late now and then by less than that."""
    late = np.random.default_rng(seed).integers(0, lag_us + 1, size=(10, num)) * 1000
    streams = []
    for row in late:
        arrivals = np.maximum.accumulate(ttft_ms * MS + np.arange(num) * gap_us * 1000 + row)
        streams.append([(int(gap), 1) for gap in np.diff(arrivals, prepend=0)])
    summary = run_of(streams, lag_s=lag_us / 1e6)
    assert summary["streams"]["kind"] == "tokens"
    assert codes(summary) == []


@settings(max_examples=60)
@given(
    num=st.integers(16, 400),
    gap_us=st.integers(1000, 50_000),
    segments=st.integers(1, 6),
    spread_us=st.integers(0, 50),
)
def test_a_stream_that_was_held_back_is_always_found(num, gap_us, segments, spread_us):
    at = 50 * MS + num * gap_us * 1000
    gaps = [spread_us * 1000 if place % max(num // segments, 1) == 0 else 0 for place in range(1, num)]
    summary = run_of([[(at, 1), *[(gap, 1) for gap in gaps]]] * 10, lag_s=0.0005)
    assert codes(summary) == ["buffered"]
    assert FASTEST_TOKEN_NS * num < at
