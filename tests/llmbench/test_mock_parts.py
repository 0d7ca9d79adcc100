"""The mock's parts by themselves: its HTTP parser, its clock, its tokenizer, its scripts."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.mock import clock, tokens
from llmbench.mock.clock import Clock
from llmbench.mock.faults import Fault
from llmbench.mock.http1 import RequestParser
from llmbench.mock.job import read_job
from llmbench.mock.options import Behaviour, changed
from llmbench.mock.script import Action, stream_script

BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=4)


def as_request(body, *, chunked):
    if not chunked:
        return b"POST /a HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    parts = [body[i : i + 7] for i in range(0, len(body), 7)]
    coded = b"".join(b"%X\r\n%b\r\n" % (len(part), part) for part in parts)
    return b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + coded + b"0\r\nX: trailer\r\n\r\n"


@given(bodies=BODIES, chunked=st.booleans(), cuts=st.lists(st.integers(0, 400), max_size=8))
def test_requests_are_the_same_wherever_the_stream_is_torn(bodies, chunked, cuts):
    data = b"".join(as_request(body, chunked=chunked) for body in bodies)
    parser, found = RequestParser(), []
    for start, end in pairwise(sorted({0, len(data), *(cut % len(data) for cut in cuts)})):
        parser.feed(data[start:end])
        while (request := parser.next_request()) is not None:
            found.append(request)
    assert [request.body for request in found] == bodies
    assert {(request.method, request.target) for request in found} == {("POST", "/a")}


@given(text=st.text(max_size=300))
def test_the_quick_count_is_the_number_of_pieces(text):
    assert tokens.count_tokens(text) == len(tokens.pieces(text))


@pytest.mark.parametrize("words", [tokens.ASCII_WORDS, tokens.UNICODE_WORDS], ids=["ascii", "unicode"])
def test_every_generated_word_is_one_token_and_needs_no_escape(words):
    assert len(words) == 1024
    for word in words:
        text = word.decode()
        assert tokens.count_tokens(text) == 1
        assert not set(text) & set('"\\')
        assert min(text) >= " "


@pytest.mark.parametrize("platform", ["linux", "elsewhere"])
async def test_the_clock_calls_in_order_of_instants_and_never_early(monkeypatch, platform):
    monkeypatch.setattr(clock.sys, "platform", platform)
    here = Clock(asyncio.get_running_loop())
    start_ns, called, over = time.monotonic_ns(), [], asyncio.Event()
    for late_ms in (30, 10, 20, 10):
        due_ns = start_ns + late_ms * 1_000_000
        here.at(
            due_ns,
            lambda late_ms=late_ms, due_ns=due_ns: called.append((late_ms, time.monotonic_ns() - due_ns)),
        )
    here.at(start_ns + 31_000_000, over.set)
    await asyncio.wait_for(over.wait(), 5)
    here.close()
    assert [late_ms for late_ms, _ in called] == [10, 10, 20, 30]
    assert min(late_ns for _, late_ns in called) >= 0


async def test_a_callback_that_fails_does_not_stop_the_clock():
    loop, seen, over = asyncio.get_running_loop(), [], asyncio.Event()
    loop.set_exception_handler(lambda _, context: seen.append(context["exception"]))
    here = Clock(loop)
    now_ns = time.monotonic_ns()
    here.at(now_ns, lambda: 1 / 0)
    here.at(now_ns + 1_000_000, over.set)
    await asyncio.wait_for(over.wait(), 5)
    here.close()
    assert isinstance(seen[0], ZeroDivisionError)


def script(fault=None, tokens=5, **settings):
    how = changed(Behaviour(), settings)
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": tokens}
    job = read_job("chat", body, how, ordinal=1, model="m", max_model_len=None)
    return list(stream_script(job, fault, created=0, chunked=True, headers=[]))


FAULTS = st.one_of(
    st.none(),
    st.builds(
        lambda kind, after: Fault(kind=kind, after=after, for_s=0.5),
        st.sampled_from(["reset", "cut", "truncate", "error", "malformed", "stall"]),
        st.integers(0, 12),
    ),
)


@given(
    fault=FAULTS,
    num_tokens=st.integers(0, 10),
    settings=st.fixed_dictionaries(
        {
            "tokens_per_chunk": st.integers(1, 4),
            "tokens_per_chunk_max": st.sampled_from([None, 1, 4]),
            "events_per_send": st.integers(1, 4),
            "hold_bytes": st.sampled_from([None, 1, 600]),
            "role_chunk": st.sampled_from(["none", "early", "first"]),
            "head": st.sampled_from(["early", "first"]),
            "usage": st.sampled_from(["none", "always", "every", "last"]),
            "buffered": st.booleans(),
            "ttft": st.sampled_from(["0", "10ms", "lognormal:10ms:0.5"]),
            "itl": st.sampled_from(["0", "3ms", "lognormal:3ms:0.5"]),
            "ping": st.sampled_from([None, "4ms"]),
        }
    ),
)
def test_every_script_runs_forward_and_ends_once(fault, num_tokens, settings):
    steps = script(fault, num_tokens, **settings)
    times_ns = [due_ns for due_ns, *_ in steps]
    assert times_ns == sorted(times_ns)
    assert [action for _, action, _, _ in steps].count(Action.SEND) == len(steps) - 1
    assert steps[-1][1] is not Action.SEND
    sent = sum(count for *_, count in steps)
    if fault is None or fault.kind in ("stall", "malformed"):
        assert sent == num_tokens
    else:
        assert sent <= num_tokens
        assert sent >= min(fault.after, num_tokens)
        most = max(settings["tokens_per_chunk"], settings["tokens_per_chunk_max"] or 1)
        assert sent < min(fault.after, num_tokens) + most


def test_a_fault_that_strikes_does_so_even_after_the_last_token():
    steps = script(Fault(kind="truncate", after=99), 4)
    assert b'finish_reason":"' not in b"".join(payload for _, _, payload, _ in steps)
    assert sum(count for *_, count in steps) == 4
