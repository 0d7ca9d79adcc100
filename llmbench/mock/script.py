"""What is sent when: a request's answer as a sequence of timed steps. Pure: no clock, no socket.

A step is `(due_ns, action, payload, num_tokens)`. `due_ns` counts from the start of decoding and never
decreases; steps with the same `due_ns` go out in one send. Token i is due at TTFT + i * ITL whatever
happened before, so that nothing drifts; a chunk of K tokens, or a send of several chunks, is due with its
first token.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import lru_cache
from itertools import islice, repeat

from llmbench.mock import tokens
from llmbench.mock.answers import (
    Answer,
    Channel,
    ChunkAnswer,
    Framing,
    error_object,
    framing_of,
    to_json,
    whole_answer,
)
from llmbench.mock.faults import Fault
from llmbench.mock.job import Job
from llmbench.mock.responses_api import ResponsesAnswer, final_status, response_object

_NS_PER_S = 1_000_000_000


class Action(IntEnum):
    """What to do with a step once its payload has been sent."""

    SEND = 0
    FINISH = 1  # the answer is complete; the connection may serve the next request
    CLOSE = 2  # close the connection
    RESET = 3  # reset the connection
    HANG = 4  # nothing more ever comes


Step = tuple[int, Action, bytes, int]

# Faults that replace a whole answer, streamed or not, and so need no look at the stream.
_WHOLE_FAULTS = ("status", "drop", "empty", "json-error")


def http_head(status: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """A response head, ready to send."""
    fields = "".join([f"{key}: {value}\r\n" for key, value in headers])
    return f"HTTP/1.1 {status}\r\n{fields}\r\n".encode("latin-1")


@lru_cache(maxsize=4)
def _stream_head(*, chunked: bool) -> bytes:
    """The part of a stream's head that is the same for all."""
    coding = [("Transfer-Encoding", "chunked")] if chunked else []
    kinds = [("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache")]
    return http_head("200 OK", [*kinds, *coding])[:-2]


def sampled_ns(mean_s: float, sigma: float, rng: random.Random | None) -> int:
    """One delay: the mean itself, or a lognormal draw with that mean (location ln(mean) - sigma^2/2)."""
    if rng is None or sigma == 0 or mean_s == 0:
        return round(mean_s * _NS_PER_S)
    return round(mean_s * rng.lognormvariate(-sigma * sigma / 2, sigma) * _NS_PER_S)


def token_times_ns(job: Job) -> Iterator[int]:
    """When each output token is due, from the start of decoding; without end."""
    how = job.behaviour
    rng = random.Random(f"{how.seed}/{job.ordinal}") if how.ttft_sigma or how.itl_sigma else None
    due_ns = sampled_ns(how.ttft_s, how.ttft_sigma, rng)
    if how.prefill_tokens_per_s is not None:
        due_ns += round((job.input_tokens - job.cached_tokens) / how.prefill_tokens_per_s * _NS_PER_S)
    if rng is None or how.itl_sigma == 0:
        step_ns = sampled_ns(how.itl_s, 0.0, None)
        while True:
            yield due_ns
            due_ns += step_ns
    while True:
        yield due_ns
        due_ns += sampled_ns(how.itl_s, how.itl_sigma, rng)


def _words(job: Job) -> Iterator[bytes]:
    how = job.behaviour
    vocabulary = tokens.UNICODE_WORDS if how.text == "unicode" else tokens.ASCII_WORDS
    return tokens.words_from(tokens.prompt_state(how.seed, job.prompt), vocabulary)


def _channel_lengths(job: Job) -> list[tuple[Channel, int]]:
    if not job.reasoning_tokens and job.behaviour.answer == "text":
        return [("text", job.num_tokens)] if job.num_tokens else []
    channel: Channel = "text"
    if job.api != "completions" and job.behaviour.answer != "text":
        channel = "tool" if job.behaviour.answer == "tool" else "refusal"
    reasoning = job.reasoning_tokens
    parts: list[tuple[Channel, int]] = [("reasoning", reasoning), (channel, job.num_tokens - reasoning)]
    return [(name, length) for name, length in parts if length]


def _answer_id(job: Job) -> str:
    prefix = {"chat": "chatcmpl", "completions": "cmpl", "responses": "resp"}[job.api]
    return f"{prefix}-{job.ordinal:08d}"


def _chunks(job: Job) -> Iterator[tuple[int, Channel, bytes, int, int]]:
    """(due_ns, channel, text, tokens in it, tokens sent with it) for each event with output."""
    how = job.behaviour
    words, times_ns = _words(job), token_times_ns(job)
    sizes = _chunk_sizes(job)
    due_ns, num_sent, num_chunks = 0, 0, 0
    for channel, length in _channel_lengths(job):
        left = length
        while left:
            count = min(next(sizes), left)
            left -= count
            first_ns = next(times_ns)
            for _ in range(count - 1):
                next(times_ns)
            if num_chunks % how.events_per_send == 0:
                due_ns = first_ns
            num_chunks += 1
            num_sent += count
            text = next(words) if count == 1 else b"".join(islice(words, count))
            yield due_ns, channel, text, count, num_sent


def _chunk_sizes(job: Job) -> Iterator[int]:
    """Tokens of each event with output, without end."""
    low, high = job.behaviour.tokens_per_chunk, job.behaviour.tokens_per_chunk_max
    if high is None or high <= low:
        return repeat(low)
    rng = random.Random(f"{job.behaviour.seed}/{job.ordinal}/chunks")
    return iter(lambda: rng.randint(low, high), None)


def stream_steps(job: Job, answer: Answer, framing: Framing, head: bytes) -> Iterator[Step]:
    """A stream without faults, from its head to the end of its body."""
    how = job.behaviour
    first_ns = next(token_times_ns(job))
    yield (first_ns if how.head == "first" else 0), Action.SEND, head, 0
    early = job.api == "responses" or how.role_chunk == "early"
    if early:
        yield (first_ns if how.head == "first" else 0), Action.SEND, answer.opening(), 0
    if how.ping_s and how.head == "early":
        ping_ns = round(how.ping_s * _NS_PER_S)
        for due_ns in range(ping_ns, first_ns, max(ping_ns, 1)):
            yield due_ns, Action.SEND, framing.comment(b"ping"), 0
    if not early and how.role_chunk == "first":
        yield first_ns, Action.SEND, answer.opening(), 0
    due_ns = first_ns
    for due_ns, channel, text, count, num_sent in _chunks(job):
        piece = answer.piece(channel, text, num_sent, last=num_sent == job.num_tokens)
        yield due_ns, Action.SEND, piece, count
    yield due_ns, Action.SEND, answer.closing(), 0
    due_ns += round(how.usage_late_s * _NS_PER_S)
    yield due_ns, Action.SEND, answer.usage(), 0
    if how.done and job.api != "responses":
        yield due_ns, Action.SEND, framing.done, 0
    yield due_ns, Action.FINISH, framing.last, 0


def with_fault(steps: Iterator[Step], fault: Fault, num_tokens: int, wreck: list[Step]) -> Iterator[Step]:
    """`steps` until `fault.after` tokens have gone, then `wreck` (its times set to that instant) and no more.

    With `after` 0 the fault strikes when the first token would have come.
    """
    after, num_sent = min(fault.after, num_tokens), 0
    for due_ns, action, payload, count in steps:
        if not count or after:
            yield due_ns, action, payload, count
        num_sent += count
        if num_sent >= after and (count or not num_tokens):
            for _, wreck_action, wreck_payload, _ in wreck:
                yield due_ns, wreck_action, wreck_payload, 0
            return


def with_pause(steps: Iterator[Step], fault: Fault, num_tokens: int, extra: bytes) -> Iterator[Step]:
    """`steps` with `extra` after `fault.after` tokens; what follows a stall comes that later, or never."""
    after, num_sent, late_ns = min(fault.after, num_tokens), 0, 0
    struck = False
    for due_ns, action, payload, count in steps:
        if not struck and num_sent >= after and (count or num_sent == num_tokens):
            struck = True
            if extra:
                yield due_ns, Action.SEND, extra, 0
            if fault.kind == "stall" and fault.for_s == float("inf"):
                yield due_ns, Action.HANG, b"", 0
                return
            late_ns = round(fault.for_s * _NS_PER_S) if fault.kind == "stall" else 0
        num_sent += count
        yield due_ns + late_ns, action, payload, count


def buffered(steps: Iterator[Step]) -> Iterator[Step]:
    """The head at its time, everything else in one piece at the end: what a proxy makes of a stream."""
    yield next(steps)
    held = list(steps)
    for _, action, payload, count in held:
        yield held[-1][0], action, payload, count


def held(steps: Iterator[Step], num_bytes: int) -> Iterator[Step]:
    """The head at its time, the rest whenever `num_bytes` have come together or the stream ends: a buffer."""
    yield next(steps)
    waiting: list[Step] = []
    size = 0
    for step in steps:
        waiting.append(step)
        size += len(step[2])
        if size >= num_bytes or step[1] is not Action.SEND:
            yield from ((step[0], action, payload, count) for _, action, payload, count in waiting)
            waiting, size = [], 0


def _wreck(fault: Fault, answer: Answer, framing: Framing, job: Job) -> list[Step]:
    if fault.kind == "error":
        done = framing.done if job.behaviour.done and job.api != "responses" else b""
        error = answer.error(fault.message, fault.code)
        return [(0, Action.SEND, error + done, 0), (0, Action.FINISH, framing.last, 0)]
    if fault.kind == "truncate":
        return [(0, Action.FINISH, framing.last, 0)]
    return [(0, Action.RESET if fault.kind == "reset" else Action.CLOSE, b"", 0)]


def stream_script(
    job: Job, fault: Fault | None, *, created: int, chunked: bool, headers: list[tuple[str, str]]
) -> Iterator[Step]:
    """All steps of a streamed answer; `fault` is one that strikes within a stream, or None."""
    how = job.behaviour
    framing = framing_of(how.line_ending, how.data_space, chunked)
    kind = ResponsesAnswer if job.api == "responses" else ChunkAnswer
    answer: Answer = kind(job, framing, answer_id=_answer_id(job), created=created)
    fields = "".join([f"{key}: {value}\r\n" for key, value in headers])
    head = _stream_head(chunked=chunked) + f"{fields}\r\n".encode("latin-1")
    steps = stream_steps(job, answer, framing, head)
    if fault is not None and fault.kind in ("stall", "malformed"):
        broken = framing.event(b'{"choices": [{"delta":') if fault.kind == "malformed" else b""
        steps = with_pause(steps, fault, job.num_tokens, broken)
    elif fault is not None and fault.kind in ("error", "truncate", "reset", "cut"):
        steps = with_fault(steps, fault, job.num_tokens, _wreck(fault, answer, framing, job))
    if how.hold_bytes is not None:
        steps = held(steps, how.hold_bytes)
    return buffered(steps) if how.buffered else steps


def whole_script(
    job: Job, fault: Fault | None, *, created: int, headers: list[tuple[str, str]]
) -> Iterator[Step]:
    """The one step of an answer that is not streamed: due with its last token."""
    words = _words(job)
    texts = {name: b"".join(islice(words, length)).decode() for name, length in _channel_lengths(job)}
    if job.api == "responses":
        document = response_object(
            job, texts, status=final_status(job), answer_id=_answer_id(job), created=created
        )
    else:
        document = whole_answer(job, texts, answer_id=_answer_id(job), created=created)
    times_ns = list(islice(token_times_ns(job), max(job.num_tokens, 1)))
    due_ns, body = times_ns[-1], to_json(document)
    head = http_head(
        "200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body))), *headers]
    )
    if fault is None or fault.kind in ("json", "malformed"):
        yield due_ns, Action.FINISH, head + body, job.num_tokens
    elif fault.kind == "error":
        body = to_json(error_object(500, fault.message))
        status = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), *headers]
        yield due_ns, Action.FINISH, http_head("500 Internal Server Error", status) + body, 0
    elif fault.kind == "stall" and fault.for_s == float("inf"):
        yield due_ns, Action.HANG, b"", 0
    elif fault.kind == "stall":
        yield due_ns + round(fault.for_s * _NS_PER_S), Action.FINISH, head + body, job.num_tokens
    else:
        due_ns = times_ns[min(fault.after, len(times_ns) - 1)]
        half = b"" if fault.kind == "reset" else head + body[: len(body) // 2]
        yield due_ns, Action.RESET if fault.kind == "reset" else Action.CLOSE, half, 0
