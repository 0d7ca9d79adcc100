"""The mock over raw sockets: framing, timing, faults, queueing. Nothing of llmbench's client is used here."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import statistics
import struct
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from itertools import pairwise
from urllib.parse import urlsplit

import pytest

from llmbench.mock import MockOptions, MockServer, serve_in_thread
from llmbench.mock.faults import read_fault, striking
from llmbench.mock.job import read_job
from llmbench.mock.options import Behaviour, changed
from llmbench.mock.script import token_times_ns

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
LATE_S = 0.04  # what a busy machine may add to any single instant


class Raw:
    """A strict HTTP/1.1 client on one socket: it accepts nothing but what RFC 9112 allows."""

    def __init__(self, url, sock=None):
        where = urlsplit(url)
        self.sock = sock or socket.create_connection((where.hostname, where.port), timeout=10)
        self.sock.settimeout(10)
        self.buffer = b""

    def read(self):
        data = self.sock.recv(65536)
        self.at_s = time.monotonic()
        if not data:
            raise EOFError(self.buffer)
        self.buffer += data

    def until(self, end):
        while end not in self.buffer:
            self.read()
        head, self.buffer = self.buffer.split(end, 1)
        return head

    def exactly(self, size):
        while len(self.buffer) < size:
            self.read()
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def send(self, method, path, body=None, *headers, version="1.1"):
        lines = [f"{method} {path} HTTP/{version}", "Host: mock", *headers]
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        if body is not None:
            lines.append(f"Content-Length: {len(data)}")
        self.sent_s = time.monotonic()
        self.sock.sendall("\r\n".join([*lines, "", ""]).encode() + data)

    def head(self):
        first, *lines = self.until(b"\r\n\r\n").decode().split("\r\n")
        assert first.startswith("HTTP/1.1 ")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(first.split()[1]), headers

    def chunks(self):
        """(arrival in seconds, payload) of each HTTP chunk; the last one must end the body exactly."""
        while True:
            size = int(self.until(b"\r\n"), 16)
            payload = self.exactly(size)
            assert self.exactly(2) == b"\r\n"
            if size == 0:
                return
            yield self.at_s - self.sent_s, payload

    def answer(self):
        """(status, headers, body) of an answer of either kind."""
        status, headers = self.head()
        if headers.get("transfer-encoding") == "chunked":
            return status, headers, b"".join(payload for _, payload in self.chunks())
        return status, headers, self.exactly(int(headers["content-length"]))

    def ask(self, path=CHAT, *headers, **body):
        self.send("POST", path, request(path, **body), *headers)
        return self.answer()

    def events(self, path=CHAT, **body):
        """(arrival, decoded data) of each event of a stream that must be proper SSE in one chunk an event."""
        self.send("POST", path, request(path, stream=True, **body))
        status, headers = self.head()
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        return [(at_s, decode(payload)) for at_s, payload in self.chunks()]

    def closed(self):
        """Whether the server has closed the connection properly, with nothing more to read."""
        return self.buffer == b"" and self.sock.recv(1) == b""


def request(path, **body):
    prompt = {
        CHAT: {"messages": [{"role": "user", "content": "one two three"}]},
        COMPLETIONS: {"prompt": "one two"},
    }
    return {**prompt.get(path, {"input": "one two"}), **body}


def decode(payload, line_end=b"\n"):
    assert payload.endswith(line_end * 2), payload
    lines = payload[: -2 * len(line_end)].split(line_end)
    data = [line for line in lines if line.startswith(b"data:")]
    if not data:
        return payload
    assert len(data) == 1
    text = data[0][5:].removeprefix(b" ")
    return text.decode() if text == b"[DONE]" else json.loads(text)


def texts(events, field="content"):
    found = [event["choices"][0]["delta"].get(field) for _, event in chunks_of(events)]
    return [text for text in found if text]


def chunks_of(events):
    return [(at_s, event) for at_s, event in events if isinstance(event, dict) and event.get("choices")]


@pytest.fixture(scope="module")
def server():
    with serve_in_thread(MockOptions(tokens=4, log_bodies=True)) as server:
        yield server


@pytest.fixture
def raw(server):
    client = Raw(server.url)
    yield client
    client.sock.close()


@contextmanager
def mock(**options):
    with serve_in_thread(MockOptions(**options)) as server:
        yield server


# ---------------------------------------------------------------------------- answers


def test_a_chat_stream_holds_role_tokens_finish_usage_and_done_in_this_order(raw):
    events = [event for _, event in raw.events(max_tokens=3, stream_options={"include_usage": True})]
    role, *tokens, finish, usage, done = events
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(tokens) == 3
    assert all(len(event["choices"][0]["delta"]["content"].split()) == 1 for event in tokens)
    assert finish["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}
    assert all(event["usage"] is None for event in [role, *tokens, finish])
    assert done == "[DONE]"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_a_whole_answer_has_the_text_of_the_stream(raw, path):
    streamed = "".join(
        event.get("delta", "") if path == RESPONSES else text_of(event)
        for _, event in raw.events(path, max_tokens=7)
        if isinstance(event, dict)
    )
    _, headers, body = raw.ask(path, max_tokens=7)
    document = json.loads(body)
    whole = document["output"][0]["content"][0]["text"] if path == RESPONSES else text_of(document)
    assert whole == streamed
    assert len(whole.split()) == 7
    assert headers["content-type"] == "application/json"


def text_of(event):
    if not event["choices"]:
        return ""
    choice = event["choices"][0]
    inner = choice.get("delta") or choice.get("message") or choice
    return inner.get("content") or inner.get("text") or ""


def test_the_text_depends_on_seed_and_prompt_only(raw):
    def text(**body):
        return "".join(texts(raw.events(max_tokens=9, **body)))

    assert text() == text(temperature=1, model="other")
    assert text() != text(messages=[{"role": "user", "content": "four"}])
    assert text() != text(mock={"seed": 1})


def test_the_responses_api_sends_its_events_in_openais_order(raw):
    events = [event for _, event in raw.events(RESPONSES, max_output_tokens=2)]
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]["response"]
    assert last["usage"]["output_tokens"] == 2
    assert last["status"] == "incomplete"
    assert last["output"][0]["content"][0]["text"] == events[4]["delta"] + events[5]["delta"]


def test_each_event_of_the_responses_api_names_its_type(raw):
    raw.send("POST", RESPONSES, request(RESPONSES, stream=True))
    raw.head()
    for _, payload in raw.chunks():
        name, data = payload.split(b"\n")[:2]
        assert name == b"event: " + json.loads(data[6:])["type"].encode()


def test_responses_may_end_as_incomplete_and_carry_reasoning_first(raw):
    how = {"responses_end": "incomplete", "reasoning_tokens": 2}
    events = [event for _, event in raw.events(RESPONSES, max_output_tokens=3, mock=how)]
    kinds = [event["type"] for event in events]
    assert kinds.index("response.reasoning_text.delta") < kinds.index("response.output_text.delta")
    assert kinds.count("response.output_item.done") == 2
    assert kinds[-1] == "response.incomplete"
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"]
    assert events[-1]["response"]["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_comes_first_and_counts_as_output(raw, field):
    how = {"reasoning_tokens": 3, "reasoning_field": field, "usage": "always"}
    events = raw.events(max_tokens=5, mock=how)
    assert (len(texts(events, field)), len(texts(events))) == (3, 2)
    usage = events[-2][1]["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 3}


def test_a_tool_call_streams_arguments_that_are_json_in_the_end(raw):
    events = chunks_of(raw.events(mock={"answer": "tool", "tokens": 3}))
    calls = [
        e["choices"][0]["delta"]["tool_calls"][0]
        for _, e in events
        if "tool_calls" in e["choices"][0]["delta"]
    ]
    assert calls[0]["function"]["name"] == "look_up"
    assert len(calls) == 3
    assert len(json.loads("".join(c["function"]["arguments"] for c in calls))["text"].split()) == 3
    assert events[-1][1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_refusal_has_a_field_of_its_own(raw):
    events = raw.events(max_tokens=2, mock={"answer": "refusal"})
    assert (len(texts(events, "refusal")), texts(events)) == (2, [])


def test_unicode_text_keeps_its_token_count(raw, server):
    events = raw.events(max_tokens=400, mock={"text": "unicode"})
    text = "".join(texts(events))
    assert "\u2028" in text
    assert not text.isascii()
    raw.send("POST", "/tokenize", {"prompt": text})
    assert json.loads(raw.answer()[2])["count"] == 400


@pytest.mark.parametrize(
    ("body", "tokens", "reason"),
    [
        ({}, 4, "stop"),
        ({"max_tokens": 2}, 2, "length"),
        ({"max_completion_tokens": 6}, 6, "length"),
        ({"max_tokens": 0}, 0, "length"),
        ({"max_tokens": 2, "mock": {"ignore_max": True}}, 4, "stop"),
        ({"max_tokens": 9, "mock": {"stop_after": 3}}, 3, "stop"),
        ({"max_tokens": 9, "ignore_eos": True, "mock": {"stop_after": 3}}, 9, "length"),
        ({"mock": {"finish_reason": "content_filter"}}, 4, "content_filter"),
    ],
)
def test_length_and_finish_reason_follow_the_request(raw, body, tokens, reason):
    events = raw.events(**body)
    assert len(texts(events)) == tokens
    assert chunks_of(events)[-1][1]["choices"][0]["finish_reason"] == reason


# ---------------------------------------------------------------------------- usage styles and stream format


def usages(events):
    return [event["usage"] for _, event in events if isinstance(event, dict) and event.get("usage")]


@pytest.mark.parametrize(
    ("style", "asked", "counts"),
    [
        ("none", True, []),
        ("opt-in", False, []),
        ("opt-in", True, [3]),
        ("always", False, [3]),
        ("every", False, [0, 1, 2, 3, 3, 3]),
        ("last", False, [3]),
    ],
)
def test_usage_comes_in_the_style_that_was_set(raw, style, asked, counts):
    option = {"stream_options": {"include_usage": True}} if asked else {}
    events = raw.events(max_tokens=3, mock={"usage": style}, **option)
    assert [usage["completion_tokens"] for usage in usages(events)] == counts
    if style == "last":
        carriers = [event for _, event in chunks_of(events) if event.get("usage")]
        assert carriers[0]["choices"][0]["delta"]["content"]


@pytest.mark.alone
def test_usage_can_come_late_and_tell_cached_tokens(raw):
    how = {"usage": "always", "usage_late": "150ms", "cached_tokens": 5}
    events = raw.events(max_tokens=2, mock=how)
    (last_text_s, _), (usage_s, usage) = chunks_of(events)[-2], events[-2]
    assert 0.14 < usage_s - last_text_s < 0.15 + LATE_S
    assert usage["usage"]["prompt_tokens_details"] == {"cached_tokens": 5}


@pytest.mark.parametrize(("kind", "end"), [("lf", b"\n"), ("crlf", b"\r\n"), ("cr", b"\r")])
@pytest.mark.parametrize("space", [True, False])
def test_line_ends_and_the_blank_after_data_are_as_told(raw, kind, end, space):
    raw.send("POST", CHAT, request(CHAT, stream=True, mock={"line_ending": kind, "data_space": space}))
    raw.head()
    payloads = [payload for _, payload in raw.chunks()]
    assert all(payload.startswith(b"data: {" if space else b"data:{") for payload in payloads[:-1])
    assert all(payload.strip(b"\r\n") + end * 2 == payload for payload in payloads)
    assert len([decode(payload, end) for payload in payloads]) == 7


def test_a_stream_may_end_without_done(raw):
    assert isinstance(raw.events(mock={"done": False})[-1][1], dict)


@pytest.mark.alone
@pytest.mark.parametrize(("when", "at_s"), [("none", None), ("early", 0.0), ("first", 0.1)])
def test_the_role_chunk_comes_when_told(raw, when, at_s):
    events = chunks_of(raw.events(mock={"role_chunk": when, "ttft": "100ms"}))
    roles = [(at, e) for at, e in events if "role" in e["choices"][0]["delta"]]
    if at_s is None:
        assert roles == []
    else:
        assert at_s - 0.001 <= roles[0][0] < at_s + LATE_S


@pytest.mark.alone
def test_pings_come_before_the_first_token_only(raw):
    events = raw.events(mock={"ping": "30ms", "ttft": "100ms", "itl": "40ms"})
    pings = [i for i, (_, event) in enumerate(events) if event == b": ping\n\n"]
    assert pings == [0, 1, 2]


def test_several_tokens_share_a_chunk_and_the_last_chunk_holds_the_rest(raw):
    found = texts(raw.events(max_tokens=7, mock={"tokens_per_chunk": 3}))
    assert [len(text.split()) for text in found] == [3, 3, 1]


def test_torn_sends_carry_the_same_bytes(raw):
    assert len(texts(raw.events(max_tokens=5, mock={"split": 1}))) == 5


# ---------------------------------------------------------------------------- timing


@pytest.mark.alone
def test_tokens_come_on_an_absolute_schedule(raw, server):
    raw.events(max_tokens=40, mock={"ttft": "100ms", "itl": "5ms"})
    entry = server.log()[-1]
    late_ns = [
        at - entry["arrival_ns"] - 100_000_000 - 5_000_000 * i for i, at in enumerate(entry["event_ns"])
    ]
    assert len(late_ns) == 40
    assert min(late_ns) >= 0
    assert statistics.median(late_ns) < 2_000_000  # no drift: the last ones are no later than the first


@pytest.mark.alone
def test_a_client_sees_what_the_log_says(raw, server):
    events = chunks_of(raw.events(max_tokens=10, mock={"ttft": "80ms", "itl": "20ms", "role_chunk": "none"}))[
        :10
    ]
    entry = server.log()[-1]
    gaps_s = [
        at_s - (sent - entry["arrival_ns"]) / 1e9
        for (at_s, _), sent in zip(events, entry["event_ns"], strict=True)
    ]
    assert min(gaps_s) > 0
    assert statistics.median(gaps_s) < 0.005


@pytest.mark.alone
@pytest.mark.parametrize(
    ("how", "due_ms"),
    [
        ({"tokens_per_chunk": 2}, [50, 90, 130]),
        ({"events_per_send": 3}, [50, 50, 50, 110, 110, 110]),
        ({"prefill_tokens_per_s": 100}, [150, 170, 190, 210, 230, 250]),
        ({"prefill_tokens_per_s": 100, "cached_tokens": 4}, [110, 130, 150, 170, 190, 210]),
        ({"buffered": True}, [150] * 6),
        ({"hold_bytes": 400, "role_chunk": "none"}, [90, 90, 90, 150, 150, 150]),
    ],
)
def test_chunks_sends_and_prefill_shape_the_schedule(raw, server, how, due_ms):
    raw.events(max_tokens=6, mock={"ttft": "50ms", "itl": "20ms", **how})
    entry = server.log()[-1]
    late_ms = [
        (at - entry["arrival_ns"]) / 1e6 - due for at, due in zip(entry["event_ns"], due_ms, strict=True)
    ]
    assert min(late_ms) >= 0
    assert max(late_ms) < LATE_S * 1e3


def test_random_delays_are_lognormal_with_the_mean_asked_for_and_repeat_by_seed():
    how = changed(Behaviour(), {"ttft": "lognormal:200ms:0.5"})
    jobs = [
        read_job("completions", {"prompt": "a"}, how, ordinal=i, model="m", max_model_len=None)
        for i in range(4000)
    ]
    first = [next(token_times_ns(job)) / 1e9 for job in jobs]
    assert first == [next(token_times_ns(job)) / 1e9 for job in jobs]
    assert statistics.mean(first) == pytest.approx(0.2, rel=0.03)
    assert statistics.median(first) == pytest.approx(0.2 * 2.718281828 ** (-0.125), rel=0.04)


@pytest.mark.alone
def test_a_whole_answer_is_due_with_its_last_token(raw):
    raw.ask(max_tokens=5, mock={"ttft": "50ms", "itl": "20ms"})
    assert 0.129 < raw.at_s - raw.sent_s < 0.13 + LATE_S


@pytest.mark.alone
def test_a_buffered_stream_arrives_in_one_piece_after_its_head(raw):
    raw.send("POST", CHAT, request(CHAT, stream=True, mock={"buffered": True, "itl": "50ms"}))
    raw.head()
    assert raw.at_s - raw.sent_s < LATE_S
    arrivals = [at_s for at_s, _ in raw.chunks()]
    assert arrivals[0] > 0.149
    assert arrivals[-1] - arrivals[0] < 0.005


# ---------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("fault", "status", "kind", "header"),
    [
        ("status,code=429,retry_after=2s", 429, "application/json", ("retry-after", "2")),
        ("status", 503, "text/html; charset=utf-8", None),
        ("status,code=400,message=bad luck", 400, "application/json", None),
        ("status,code=500,body=empty", 500, "text/plain; charset=utf-8", ("content-length", "0")),
        ("status,code=307,location=/elsewhere", 307, "application/json", ("location", "/elsewhere")),
        ("json-error", 200, "application/json", None),
        ("empty", 200, "text/event-stream; charset=utf-8", ("content-length", "0")),
    ],
)
def test_a_fault_puts_another_answer_in_place(raw, server, fault, status, kind, header):
    found, headers, body = raw.ask(stream=True, mock={"fault": fault})
    assert (found, headers["content-type"]) == (status, kind)
    if header:
        assert headers[header[0]] == header[1]
    if kind == "application/json":
        assert json.loads(body)["error"]["message"]
    assert raw.ask()[0] == 200  # the connection goes on
    assert server.log()[-2]["fault"] == fault.split(",")[0]


def test_json_comes_instead_of_a_stream(raw):
    status, headers, body = raw.ask(stream=True, mock={"fault": "json"})
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(body)["choices"][0]["message"]["content"]


def read_to_end(raw):
    received = raw.buffer
    try:
        while data := raw.sock.recv(65536):
            received += data
    except ConnectionResetError:
        return received, "reset"
    return received, "closed"


@pytest.mark.parametrize(("kind", "end"), [("reset", "reset"), ("cut", "closed"), ("drop", "closed")])
def test_a_connection_can_be_reset_cut_or_dropped(raw, server, kind, end):
    raw.send(
        "POST",
        CHAT,
        request(CHAT, stream=True, max_tokens=9, mock={"fault": f"{kind},after=2", "role_chunk": "none"}),
    )
    received, how = read_to_end(raw)
    assert how == end
    assert received.count(b'"content"') == (0 if kind == "drop" else 2)
    assert not received.endswith(b"0\r\n\r\n")
    assert server.log()[-1]["end"] == ("reset" if kind == "reset" else "cut")


def test_a_truncated_body_ends_properly_without_finish_or_done(raw):
    events = raw.events(max_tokens=9, mock={"fault": "truncate,after=3"})
    assert len(texts(events)) == 3
    assert all(event["choices"][0]["finish_reason"] is None for _, event in chunks_of(events))
    assert raw.ask()[0] == 200


def test_an_error_object_ends_the_stream(raw):
    events = raw.events(max_tokens=9, mock={"fault": "error,after=2,code=500,message=out of memory"})
    assert len(texts(events)) == 2
    assert events[-2][1]["error"]["message"] == "out of memory"
    assert events[-1][1] == "[DONE]"
    kinds = [event["type"] for _, event in raw.events(RESPONSES, mock={"fault": "error,after=1"})]
    assert kinds[-1] == "error"


def test_a_malformed_event_does_not_end_the_stream(raw):
    raw.send("POST", CHAT, request(CHAT, stream=True, max_tokens=5, mock={"fault": "malformed,after=2"}))
    raw.head()
    payloads = [payload for _, payload in raw.chunks()]
    broken = [payload for payload in payloads if payload == b'data: {"choices": [{"delta":\n\n']
    assert len(broken) == 1
    assert payloads[-1] == b"data: [DONE]\n\n"


@pytest.mark.alone
@pytest.mark.parametrize("stream", [True, False])
def test_a_stall_puts_off_what_follows(raw, stream):
    raw.ask(stream=stream, max_tokens=5, mock={"itl": "10ms", "fault": "stall,after=2,for=150ms"})
    assert 0.19 <= raw.at_s - raw.sent_s < 0.19 + LATE_S


def test_a_stall_may_last_until_the_client_leaves(raw, server):
    raw.send("POST", CHAT, request(CHAT, stream=True, max_tokens=5, mock={"fault": "stall,after=2"}))
    raw.head()
    raw.sock.settimeout(0.1)
    with suppress(TimeoutError):
        while True:
            raw.read()
    assert raw.buffer.count(b"data: ") == 3
    raw.sock.close()
    assert wait_for(lambda: server.log()[-1]["end"] == "client left")


def wait_for(condition, timeout_s=2.0):
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.005)
    return False


def test_faults_strike_every_nth_request_and_a_seeded_share():
    every = [read_fault("status,code=429,every=3"), read_fault("status,code=500,every=2")]
    codes = [(fault.code if (fault := striking(every, i, 0)) else 200) for i in range(1, 7)]
    assert codes == [200, 500, 429, 500, 200, 429]
    share = [read_fault("reset,share=20%")]
    struck = [striking(share, i, 7) is not None for i in range(1, 2001)]
    assert 0.17 < sum(struck) / 2000 < 0.23
    assert struck == [striking(share, i, 7) is not None for i in range(1, 2001)]
    assert struck != [striking(share, i, 8) is not None for i in range(1, 2001)]


def test_a_key_that_is_rejected_is_named(raw):
    how = {"reject": ["stream_options"]}
    status, _, body = raw.ask(stream=True, stream_options={"include_usage": True}, mock=how)
    assert (status, json.loads(body)["error"]["param"]) == (400, "stream_options")


# ---------------------------------------------------------------------------- load


def at_once(url, count, **body):
    """Start `count` requests in order, some milliseconds apart; the raw clients."""
    clients = []
    for i in range(count):
        client = Raw(url)
        client.send("POST", CHAT, request(CHAT, stream=True, **body), f"X-Request-Id: r{i}")
        clients.append(client)
        time.sleep(0.005)
    return clients


@pytest.mark.alone
def test_a_capacity_limit_serves_in_order_of_arrival():
    with mock(capacity=2, tokens=1, ttft_s=0.06) as server:
        clients = at_once(server.url, 6)
        for client in clients:
            client.answer()
            client.sock.close()
        log = sorted(server.log(), key=lambda entry: entry["arrival_ns"])
        assert [entry["id"] for entry in log] == [f"r{i}" for i in range(6)]
        starts = [entry["start_ns"] for entry in log]
        assert starts == sorted(starts)
        waits_ms = [(entry["start_ns"] - entry["arrival_ns"]) / 1e6 for entry in log]
        assert waits_ms[:2] == [0, 0]
        assert all(wait > 30 for wait in waits_ms[2:])
        ends = [entry["end_ns"] for entry in log]
        assert all(starts[i] >= ends[i - 2] for i in range(2, 6))


def test_a_full_queue_refuses_and_a_client_that_leaves_frees_its_place():
    with mock(capacity=1, max_queue=1, queue_full_status=503, tokens=1000, itl_s=1.0) as server:
        clients = at_once(server.url, 3)
        assert clients[2].answer()[0] == 503
        clients[0].sock.close()
        assert clients[1].head()[0] == 200  # the waiting one takes the place
        for client in clients:
            client.sock.close()


@pytest.mark.alone
def test_a_freeze_holds_everything_back_by_its_length():
    with mock(tokens=20, itl_s=0.02, stall_at_s=0.1, stall_for_s=0.3) as server:
        client = Raw(server.url)
        client.send("POST", CHAT, request(CHAT, stream=True))
        time.sleep(0.2)
        health = Raw(server.url)
        health.send("GET", "/health")
        assert health.answer()[0] == 200
        assert health.at_s - health.sent_s > 0.15  # it had to wait for the thaw
        client.answer()
        gaps_ms = [(b - a) / 1e6 for a, b in pairwise(server.log()[-1]["event_ns"])]
        assert 300 < max(gaps_ms) < 320 + 1e3 * LATE_S
        assert statistics.median(gaps_ms) == pytest.approx(20, abs=3)
        assert sum(gap > 100 for gap in gaps_ms) == 1
        client.sock.close()
        health.sock.close()


# ---------------------------------------------------------------------------- HTTP


def test_a_connection_is_kept_and_pipelined_requests_are_answered_in_order(raw):
    raw.sock.sendall(
        b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" * 2 + b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"
    )
    raw.sent_s = 0.0
    assert [raw.answer()[2] for _ in range(2)] == [b"", b""]
    assert json.loads(raw.answer()[2])["data"][0]["id"] == "mock"


def test_requests_after_a_stream_on_the_same_connection_wait_for_its_end(raw):
    body = json.dumps(request(CHAT, stream=True, mock={"itl": "20ms"})).encode()
    post = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    raw.sock.sendall(post + b"GET /health HTTP/1.1\r\n\r\n")
    raw.sent_s = time.monotonic()
    assert raw.answer()[2].endswith(b"data: [DONE]\n\n")
    assert raw.answer()[0] == 200


def test_a_body_may_come_in_chunks_and_byte_by_byte(raw):
    body = json.dumps(request(CHAT, max_tokens=2)).encode()
    chunks = (
        b"".join(b"%x;note=1\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:])) + b"0\r\n\r\n"
    )
    head = b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    raw.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in head + chunks:
        raw.sock.sendall(bytes([byte]))
    assert json.loads(raw.answer()[2])["usage"]["completion_tokens"] == 2


def test_a_client_that_expects_100_continue_gets_it_before_it_sends_the_body(raw):
    body = json.dumps(request(CHAT)).encode()
    raw.sock.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        % len(body)
    )
    assert raw.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue"
    raw.sock.sendall(body)
    assert raw.answer()[0] == 200


def test_an_http_1_0_client_gets_no_chunks_and_the_end_of_the_connection(raw):
    raw.send("POST", CHAT, request(CHAT, stream=True), version="1.0")
    _, headers = raw.head()
    assert "transfer-encoding" not in headers
    received, how = read_to_end(raw)
    assert how == "closed"
    assert received.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("wish", ["header", "option"])
def test_a_connection_is_closed_when_asked(raw, wish):
    if wish == "header":
        _, headers, _ = raw.ask(CHAT, "Connection: close")
    else:
        _, headers, _ = raw.ask(mock={"close": True})
    assert headers["connection"] == "close"
    assert raw.closed()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", 413),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 70_000, 431),
    ],
)
def test_bytes_that_are_no_request_are_refused_and_the_connection_closed(raw, data, status):
    raw.sock.sendall(data)
    found, headers, _ = raw.answer()
    assert (found, headers["connection"]) == (status, "close")
    assert raw.closed()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (CHAT, b"{", 400),
        (CHAT, [1], 400),
        (CHAT, {"messages": []}, 400),
        (CHAT, {"messages": "hi"}, 400),
        (COMPLETIONS, {}, 400),
        (RESPONSES, {"input": 3}, 400),
        (CHAT, request(CHAT, max_tokens=-1), 400),
        (CHAT, request(CHAT, max_tokens="many"), 400),
        (CHAT, request(CHAT, mock={"speed": 1}), 400),
        (CHAT, request(CHAT, mock={"ttft": "5"}), 400),
        (CHAT, request(CHAT, mock={"port": 1}), 400),
        (CHAT, request(CHAT, mock={"fault": "explode"}), 400),
        ("/v1/nowhere", {}, 404),
        ("/v1/models", {}, 405),
    ],
)
def test_a_request_that_makes_no_sense_gets_openais_error_shape(raw, path, body, status):
    raw.send("POST", path, body)
    found, _, answer = raw.answer()
    assert found == status
    assert set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}


def test_every_mistake_in_the_mock_key_is_named(raw):
    _, _, body = raw.ask(mock={"speed": 1, "itl": "5"})
    message = json.loads(body)["error"]["message"]
    assert "speed" in message
    assert "5ms" in message


def test_a_key_is_asked_for_and_not_logged():
    with mock(api_key="sesame", log_bodies=True) as server:
        client = Raw(server.url)
        assert client.ask()[0] == 401
        assert client.ask(CHAT, "Authorization: Bearer wrong")[0] == 401
        assert client.ask(CHAT, "Authorization: Bearer sesame")[0] == 200
        client.send("GET", "/v1/models")
        assert client.answer()[0] == 401
        client.send("GET", "/health")
        assert client.answer()[0] == 200
        assert "sesame" not in json.dumps(server.log())
        client.sock.close()


def test_tokenize_counts_as_usage_does(raw):
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a " * 30 + "x" * 40}]
    raw.send("POST", "/tokenize", {"messages": messages})
    told = json.loads(raw.answer()[2])
    used = json.loads(raw.ask(messages=messages)[2])["usage"]["prompt_tokens"]
    assert told["count"] == len(told["tokens"]) == used == 2 + 30 + 3 + 2 * 4 + 3


def test_a_context_limit_refuses_what_is_longer_and_is_told_by_models():
    with mock(max_model_len=20, models=("a", "b"), tokenize=False) as server:
        client = Raw(server.url)
        assert client.ask(max_tokens=10)[0] == 200
        assert client.ask(max_tokens=11)[0] == 400
        client.send("GET", "/v1/models")
        models = json.loads(client.answer()[2])["data"]
        assert [(model["id"], model["max_model_len"]) for model in models] == [("a", 20), ("b", 20)]
        client.send("POST", "/tokenize", {"prompt": "a"})
        assert client.answer()[0] == 404
        client.sock.close()


def test_log_metrics_version_and_reset(raw, server):
    raw.ask(CHAT, "X-Request-Id: abc", max_tokens=2)
    raw.send("GET", "/log")
    document = json.loads(raw.answer()[2])
    entry = document["requests"][-1]
    assert (entry["id"], entry["status"], entry["end"], entry["sent_tokens"]) == ("abc", 200, "done", 2)
    assert json.loads(entry["body"])["max_tokens"] == 2
    assert document["summary"]["lateness_p99_s"] > 0
    raw.send("GET", "/metrics")
    assert f"mock:generation_tokens_total {server.summary()['output_tokens']}\n" in raw.answer()[2].decode()
    raw.send("GET", "/version")
    assert "version" in json.loads(raw.answer()[2])
    raw.send("POST", "/reset", {})
    assert raw.answer()[0] == 200
    assert server.log() == []
    raw.ask()
    assert server.log()[0]["ordinal"] == 1


def test_a_request_id_is_given_back(raw):
    _, headers, _ = raw.ask(CHAT, "X-Request-Id: q-1", stream=True)
    assert headers["x-request-id"] == "q-1"


def test_a_client_that_does_not_read_loses_nothing(raw):
    raw.send("POST", CHAT, request(CHAT, stream=True, max_tokens=60_000))  # 12 MB: more than sockets hold
    time.sleep(0.2)
    _, _, body = raw.answer()
    assert body.count(b'"content":" ') == 60_000


# ---------------------------------------------------------------------------- ways to run it


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_both_event_loops_serve_the_same(loop):
    with mock(loop=loop, tokens=3, ttft_s=0.02, itl_s=0.01) as server:
        client = Raw(server.url)
        assert len(texts(client.events())) == 3
        client.sock.close()


async def test_it_runs_inside_an_event_loop():
    async with MockServer(MockOptions(tokens=2)) as server:

        def ask():
            client = Raw(server.url)
            events = client.events()
            client.sock.close()
            return events

        assert len(texts(await asyncio.to_thread(ask))) == 2
        assert server.log()[0]["sent_tokens"] == 2


def test_ipv6_and_unix_sockets_are_listened_on(tmp_path):
    with mock(host="::1", tokens=1) as server:
        assert server.url.startswith("http://[::1]:")
        client = Raw(server.url)
        assert client.ask()[0] == 200
        client.sock.close()
    path = str(tmp_path / "mock.sock")
    with mock(unix=path, tokens=1):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        assert len(texts(Raw("", sock).events())) == 1
        sock.close()


def test_tls_serves_a_stream(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=localhost",
    ]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)]
    try:
        subprocess.run([*made, *names], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    with mock(tls=(str(cert), str(key)), tokens=3, itl_s=0.01) as server:
        assert server.url.startswith("https://")
        context = ssl.create_default_context(cafile=str(cert))
        plain = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        client = Raw("", context.wrap_socket(plain, server_hostname="localhost"))
        assert len(texts(client.events())) == 3
        client.sock.close()


def test_many_clients_at_once_all_get_their_whole_stream():
    with mock(tokens=20, ttft_s=0.05, itl_s=0.005) as server:
        counts = []

        def ask():
            client = Raw(server.url)
            counts.extend(len(texts(client.events())) for _ in range(2))
            client.sock.close()

        threads = [threading.Thread(target=ask) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counts == [20] * 80


def test_a_client_that_resets_in_mid_stream_disturbs_nobody():
    with mock(tokens=30, itl_s=0.005) as server:
        rude, calm = Raw(server.url), Raw(server.url)
        rude.send("POST", CHAT, request(CHAT, stream=True))
        rude.head()
        rude.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        rude.sock.close()
        assert len(texts(calm.events())) == 30
        assert {entry["end"] for entry in server.log()} == {"client left", "done"}
        calm.sock.close()
