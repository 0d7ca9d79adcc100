"""The quick way through a stream of like events gives what parsing every event gives, to the last field."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from llmbench.client import stream
from llmbench.client.answer import Answer
from llmbench.client.decode import decode, decode_steps
from llmbench.client.sse import split_events
from llmbench.client.stream import PAUSE_EVERY, SLAB, _StreamReader, learn_template
from tests.llmbench.exchanges import DONE, MS, cut, delta, event, exchange_of, facts, usage

WORDS = st.sampled_from(
    ["Hello", " world", "!", "a", "c-1", "content", "x", "delta", "null", "stop", "0", '"', '\\"', "\\",
     "\\\\", "\n", "\n\n", "\r", "\t", "\x01", "data: ", "[DONE]", "data: [DONE]", "你好", "é", "🚀",
     "\u2028",
     "\u0085", "\ufffd", "⌁", "", '","', "}", '"}}]}', " " * 40]
) | st.text(max_size=6)  # fmt: skip


class Server:
    """One server's habits: how it writes its JSON, and what it puts beside the words."""

    def __init__(self, draw):
        self.draw = draw
        self.ascii = draw(st.booleans())
        self.api = draw(st.sampled_from(["chat", "chat", "completions"]))
        self.compact = draw(st.booleans())
        self.tail = draw(st.sampled_from([{}, {"usage": None}, {"error": None}, {"created": 1}]))
        self.beside = draw(
            st.sampled_from([{}, {"role": "assistant"}, {"refusal": None}, {"tool_calls": []}])
        )
        self.ids = draw(st.sampled_from(["same", "same", "changing"]))
        self.count = 0

    def dump(self, document):
        text = json.dumps(document, ensure_ascii=self.ascii, separators=(",", ":") if self.compact else None)
        # lone surrogates cannot be written as UTF-8; as escapes they can, and servers do
        return text.encode("utf-8", "replace" if not self.ascii else "strict")

    def chunk(self, word, **more):
        self.count += 1
        place = {"content": word, **self.beside, **more.pop("place", {})} if self.api == "chat" else {}
        choice = {"index": 0, "delta": place} if self.api == "chat" else {"index": 0, "text": word}
        choice |= {"finish_reason": None, **more.pop("choice", {})}
        number = self.count if self.ids == "changing" else 1
        return event(self.dump({"id": f"c-{number}", "choices": [choice], **self.tail, **more}))

    def odd(self, kind, word):
        """Anything but the common event."""
        match kind:
            case "usage":
                return self.chunk(word, usage={"prompt_tokens": 3, "completion_tokens": self.count})
            case "choice":
                return self.chunk(word, choice={"index": 1})
            case "finish":
                return self.chunk(word, choice={"finish_reason": "stop"})
            case "reasoning":
                return event(self.dump(delta(reasoning_content=word)))
            case "tool":
                calls = [{"index": 0, "function": {"name": "f", "arguments": word}}]
                return event(self.dump(delta(tool_calls=calls)))
            case "refusal":
                return event(self.dump(delta(refusal=word)))
            case "bytes":  # not UTF-8, or not JSON for other reasons
                return self.chunk("@@").replace(b"@@", self.draw(st.binary(max_size=3)).replace(b"\r", b""))
            case "error":
                return event(self.dump({"error": {"message": word or "boom"}}))
            case "named error":
                return b"event: error\n" + event(word.encode("utf-8", "replace").replace(b"\n", b"") or b"x")
            case "two lines":
                return self.chunk(word).replace(b", ", b",\ndata: ", 1)
            case "more":  # begins and ends as the common event does, with more than a word between
                return self.chunk(word, place={"reasoning": "x"}) + self.chunk(word, place={"refusal": "y"})
            case "nan":
                return self.chunk(word, choice={"logprobs": float("nan")})
            case "logprobs":
                return self.chunk(word, choice={"logprobs": {"token": word}})
            case "raw":
                return self.draw(
                    st.sampled_from(
                        [b": ping\n\n", b"\n", b"data: \n\n", b"data:\n\n", b"data: {\n\n", b"data: 7\n\n",
                         b"data: [DONE] \n\n", b"\xef\xbb\xbfdata: {}\n\n", b"id: 1\n", b"event: x\n", DONE]
                    )
                )  # fmt: skip
        raise AssertionError(kind)


KINDS = st.sampled_from(
    ["usage", "choice", "finish", "reasoning", "tool", "refusal", "bytes", "error", "named error",
     "two lines", "more", "nan", "logprobs", "raw", "raw"]
)  # fmt: skip


@st.composite
def streams(draw):
    server = Server(draw)
    parts = []
    for word in draw(st.lists(WORDS, max_size=24)):
        parts.append(server.chunk(word))
        if draw(st.integers(0, 7)) == 0:
            parts.append(server.odd(draw(KINDS), draw(WORDS)))
    parts += draw(st.sampled_from([[], [DONE], [event(usage(9)), DONE], [DONE, server.chunk("GHOST")]]))
    body = b"".join(parts)
    return server.api, body[: len(body) - draw(st.integers(0, 3))]


def in_full(exchange, api, body, chunks):
    answer = Answer()
    answer.end_ns = exchange.end_ns
    answer.body_bytes = len(body)
    reader = _StreamReader(answer, api, keep_text=True)
    for _ in reader.read_events(split_events(body)):
        pass
    reader.settle(exchange, chunks)
    return answer


@pytest.fixture
def always_quick(monkeypatch):
    """Templates pay off for bodies of any length here: short ones shrink to readable examples."""
    monkeypatch.setattr(stream, "_WORTH_A_TEMPLATE", 0)


RARE = event(delta(content="a")) * 9 + event(b'{"choices":[{"delta":{"content":"\x01"}}]}')


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(streams(), st.lists(st.integers(1, 200), max_size=12), st.sampled_from([1, 200, 700, 1 << 14]))
@example(("chat", RARE), [50], 1 << 14)
def test_both_ways_give_the_same_answer(monkeypatch, always_quick, case, sizes, slab):
    """Found this way: words outside ASCII were shared out by bytes on the one way and by characters on the
    other; a raw control character was a token here and a malformed event there; `data: ` with nothing behind
    it was a malformed event.
    """
    api, body = case
    monkeypatch.setattr(stream, "SLAB", slab)
    reads = cut(body, sizes)
    exchange = exchange_of(*reads)
    assert facts(decode(exchange, api)) == facts(in_full(exchange, api, body, reads))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(streams())
def test_without_the_text_everything_else_is_the_same(always_quick, case):
    api, body = case
    kept, lean = (facts(decode(exchange_of(body), api, keep_text=keep)) for keep in (True, False))
    assert kept.pop("choices").keys() == lean.pop("choices").keys()
    assert kept == lean


def test_a_common_stream_does_take_the_quick_way():
    piece = event(delta(content="Hello"))[:-2]
    template = learn_template(piece)
    assert template is not None
    assert template.head + b"Hello" + template.tail == piece


def refused(document):
    return learn_template(event(document)[:-2]) is None


def test_no_template_is_made_of_an_event_that_says_more_than_a_word():
    assert refused(delta(content="a", finish="stop"))
    assert refused(delta(content="a", index=1))
    assert refused(delta(content="a", reasoning_content="b"))
    assert refused(delta(content="a", tool_calls=[{}]))
    assert refused({**delta(content="a"), "usage": {"completion_tokens": 1}})
    assert refused({**delta(content="a"), "error": "x"})
    assert refused(delta(content=""))
    assert refused(delta(content="c-1"))  # the word stands elsewhere too
    assert refused({"choices": []})
    assert learn_template(b"data:" + event(delta(content="a"))[6:-2]) is None


def test_the_word_may_stand_twice_but_then_it_is_parsed():
    """`content` both as a key and as the word: a template cut at the first would read the wrong bytes."""
    body = b"".join(event(delta(content="content")) for _ in range(12)) + event(delta(finish="stop")) + DONE
    assert decode(exchange_of(body), "chat").text == "content" * 12


class Counting:
    def __init__(self, body):
        steps = decode_steps(exchange_of(body), "chat")
        self.pauses = sum(1 for _ in steps)


def test_a_long_answer_pauses_whatever_its_events_are():
    """A stream without a template (all reasoning, say) was once decoded in one go, and every other stream's
    stamps waited for it.
    """
    alike = b"".join(event(delta(content=f"w{n}")) for n in range(1000))
    thinking = b"".join(event(delta(reasoning=f"w{n}")) for n in range(1000))
    windows = thinking.replace(b"\n", b"\r\n")
    for body in (thinking, windows):
        assert Counting(body + DONE).pauses >= 1000 // PAUSE_EVERY
    assert Counting(alike + DONE).pauses >= len(alike) // SLAB


@given(st.lists(st.integers(min_value=1, max_value=5), min_size=1, max_size=12))
def test_events_read_together_are_counted_and_bounded(sizes):
    reads = [b"".join(event(delta(content="w")) for _ in range(size)) for size in sizes]
    exchange = exchange_of(*reads, event(delta(finish="stop")) + DONE)
    exchange.sent_ns = 70 * MS
    answer = decode(exchange, "chat")
    assert answer.shared_events == sum(sizes) - len(sizes)
    bounds = [30 if number == 0 else 10 for number, size in enumerate(sizes) if size > 1]
    assert answer.shared_bound_ns == (max(bounds) * MS if bounds else None)


def test_a_late_read_bounds_by_when_the_socket_was_last_empty():
    reads = [event(delta(content="a")), event(delta(content="b")) * 2]
    exchange = exchange_of(*reads, event(delta(finish="stop")) + DONE)
    exchange.empty_ns = [0, 104 * MS, 110 * MS]  # the first read was made 4 ms after its arrival
    assert decode(exchange, "chat").shared_bound_ns == 6 * MS
