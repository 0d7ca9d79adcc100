"""Exchanges made by hand: a response's bytes, cut into reads as a test wants them."""

from __future__ import annotations

import json

from llmbench.client.exchange import Exchange

MS = 1_000_000


def exchange_of(
    *reads,
    status=200,
    kind="text/event-stream",
    breakage=None,
    detail="as the test says",
    headers=(),
):
    """A response whose n-th read (from 0) came at 100 + 10 n ms; sent at 0, head at 50 ms."""
    exchange = Exchange(0, "req-0", 0)
    exchange.sent_ns = 0
    if status is not None:
        exchange.status = status
        exchange.headers_ns = 50 * MS
        fields = {} if kind is None else {"Content-Type": kind}
        exchange.raw_headers = {
            name.encode(): value.encode("latin-1") for name, value in {**fields, **dict(headers)}.items()
        }
    for number, data in enumerate(reads):
        exchange.chunks.append(data)
        exchange.read_ns.append((100 + 10 * number) * MS)
        exchange.read_chunks.append(len(exchange.chunks))
    end_ns = (100 + 10 * len(reads)) * MS
    if breakage is None:
        exchange.end_ns = end_ns
    else:
        exchange.break_off(breakage, detail, end_ns)
    return exchange


def cut(body, sizes):
    """The body in pieces of these sizes, the rest as the last."""
    pieces, at = [], 0
    for size in sizes:
        if at >= len(body):
            break
        pieces.append(body[at : at + size])
        at += size
    return [*pieces, body[at:]] if at < len(body) else pieces


def event(document, *, end=b"\n"):
    """One event of a stream; text as it is, anything else as JSON."""
    data = document if isinstance(document, bytes) else json.dumps(document, ensure_ascii=False).encode()
    return b"data: " + data + end + end


def delta(*, index=0, finish=None, **fields):
    """A chat chunk with one choice."""
    choice = {"index": index, "delta": fields, "finish_reason": finish}
    return {"id": "c-1", "object": "chat.completion.chunk", "choices": [choice]}


def usage(output, prompt=7, **more):
    """A chat chunk with nothing but usage."""
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output, **more}
    return {"id": "c-1", "object": "chat.completion.chunk", "choices": [], "usage": counts}


DONE = b"data: [DONE]\n\n"


def facts(answer):
    """Every field of an Answer."""
    return {**{name: getattr(answer, name) for name in type(answer).__annotations__}, **vars(answer)}
