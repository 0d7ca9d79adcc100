"""What servers were seen to send, and what it amounts to: one row a kind of stream, named after its report.

The ids are rows of the fault list that these tests were made from; each row stands for its whole kind, so
every row is decoded with LF, CRLF and CR line ends, whole and byte by byte, with the same result.
"""

from __future__ import annotations

import gc
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.client.decode import decode
from llmbench.client.exchange import Exchange
from llmbench.records import RequestRecord, to_journal
from tests.llmbench.exchanges import DONE, MS, cut, delta, event, exchange_of, usage

HELLO = ["Hello", ",", " world", "!", " Ok"]
WORDS = b"".join(event(delta(content=word)) for word in HELLO)
ROLE = event(delta(role="assistant", content=""))
STOP = event(delta(finish="stop"))
FINE = {
    "text": "".join(HELLO),
    "events": 5,
    "output_tokens": 5,
    "finish_reason": "stop",
    "input_tokens": 7,
    "warnings": [],
}
PLAIN = WORDS + STOP + event(usage(5)) + DONE
UNCOUNTED = {**FINE, "input_tokens": None, "token_source": "events", "warnings": ["usage_missing"]}


def boom(kind="stream_error", outcome="bad_stream", **more):
    return {"outcome": outcome, "error_kind": kind, **more}


def call(index=0, **function):
    return event(delta(tool_calls=[{"index": index, "function": function}]))


STREAMS = {
    "a plain stream (B00)": (PLAIN, FINE),
    "comments between and inside events (B06)": (
        b": OPENROUTER PROCESSING\n\n" + PLAIN.replace(b"data: ", b": ping\ndata: "),
        FINE,
    ),
    "a comment inside a data field (B07)": (
        event(b": OPENROUTER PROCESSING") + PLAIN,
        {**FINE, "warnings": ["malformed_event"]},
    ),
    "characters that only look like line ends (B12)": (
        event(delta(content="a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg")) + STOP + event(usage(1)) + DONE,
        {"text": "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg", "events": 1},
    ),
    "no [DONE] (B14)": (WORDS + STOP + event(usage(5)), FINE),
    "no [DONE] and no blank line at the end (B14)": ((WORDS + STOP + event(usage(5)))[:-2], FINE),
    "no finish_reason but [DONE]": (WORDS + event(usage(5)) + DONE, {**FINE, "finish_reason": None}),
    "cut off cleanly (B15)": (WORDS, boom("truncated", text="Hello, world! Ok", events=5)),
    "cut off after the role (B15)": (ROLE, boom("truncated", events=0)),
    "cut off in the middle of an event (B15)": (
        WORDS[:-20],
        boom("truncated", text="Hello, world!", events=4),
    ),
    "a line of 200 KiB (B17)": (
        event(delta(content="Hello", padding="x" * 200_000)) + PLAIN,
        {"text": "HelloHello, world! Ok", "events": 6},
    ),
    "output after [DONE] (B21)": (PLAIN + event(delta(content="GHOST")), FINE),
    "[DONE] with a blank behind it (B21)": (
        WORDS + STOP + event(usage(5)) + b"data: [DONE] \n\n" + event(delta(content="GHOST")),
        FINE,
    ),
    "the word [DONE] in the text": (
        event(delta(content="[DONE]")) + event(delta(content="data: [DONE]")) + STOP + DONE,
        {"text": "[DONE]data: [DONE]", "events": 2, "warnings": ["usage_missing"]},
    ),
    "fields nobody knows (B22)": (
        b'id: 1\nretry: 5\nfoo: bar\n\nevent: ping\ndata: {"type": "ping"}\n\ndata:\n\ndata: \n\ndata\n\n'
        + PLAIN,
        FINE,
    ),
    "events with a name (B22)": (PLAIN.replace(b"data: {", b"event: message\ndata: {"), FINE),
    "data over several lines (B22)": (PLAIN.replace(b'"choices": ', b'\ndata: "choices":\ndata:  '), FINE),
    "bytes that are not UTF-8 (B24)": (
        event(delta(content="Hello@")).replace(b"@", b"\xe4\xbd") + STOP + event(usage(1)) + DONE,
        {"text": "Hello\ufffd", "events": 1},
    ),
    "half a surrogate pair (B24)": (
        event(b'{"choices":[{"delta":{"content":"a\\ud83d"}}]}') + STOP + event(usage(1)) + DONE,
        {"text": "a\ufffd", "events": 1},
    ),
    "NaN beside the text": (
        event(b'{"choices":[{"delta":{"content":"a"},"logprobs":NaN}]}') + STOP + event(usage(1)) + DONE,
        {"text": "a", "events": 1},
    ),
    "the role before anything is generated (B25)": (ROLE + event(delta(role="assistant")) + PLAIN, FINE),
    "null and empty deltas (B25)": (
        event(delta(content=None)) + event(delta()) + event(delta(content="", reasoning_content="")) + PLAIN,
        FINE,
    ),
    "filter results, no choices, no delta (B26)": (
        event({"choices": [], "prompt_filter_results": [{}]})
        + event({"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {}}]})
        + event({"choices": None})
        + event({"id": "x"})
        + PLAIN,
        FINE,
    ),
    "usage in every chunk (B29)": (
        b"".join(event(usage(n) | delta(content=word)) for n, word in enumerate(HELLO, 1)) + STOP + DONE,
        {**FINE, "event_tokens": [1] * 5},
    ),
    "usage in every chunk, several tokens each (B29)": (
        b"".join(event(usage(n) | delta(content="w")) for n in (1, 4, 9)) + STOP + DONE,
        {"output_tokens": 9, "event_tokens": [1, 3, 5]},
    ),
    "usage in the last text chunk (B29b)": (
        WORDS[: WORDS.index(event(delta(content=" Ok")))]
        + event(usage(5) | delta(content=" Ok", finish="length"))
        + DONE,
        {**FINE, "finish_reason": "length"},
    ),
    "no usage (B30)": (WORDS + STOP + DONE, UNCOUNTED),
    "usage that is no object (B30)": (
        WORDS + STOP + event({"usage": "n/a"}) + event({"usage": 7}) + DONE,
        UNCOUNTED,
    ),
    "usage that counts nonsense (B30)": (
        WORDS + STOP + event({"usage": {"completion_tokens": -1, "prompt_tokens": "7"}}) + DONE,
        UNCOUNTED,
    ),
    "usage that counts more than there can be": (
        WORDS + STOP + event(usage(2**40, 2**70)) + DONE,
        UNCOUNTED,
    ),
    "several tokens a chunk (B32)": (
        event(delta(content="one two three")) * 4 + STOP + event(usage(12)) + DONE,
        {"events": 4, "output_tokens": 12, "event_tokens": [3] * 4, "warnings": ["tokens_shared_out"]},
    ),
    "tokens nobody saw (B33)": (
        event(delta(content="Hi")) + event(delta(content=" there")) + STOP + event(usage(20)) + DONE,
        {"events": 2, "output_tokens": 20, "warnings": ["tokens_shared_out"]},
    ),
    "fewer tokens than chunks": (
        WORDS + STOP + event(usage(3)) + DONE,
        {"events": 5, "output_tokens": 3, "event_tokens": [1] * 5},
    ),
    "reasoning_content (B34)": (
        event(delta(reasoning_content="Let me")) + event(delta(reasoning_content=" think")) + PLAIN,
        {"reasoning": "Let me think", "text": "Hello, world! Ok", "events": 7},
    ),
    "reasoning (B34)": (
        event(delta(reasoning="Let me think", content="")) + PLAIN,
        {"reasoning": "Let me think", "text": "Hello, world! Ok", "events": 6},
    ),
    "content as a list of parts (B34)": (
        event(delta(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}]))
        + event(delta(content=[{"type": "text", "text": "Yes"}]))
        + STOP
        + event(usage(2))
        + DONE,
        {"reasoning": "Hm", "text": "Yes", "events": 2, "output_tokens": 2},
    ),
    "only reasoning until the maximum (B36)": (
        event(delta(reasoning_content="Hm")) * 3 + event(delta(finish="length")) + event(usage(3)) + DONE,
        {"text": "", "reasoning": "HmHmHm", "events": 3, "output_tokens": 3, "finish_reason": "length"},
    ),
    "tool calls (B37)": (
        call(name="get", arguments="")
        + call(arguments='{"a":')
        + call(arguments="1}")
        + call(1, name="put")
        + event(delta(finish="tool_calls"))
        + event(usage(9))
        + DONE,
        {
            "events": 4,
            "tool_calls": [{"name": "get", "arguments": '{"a":1}'}, {"name": "put", "arguments": ""}],
            "finish_reason": "tool_calls",
        },
    ),
    "the old function_call (B37)": (
        event(delta(function_call={"name": "get"}))
        + event(delta(function_call={"arguments": "{}"}))
        + event(delta(finish="function_call"))
        + event(usage(2))
        + DONE,
        {"events": 2, "tool_calls": [{"name": "get", "arguments": "{}"}]},
    ),
    "a refusal (B37c)": (
        event(delta(refusal="I cannot")) + event(delta(refusal=" help.")) + STOP + event(usage(4)) + DONE,
        {"text": "", "refusal": "I cannot help.", "events": 2, "output_tokens": 4},
    ),
    "two choices (B38)": (
        b"".join(event(delta(index=i % 2, content="ab"[i % 2])) for i in range(4))
        + event(delta(index=0, finish="stop"))
        + event(delta(index=1, finish="stop"))
        + event(usage(4))
        + DONE,
        {"choices": {0: "aa", 1: "bb"}, "text": "aa", "events": 4, "output_tokens": 4, "event_tokens": None},
    ),
    "two choices that call tools (B38)": (
        b"".join(
            event(delta(index=i, tool_calls=[{"index": 0, "function": {"name": f"f{i}"}}])) for i in range(2)
        )
        + STOP
        + event(usage(2))
        + DONE,
        {
            "events": 2,
            "event_tokens": None,
            "tool_calls": [{"name": f"f{i}", "arguments": ""} for i in range(2)],
        },
    ),
    "two choices that think (B38)": (
        b"".join(event(delta(index=i, reasoning_content=f"r{i}")) for i in range(2))
        + STOP
        + event(usage(2))
        + DONE,
        {"events": 2, "event_tokens": None, "reasoning": "r0"},
    ),
    "an error event in mid-stream (B39)": (
        WORDS + event({"error": {"message": "EngineCore died", "code": 500}}) + DONE,
        boom(error="EngineCore died (500)", text="Hello, world! Ok", events=5),
    ),
    "an error as a text (B39)": (WORDS + event({"error": "boom"}) + DONE, boom(error="boom")),
    "an error as vLLM and SGLang used to write it (B39)": (
        WORDS + event({"object": "error", "message": "boom", "code": 500}) + DONE,
        boom(error="boom"),
    ),
    "an error by its type (B39)": (
        WORDS + event({"type": "error", "message": "boom"}) + DONE,
        boom(error="boom"),
    ),
    "an event named error with JSON (B39)": (
        WORDS + b"event: error\n" + event({"message": "boom"}) + STOP + DONE,
        boom(error='{"message": "boom"}'),
    ),
    "an event named error with text (B39)": (
        WORDS + b"event: error\n" + event(b"Internal Server Error") + STOP + DONE,
        boom(error="Internal Server Error"),
    ),
    "an error and nothing else (B40)": (event({"error": {"message": "EngineCore died"}}), boom(events=0)),
    "error: null in every chunk, the word in the text (B41)": (
        b"".join(event(delta(content=word) | {"error": None}) for word in [*HELLO[:4], ' error "error"'])
        + event(delta(finish="stop") | {"error": {}})
        + event(usage(5))
        + DONE,
        {**FINE, "text": 'Hello, world! error "error"'},
    ),
    "one token (B44)": (
        event(delta(content="Yes")) + STOP + event(usage(1)) + DONE,
        {"events": 1, "output_tokens": 1, "event_tokens": [1]},
    ),
    "no token at all (B45)": (
        ROLE + STOP + event(usage(0)) + DONE,
        {"events": 0, "output_tokens": 0, "event_tokens": [], "finish_reason": "stop"},
    ),
    "only [DONE] (B46)": (DONE, boom("empty")),
    "[DONE] after the role (B46)": (ROLE + DONE, boom("empty")),
    "an empty stream": (b"", boom("empty")),
    "finish_reason error (B50)": (
        WORDS + event(delta(finish="error")) + DONE,
        boom(text="Hello, world! Ok", finish_reason="error"),
    ),
    "finish_reason content_filter (B50b)": (
        WORDS + event(delta(finish="content_filter")) + event(usage(5)) + DONE,
        {**FINE, "finish_reason": "content_filter"},
    ),
    "logprobs that repeat the word (B50c)": (
        b"".join(
            event(
                {"choices": [{"index": 0, "delta": {"content": w}, "logprobs": {"content": [{"token": w}]}}]}
            )
            for w in HELLO
        )
        + STOP
        + event(usage(5))
        + DONE,
        FINE,
    ),
    "values of the wrong type everywhere": (
        event({"choices": [1, None, "x", {"index": [1], "delta": {"content": 7, "tool_calls": ["x"]}}]})
        + event(delta(tool_calls=[{"function": 3}, {"index": "a"}], function_call="f"))
        + event({"choices": "none"})
        + event({"id": 5, "choices": {}})
        + event(b"null")
        + event(b"17")
        + event(b"[]")
        + PLAIN,
        {**FINE, "warnings": ["malformed_event"]},
    ),
}


def seen(answer, names):
    special = {"events": lambda: len(answer.event_ns)}
    return {name: special[name]() if name in special else getattr(answer, name) for name in names}


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize(("body", "expected"), STREAMS.values(), ids=STREAMS)
def test_a_stream(body, expected, line_end):
    expected = {"outcome": "ok", "error_kind": None, **expected}
    body = body.replace(b"\n", line_end)
    small = len(body) < 10_000
    for reads in ([body], cut(body, [1] * len(body)) if small else cut(body, [4096] * 99)):
        answer = decode(exchange_of(*reads), "chat")
        found = seen(answer, expected)
        if len(reads) == 1 and "warnings" in found:
            found["warnings"] = [code for code in found["warnings"] if code != "buffered"]
        assert found == expected


def test_a_space_after_the_colon_is_not_needed():  # B04
    answer = decode(exchange_of(*cut(PLAIN.replace(b"data: ", b"data:"), [100] * 99)), "chat")
    assert seen(answer, FINE) == FINE


def test_completions_carry_their_text_beside_no_delta():
    chunks = [{"choices": [{"index": 0, "text": word, "finish_reason": None}]} for word in HELLO]
    body = b"".join(map(event, chunks)) + event({"choices": [{"text": "", "finish_reason": "stop"}]})
    answer = decode(exchange_of(body[:99], body[99:] + event(usage(5)) + DONE), "completions")
    assert seen(answer, FINE) == FINE


# ---- instants


def test_an_event_has_the_time_of_the_read_that_completed_it():  # B09, B10
    """A character, an event and the blank line behind it are each cut in two."""
    body = event(delta(content="你")) + event(delta(content="好")) + STOP + event(usage(2)) + DONE
    first = body.index("你".encode()) + 1
    second = body.index(b"\n\n") + 1
    answer = decode(
        exchange_of(body[:first], body[first:second], body[second : second + 1], body[second + 1 :]), "chat"
    )
    assert answer.text == "你好"
    assert answer.event_ns == [120 * MS, 130 * MS]
    assert answer.reads == 2


def test_the_lf_of_a_crlf_delays_nothing():  # B03
    body = (event(delta(content="a")) + STOP + DONE).replace(b"\n", b"\r\n")
    at = body.index(b"\r\n\r\n") + 3
    assert decode(exchange_of(body[:at], body[at:]), "chat").event_ns == [100 * MS]


def test_usage_and_done_move_no_token():  # B28
    answer = decode(exchange_of(WORDS, STOP, event(usage(5)), DONE), "chat")
    assert set(answer.event_ns) == {100 * MS}
    assert answer.end_ns == 130 * MS


def test_first_answer_is_the_first_output_that_is_no_reasoning():  # B34
    thought = event(delta(reasoning_content="Hm"))
    for first in (delta(content="42"), delta(refusal="No"), delta(tool_calls=[{"function": {"name": "f"}}])):
        answer = decode(exchange_of(thought, thought, event(first), STOP + DONE), "chat")
        assert (answer.event_ns[0], answer.first_answer_ns) == (100 * MS, 120 * MS)
    assert decode(exchange_of(thought, STOP + DONE), "chat").first_answer_ns is None


def test_many_events_in_one_read_have_one_time():  # B11
    answer = decode(exchange_of(PLAIN), "chat")
    assert answer.event_ns == [100 * MS] * 5
    assert answer.reads == 1


@pytest.mark.parametrize(
    ("reads", "is_buffered"),
    [([PLAIN], True), ([WORDS, STOP + event(usage(5)) + DONE], True),
     ([event(delta(content="a")) * 3 + STOP], False), ([WORDS, event(delta(content="more")), STOP], False)],
)  # fmt: skip
def test_a_stream_that_came_at_once_is_marked(reads, is_buffered):  # B58
    assert ("buffered" in decode(exchange_of(*reads), "chat").warnings) is is_buffered


def test_bytes_no_read_was_booked_for_came_with_the_last():
    exchange = exchange_of(event(delta(content="a")))
    exchange.chunks.append(event(delta(content="b")) + STOP + DONE)
    answer = decode(exchange, "chat")
    assert (answer.event_ns, answer.end_ns, answer.text) == ([100 * MS] * 2, 100 * MS, "ab")


# ---- what HTTP says

HTTP = {
    "a JSON error under 200 (B48)": (
        exchange_of(b'{"error": {"message": "quota exceeded"}}', kind="application/json"),
        boom("http_body_error", error="quota exceeded"),
    ),
    "a JSON error under the stream's content type (B48)": (
        exchange_of(b'{"error": {"message": "quota exceeded"}}'),
        boom("http_body_error", error="quota exceeded"),
    ),
    "one JSON answer where a stream was asked for (B47)": (
        exchange_of(
            json.dumps({"choices": [{"message": {"content": "Hi"}}]}).encode(), kind="application/json"
        ),
        boom("not_sse"),
    ),
    "a page under 200": (exchange_of(b"<html>Welcome</html>", kind="text/html"), boom("not_sse")),
    "nothing under 200": (exchange_of(b"", kind="text/html"), boom("empty")),
    "no content type (B13b)": (
        exchange_of(WORDS[:300], WORDS[300:] + STOP + event(usage(5)), kind=None),
        FINE,
    ),
    "the wrong content type (B13b)": (
        exchange_of(WORDS[:300], WORDS[300:] + STOP + event(usage(5)), kind="text/plain"),
        FINE,
    ),
    "gzip that is none": (
        exchange_of(PLAIN, headers={"Content-Encoding": "gzip"}),
        boom("protocol", events=0),
    ),
    "503 with a page (B52)": (
        exchange_of(b"<html>\n<h1>503</h1> sorry</html>", status=503, kind="text/html"),
        boom("http_status", "http_error", error="HTTP 503: <html> <h1>503</h1> sorry</html>"),
    ),
    "429 says when to come again (B51)": (
        exchange_of(
            b'{"error": {"message": "slow down", "type": "rate"}}', status=429, headers={"Retry-After": "7"}
        ),
        boom("http_status", "http_error", error="HTTP 429 (Retry-After: 7): slow down (rate)"),
    ),
    "307 says where to (B54)": (
        exchange_of(b"", status=307, headers={"Location": "/elsewhere"}),
        boom("http_status", "http_error", error="HTTP 307 (Location: /elsewhere)"),
    ),
    "400 names what it did not know (B31)": (
        exchange_of(b'{"error": {"message": "Unrecognized: stream_options"}}', status=400),
        boom("http_status", "http_error", error="HTTP 400: Unrecognized: stream_options"),
    ),
    "422 of FastAPI": (
        exchange_of(b'{"detail": [{"msg": "no"}]}', status=422, kind="application/json"),
        boom("http_status", "http_error", error="HTTP 422: [{'msg': 'no'}]"),
    ),
    "a status whose body broke off": (
        exchange_of(b"half a", status=500, breakage="reset"),
        boom("http_status", "http_error"),
    ),
    "reset in mid-stream (B56)": (
        exchange_of(WORDS, breakage="reset"),
        boom("connection", text="Hello, world! Ok", events=5),
    ),
    "closed in mid-stream": (exchange_of(WORDS, breakage="closed"), boom("truncated", events=5)),
    "not HTTP in mid-stream": (exchange_of(WORDS, breakage="protocol"), boom("protocol", events=5)),
    "too slow": (exchange_of(WORDS, breakage="timeout"), boom("timeout", "timeout", events=5)),
    "silent (B62)": (
        exchange_of(WORDS, breakage="no_progress"),
        boom("timeout", "timeout", text="Hello, world! Ok"),
    ),
    "cancelled": (exchange_of(WORDS, breakage="cancelled"), boom("cancelled", "cancelled", events=5)),
    "refused": (exchange_of(status=None, breakage="connect"), boom("connection", "connect_error")),
    "closed before the head": (
        exchange_of(status=None, breakage="closed"),
        boom("connection", "connect_error"),
    ),
    "reset before the head": (
        exchange_of(status=None, breakage="reset"),
        boom("connection", "connect_error"),
    ),
    "not HTTP at all": (exchange_of(status=None, breakage="protocol"), boom("connection", "connect_error")),
    "broken after the finish": (exchange_of(WORDS + STOP, breakage="reset"), {"finish_reason": "stop"}),
    "broken after [DONE], without finish_reason": (
        exchange_of(WORDS + DONE, breakage="closed"),
        {"events": 5},
    ),
    "silent after [DONE]": (
        exchange_of(WORDS + DONE, breakage="no_progress"),
        {"events": 5, "end_ns": 100 * MS},
    ),
    "broken after an empty [DONE]": (exchange_of(ROLE + DONE, breakage="closed"), boom("truncated")),
}


@pytest.mark.parametrize(("exchange", "expected"), HTTP.values(), ids=HTTP)
def test_a_response(exchange, expected):
    expected = {"outcome": "ok", "error_kind": None, **expected}
    assert seen(decode(exchange, "chat"), expected) == expected


def test_a_failure_always_says_why():
    for exchange, _ in HTTP.values():
        answer = decode(exchange, "chat")
        assert (answer.error is None) == (answer.outcome == "ok")


def test_a_message_of_a_megabyte_is_cut():
    answer = decode(exchange_of(event({"error": {"message": "x" * 2**20}})), "chat")
    assert len(answer.error) == 1000


# ---- answers in one piece


def whole(document, api="chat"):
    return decode(exchange_of(json.dumps(document).encode(), kind="application/json"), api, stream=False)


def test_a_whole_chat_answer():
    answer = whole(
        {
            "id": "x-1",
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "content": "Hi",
                        "reasoning_content": "Hm",
                        "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
                    },
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": 9,
                "completion_tokens": 4,
                "prompt_tokens_details": {"cached_tokens": 8},
                "completion_tokens_details": {"reasoning_tokens": 2},
            },
        }
    )
    assert (answer.outcome, answer.text, answer.reasoning) == ("ok", "Hi", "Hm")
    assert (answer.input_tokens, answer.cached_tokens) == (9, 8)
    assert (answer.output_tokens, answer.reasoning_tokens, answer.token_source) == (4, 2, "usage")
    assert answer.tool_calls == [{"name": "f", "arguments": "{}"}]
    assert answer.event_ns == []


def test_a_whole_answer_of_the_responses_api():
    content = [{"type": "output_text", "text": "Hi"}, {"type": "refusal", "refusal": "No"}]
    calls = {"type": "function_call", "name": "f", "arguments": "{}"}
    usage_ = {"input_tokens": 3, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}}
    document = {
        "status": "completed",
        "output": [{"type": "message", "content": content}, calls],
        "usage": usage_,
    }
    answer = whole(document, "responses")
    assert (answer.text, answer.refusal, answer.finish_reason) == ("Hi", "No", "stop")
    assert (answer.input_tokens, answer.cached_tokens, answer.output_tokens) == (3, 1, 2)


def typed(kind, **fields):
    return f"event: {kind}\n".encode() + event({"type": kind, **fields})


def test_a_stream_of_the_responses_api():
    body = (
        typed("response.created", response={"id": "r-1"})
        + typed("response.reasoning_summary_text.delta", delta="Hm")
        + typed("response.output_text.delta", delta="Hi")
        + typed("response.output_item.added", output_index=1, item={"type": "function_call", "name": "f"})
        + typed("response.function_call_arguments.delta", output_index=1, delta="{}")
        + typed("response.refusal.delta", delta="No")
        + typed(
            "response.completed", response={"id": "r-1", "usage": {"input_tokens": 3, "output_tokens": 4}}
        )
    )
    answer = decode(exchange_of(*cut(body, [300] * 9)), "responses")
    assert (answer.outcome, answer.text, answer.reasoning, answer.refusal) == ("ok", "Hi", "Hm", "No")
    assert answer.tool_calls == [{"name": "f", "arguments": "{}"}]
    assert (len(answer.event_ns), answer.output_tokens, answer.finish_reason) == (4, 4, "stop")


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (typed("response.incomplete", response={"incomplete_details": {"reason": "max_output_tokens"}}),
         {"outcome": "ok", "finish_reason": "length"}),
        (typed("response.failed", response={"error": {"message": "boom"}}), boom(error="boom")),
        (typed("error", message="boom", code="x"), boom(error="boom")),
        (b"", boom("truncated")),
    ],
)  # fmt: skip
def test_how_a_stream_of_the_responses_api_ends(end, expected):
    answer = decode(exchange_of(typed("response.output_text.delta", delta="Hi") + end), "responses")
    assert seen(answer, expected) == expected


# ---- nothing kills the run

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**65) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["choices", "delta", "content", "text", "index", "usage", "error", "message", "finish_reason",
             "id", "tool_calls", "function", "name", "arguments", "type", "response", "item", "output",
             "status",
             "completion_tokens", "prompt_tokens_details", "incomplete_details", "reason", "reasoning",
             "detail", "output_index", "function_call", "refusal", "code", "part", "cached_tokens"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip
CHUNK = st.one_of(
    JSON,
    st.fixed_dictionaries(
        {"choices": st.lists(st.dictionaries(st.sampled_from(["index", "delta", "text"]), JSON))}
    ),
    st.fixed_dictionaries(
        {"type": st.sampled_from(["response.completed", "response.x.delta", "response.output_item.added"])},
        optional={"response": JSON, "delta": JSON, "item": JSON, "output_index": JSON},
    ),
)


@given(
    st.lists(CHUNK, max_size=4),
    st.sampled_from(["chat", "completions", "responses"]),
    st.booleans(),
    st.sampled_from([200, 200, 200, 400]),
)
def test_no_json_breaks_the_decoder_and_all_of_it_can_be_written_down(chunks, api, stream, status):
    if stream:
        body, kind = b"".join(event(chunk) for chunk in chunks), "text/event-stream"
    else:
        body, kind = json.dumps(chunks[0] if chunks else {}).encode(), "application/json"
    answer = decode(exchange_of(body, status=status, kind=kind), api, stream=stream)
    assert answer.event_tokens is None or len(answer.event_tokens) == len(answer.event_ns)
    record = RequestRecord(index=0, phase="measure", outcome=answer.outcome)
    for name in ("error", "finish_reason", "token_source", "output_tokens", "input_tokens", "cached_tokens",
                 "reasoning_tokens", "event_ns", "event_tokens", "text", "reasoning", "refusal"):  # fmt: skip
        setattr(record, name, getattr(answer, name))
    record.request_id = answer.response_id
    for name in ("finish_reason", "request_id", "text", "reasoning", "refusal", "error"):
        assert getattr(record, name) is None or isinstance(getattr(record, name), str)
    assert json.loads(to_journal(record))


@given(st.binary(max_size=80), st.sampled_from([None, "text/event-stream", "application/json"]))
def test_no_bytes_break_the_decoder(body, kind):
    decode(exchange_of(*cut(body, [3] * 9), kind=kind), "chat")
    decode(exchange_of(*cut(body, [3] * 9), kind=kind), "responses", stream=False)


def test_decoding_leaves_no_cycle_that_holds_a_body():
    """Bodies once lived on, in a cycle with their parser, until the collector came by minutes later."""
    body = b"data: {}\n\n" + b": " + b"x" * 100_000 + b"\n\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for _ in range(20):
            exchange = Exchange(0, "r", 0)
            exchange.status = 200
            exchange.wire = [head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)]
            exchange.wire_ns = [1]
            decode(exchange, "chat")
        del exchange
        assert len(gc.get_objects()) - before < 20
    finally:
        gc.enable()
