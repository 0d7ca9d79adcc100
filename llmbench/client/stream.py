"""The events of one stream, read into an Answer.

The events of a stream are nearly all alike: the same JSON with another word in it. Once one of them has
been parsed, `_Template` recognises the others by their first and last bytes; whatever does not fit it
exactly is parsed in full. Both ways give the same Answer (a property test holds them to it).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import orjson

from llmbench.client.answer import Answer
from llmbench.client.body import a_text, an_object, error_text, excerpt, loads, objects
from llmbench.client.exchange import Exchange
from llmbench.client.sse import Event, read_fields, split_events
from llmbench.client.usage import read_usage, says_each, share_tokens
from llmbench.client.wire import Api

PAUSE_EVERY = 64
"""Events parsed in full between two pauses: some 0.2 ms of work."""
SLAB = 1 << 14
"""Bytes of like events read between two pauses: less work than that, unless every event is odd."""
_WORTH_A_TEMPLATE = 1 << 11  # bytes that a body must have for a template to pay off
_MARK = "\u2301"  # stands for the word when a template is checked


def read_stream(
    answer: Answer, api: Api, body: bytes, exchange: Exchange, chunks: list[bytes], *, keep_text: bool
) -> Generator[None, None, None]:
    """Reads the whole body of an event stream, pausing now and then."""
    reader = _StreamReader(answer, api, keep_text=keep_text)
    answer.body_bytes = len(body)
    if b"\r" in body or body.startswith(b"\xef\xbb\xbf") or api == "responses":
        yield from reader.read_events(split_events(body))
    else:
        yield from reader.read_body(body)
    if len(body) >= _WORTH_A_TEMPLATE:
        yield
    reader.settle(exchange, chunks)


class _Template(NamedTuple):
    """The bytes around the word in a stream's common event; `head` with its `data: `."""

    head: bytes
    tail: bytes


def learn_template(piece: bytes) -> _Template | None:
    """The template of an event whose only news is one word of the first choice's text; None for any other."""
    payload = piece[6:]
    document = loads(payload)
    if not piece.startswith(b"data: ") or not isinstance(document, dict):
        return None
    choices = document.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or document.get("usage") or document.get("error"):
        return None
    choice = choices[0]
    if not isinstance(choice, dict) or choice.get("finish_reason") or choice.get("index"):
        return None
    delta = choice.get("delta")
    place, key = (delta, "content") if isinstance(delta, dict) else (choice, "text")
    word = place.get(key)
    silent = ("reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")
    if not isinstance(word, str) or not word or any(place.get(name) for name in silent):
        return None
    encoded = orjson.dumps(word)
    start = payload.find(encoded)
    if start < 0 or payload.count(encoded) != 1:
        return None
    head, tail = payload[: start + 1], payload[start + len(encoded) - 1 :]
    place[key] = _MARK
    same = loads(head + _MARK.encode() + tail) == document
    place[key] = word
    return _Template(b"data: " + head, tail) if same else None


class _StreamReader:
    """Reads a stream's events into an Answer."""

    # defaults on the class, as for the Answer itself
    _usage: dict[str, Any] | None = None
    _done_end: int | None = None
    _answer_end: int | None = None
    _role_end: int | None = None
    _finish_end: int | None = None
    _done: bool = False

    def __init__(self, answer: Answer, api: Api, *, keep_text: bool) -> None:
        self._answer = answer
        self._keep_text = keep_text
        self._is_responses = api == "responses"
        self._parts: dict[int, list[str]] = {}
        self._reasoning: list[str] = []  # like the text, of the first choice
        self._refusal: list[str] = []
        self._speaking: set[int] = set()  # choices that carried output
        self._tools: dict[tuple[int, int], dict[str, str]] = {}
        self._ends: list[int] = []  # body offset of each output event's last byte
        self._sizes: list[int] = []  # characters of each output event, to share tokens out
        self._counts: list[int] = []  # cumulative completion tokens, of the output events that said them

    # ---- walking

    def read_events(self, events: list[Event]) -> Iterator[None]:
        """Every event, parsed in full."""
        for number, (name, data, end) in enumerate(events):
            if not self._read_event(name, data, end):
                return
            if number % PAUSE_EVERY == PAUSE_EVERY - 1:
                yield

    def read_body(self, body: bytes) -> Iterator[None]:
        """A body with LF line ends: event by event until a template is learned, then slab by slab."""
        template: _Template | None = None
        tries = 3 if len(body) >= _WORTH_A_TEMPLATE else 0
        start, num_read = 0, 0
        while start < len(body):
            blank = body.rfind(b"\n\n", start, start + SLAB) if template is not None else -1
            if blank < 0:
                blank = body.find(b"\n\n", start)
            stop = len(body) if blank < 0 else blank + 2
            if template is not None:
                if not self._read_slab(body[start:stop], start, template):
                    return
                yield
            else:
                piece = body[start : blank if blank >= 0 else stop]
                if not self._read_piece(piece, stop):
                    return
                if tries and self._ends and self._ends[-1] == stop:
                    tries -= 1
                    template = learn_template(piece)
                num_read += 1
                if num_read % PAUSE_EVERY == 0:
                    yield
            start = stop

    def _read_slab(self, slab: bytes, start: int, template: _Template) -> bool:
        """A stretch of whole events, most of which differ from the template by their word only.

        Cut at "end of one like event, start of the next", a slab falls into words. Where one of them holds
        more than a plain word (an escape, an event of another kind), that stretch is parsed in full.
        """
        head, tail = template
        between = tail + b"\n\n" + head
        first, *words = slab.split(between)
        if not words:
            return self._read_pieces(first, start)
        if not self._read_pieces(first + tail + b"\n\n", start):
            return False
        last = words.pop()
        start += len(first) + len(between)
        joined = b"".join(words)
        if b'"' in joined or b"\\" in joined or b"\n" in joined or b"" in words:
            for word in words:
                if not self._read_word(word, start, template):
                    return False
                start += len(word) + len(between)
        elif words:
            sizes = [*map(len, words)]
            steps = [size + len(between) for size in sizes]
            steps[0] = start + sizes[0] + len(tail) + 2
            start += len(joined) + len(between) * len(words)
            self._add_words(words, sizes, [*accumulate(steps)])
        return self._read_pieces(head + last, start - len(head))

    def _read_word(self, word: bytes, start: int, template: _Template) -> bool:
        """What stands between the head of one like event and the tail of the same or a later one."""
        head, tail = template
        if b'"' in word or b"\\" in word or b"\n" in word or not word:
            return self._read_pieces(head + word + tail + b"\n\n", start - len(head))
        self._add_words([word], [len(word)], [start + len(word) + len(tail) + 2])
        return True

    def _add_words(self, words: list[bytes], sizes: list[int], ends: list[int]) -> None:
        """Plain words of the first choice's text: one event each. `sizes` are bytes."""
        self._mark_answer(ends[0])
        self._speaking.add(0)
        self._ends += ends
        if self._keep_text or not all(map(bytes.isascii, words)):
            texts = [word.decode("utf-8", "replace") for word in words]
            self._parts.setdefault(0, []).extend(texts)
            self._sizes += map(len, texts)
        else:
            self._sizes += sizes

    def _read_pieces(self, text: bytes, start: int) -> bool:
        """Some events, each parsed in full; False when one of them ends the stream."""
        end = start
        for piece in text.split(b"\n\n"):
            end += len(piece) + 2
            if not self._read_piece(piece, min(end, start + len(text))):
                return False
        return True

    def _read_piece(self, piece: bytes, end: int) -> bool:
        """What stands between two blank lines; False when it ends the stream."""
        if piece.startswith(b"data: ") and b"\n" not in piece and len(piece) > 6:
            return self._read_event(None, piece[6:], end)
        event = read_fields(piece.split(b"\n"))
        return event is None or self._read_event(event[0], event[1], end)

    def _read_event(self, name: bytes | None, data: bytes, end: int) -> bool:
        """One event; False when it ends the stream."""
        if data == b"[DONE]":
            self._done = True
            self._done_end = end
            return False
        answer = self._answer
        document = loads(data)
        if name == b"error":
            answer.fail("bad_stream", "stream_error", error_text(document) or excerpt(data))
        elif not isinstance(document, dict):
            if data.strip() == b"[DONE]":
                return self._read_event(None, b"[DONE]", end)
            answer.warn("malformed_event")
        elif document.get("error") or document.get("object") == "error" or document.get("type") == "error":
            answer.fail("bad_stream", "stream_error", error_text(document) or excerpt(data))
        elif self._is_responses:
            self._read_responses(document, end)
        else:
            self._read_chunk(document, end)
        return True

    # ---- one event

    def _read_chunk(self, document: dict[str, Any], end: int) -> None:
        """A chunk of the chat or completions API."""
        answer = self._answer
        usage = document.get("usage")
        if usage and isinstance(usage, dict):
            self._usage = usage
        if answer.response_id is None and isinstance(document.get("id"), str):
            answer.response_id = document["id"]
        said: int | None = None
        choices = document.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            reason = choice.get("finish_reason")
            if reason:
                answer.finish_reason = str(reason)
                if reason == "error":
                    answer.fail("bad_stream", "stream_error", "finish_reason is 'error'")
            size = self._read_choice(choice, end)
            if size is not None:
                said = size if said is None else said + size
        if said is not None:
            count = usage.get("completion_tokens") if isinstance(usage, dict) else 0
            self._add_output(end, said, count if isinstance(count, int) else 0)
        elif choices:
            self._finish_end = end
            if not self._ends and self._role_end is None:
                self._role_end = end

    def _read_choice(self, choice: dict[str, Any], end: int) -> int | None:
        """Keeps one choice's output; returns its length in characters, None when it carries none."""
        index = choice.get("index")
        if not isinstance(index, int):
            index = 0
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            text = choice.get("text")
            return self._add_text(index, text, end) if isinstance(text, str) and text else None
        size: int | None = None
        text = delta.get("content")
        if isinstance(text, str) and text:
            size = self._add_text(index, text, end)
        if len(delta) > 1 or size is None:  # most deltas hold the text and nothing else
            more = self._read_other_channels(index, delta, end)
            if more is not None:
                self._speaking.add(index)
                size = more if size is None else size + more
        return size

    def _read_other_channels(self, index: int, delta: dict[str, Any], end: int) -> int | None:
        size: int | None = None
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(thought, str) and thought:
            size = self._add_reasoning(index, thought)
        parts = delta.get("content")
        if isinstance(parts, list):
            size = self._read_parts(index, parts, end) or size
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            self._refusal += [refusal] if index == 0 else []
            size = (size or 0) + len(refusal)
            self._mark_answer(end)
        calls = delta.get("tool_calls") or delta.get("function_call")
        if calls:
            got = self._add_calls(index, calls if isinstance(calls, list) else [{"function": calls}])
            if got:
                size = (size or 0) + got
                self._mark_answer(end)
        return size

    def _read_parts(self, index: int, parts: list[Any], end: int) -> int:
        """Content as a list of parts, as Mistral's API sends it where a model thinks."""
        size = 0
        for part in objects(parts):
            thought, text = a_text(part.get("thinking")), a_text(part.get("text"))
            if thought:
                size += self._add_reasoning(index, thought)
            if text:
                size += self._add_text(index, text, end)
        return size

    def _add_reasoning(self, index: int, thought: str) -> int:
        if index == 0:
            self._reasoning.append(thought)
        return len(thought)

    def _add_text(self, index: int, text: str, end: int) -> int:
        self._parts.setdefault(index, []).append(text)
        self._mark_answer(end)
        return len(text)

    def _mark_answer(self, end: int) -> None:
        """Notes the first output that is not reasoning."""
        if self._answer_end is None:
            self._answer_end = end

    def _add_calls(self, choice: int, calls: list[Any]) -> int:
        """Keeps tool call deltas; returns the characters of names and arguments in them."""
        size = 0
        for position, call in enumerate(calls):
            if not isinstance(call, dict):
                continue
            function = an_object(call.get("function"))
            index = call.get("index")
            key = (choice, index if isinstance(index, int) else position)
            kept = self._tools.setdefault(key, {"name": "", "arguments": ""})
            for part in ("name", "arguments"):
                value = function.get(part)
                if isinstance(value, str) and value:
                    kept[part] += value
                    size += len(value)
        return size

    def _read_responses(self, document: dict[str, Any], end: int) -> None:
        """A typed event of the responses API."""
        kind = document.get("type")
        delta = document.get("delta")
        if isinstance(kind, str) and kind.endswith(".delta") and isinstance(delta, str) and delta:
            if "reasoning" in kind:
                self._reasoning.append(delta)
            elif "arguments" in kind:
                call = {"index": document.get("output_index"), "function": {"arguments": delta}}
                self._add_calls(0, [call])
                self._mark_answer(end)
            elif "refusal" in kind:
                self._refusal.append(delta)
                self._mark_answer(end)
            else:
                self._add_text(0, delta, end)
            self._add_output(end, len(delta), 0)
        elif kind == "response.output_item.added":
            self._name_call(document)
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self._read_response_end(an_object(document.get("response")), kind)

    def _name_call(self, document: dict[str, Any]) -> None:
        item = an_object(document.get("item"))
        if item.get("type") == "function_call":
            call = {"index": document.get("output_index"), "function": {"name": item.get("name")}}
            self._add_calls(0, [call])

    def _read_response_end(self, response: dict[str, Any], kind: str) -> None:
        answer = self._answer
        self._usage = an_object(response.get("usage")) or self._usage
        answer.response_id = a_text(response.get("id")) or None
        self._done = True
        if kind == "response.failed":
            answer.fail("bad_stream", "stream_error", error_text(response) or "response.failed")
        incomplete = an_object(response.get("incomplete_details"))
        reason = incomplete.get("reason") if kind == "response.incomplete" else "stop"
        answer.finish_reason = "length" if reason == "max_output_tokens" else str(reason)

    def _add_output(self, end: int, size: int, count: int) -> None:
        self._ends.append(end)
        self._sizes.append(size)
        if count:
            self._counts.append(count)

    # ---- the end

    def settle(self, exchange: Exchange, chunks: list[bytes]) -> None:
        """Stamps, counts and the judgement, when the last event has been read."""
        self._stamp(exchange, chunks)
        answer = self._answer
        answer.choices = {index: "".join(parts) for index, parts in self._parts.items() if parts}
        answer.reasoning = "".join(self._reasoning)
        answer.refusal = "".join(self._refusal)
        if self._tools:
            answer.tool_calls = [self._tools[key] for key in sorted(self._tools)]
        self._count_tokens()
        num_events = len(answer.event_ns)
        if num_events >= 4 and answer.reads == 1:
            answer.warn("buffered")
        answer.is_whole = answer.finish_reason is not None or (self._done and num_events > 0)
        if exchange.breakage is None and not answer.is_whole:
            if self._done or not b"".join(chunks).strip():
                answer.fail("bad_stream", "empty", "the stream ended without any output")
            else:
                answer.fail("bad_stream", "truncated", "the stream ended without a finish_reason or [DONE]")

    def _stamp(self, exchange: Exchange, chunks: list[bytes]) -> None:
        """Offsets become times: an event belongs to the read that brought its last byte."""
        read_ns = exchange.read_ns
        if not read_ns:
            return
        sizes = list(accumulate(map(len, chunks)))
        read_ends = [sizes[count - 1] for count in exchange.read_chunks]
        ends, answer = self._ends, self._answer
        stamps: list[int] = []
        first = 0
        empty_ns = exchange.empty_ns or [exchange.sent_ns or read_ns[0], *read_ns[:-1]]
        for now, read_end, empty in zip(read_ns, read_ends, empty_ns, strict=True):
            beyond = bisect_right(ends, read_end, first)
            if beyond > first:
                stamps += (now,) * (beyond - first)
                answer.reads += 1
                if beyond - first > 1:  # all but the last may have come before it, though after `empty`
                    answer.shared_events += beyond - first - 1
                    answer.shared_bound_ns = max(answer.shared_bound_ns or 0, now - empty)
                first = beyond
        stamps += read_ns[-1:] * (len(ends) - first)  # bytes that no read was booked for came with the last
        answer.event_ns = stamps
        if self._answer_end is not None:
            answer.first_answer_ns = stamps[bisect_left(ends, self._answer_end)]

        def stamp(end: int) -> int:
            return read_ns[min(bisect_left(read_ends, end), len(read_ns) - 1)]

        if self._role_end is not None:
            answer.role_chunk_ns = stamp(self._role_end)
        if self._finish_end is not None and ends and self._finish_end > ends[-1]:
            answer.finish_chunk_ns = stamp(self._finish_end)
        if self._done_end is not None:
            answer.end_ns = stamp(self._done_end)

    def _count_tokens(self) -> None:
        """Usage first, else events. Tokens are laid to the events as well as can be told."""
        answer = self._answer
        num_events = len(answer.event_ns)
        read_usage(answer, self._usage)
        total = answer.output_tokens
        if total is None:
            answer.warn("usage_missing")
            answer.output_tokens = total = num_events
            answer.token_source = "events"  # noqa: S105 - where a count is from, no password
        else:
            answer.token_source = "usage"  # noqa: S105
        if num_events == 0:
            answer.event_tokens = []
        elif len(self._speaking | answer.choices.keys()) <= 1:
            answer.event_tokens = share_tokens(total, self._sizes, self._counts)
            if total > num_events and not says_each(self._counts, num_events, total):
                answer.warn("tokens_shared_out")
