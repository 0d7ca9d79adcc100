"""Records and runs made up for the tests, with the figures that follow from them known by construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from llmbench.context import RunContext, StatedLimit
from llmbench.records import Outcome, RequestRecord

MS = 1_000_000
S = 1_000 * MS


def ok_record(
    index: int, *, sent: int = 0, events: Sequence[int] = (), tokens: Sequence[int] | None = None, **more: Any
) -> RequestRecord:
    """A success with output events at these instants, one token each unless said otherwise."""
    counts = [1] * len(events) if tokens is None else list(tokens)
    given: dict[str, Any] = {
        "phase": "measure",
        "outcome": Outcome.OK,
        "sent_ns": sent,
        "headers_ns": sent + 1,
        "first_event_ns": events[0] if events else None,
        "first_answer_ns": events[0] if events else None,
        "event_ns": list(events),
        "event_tokens": counts,
        "end_ns": events[-1] + MS if events else sent + MS,
        "output_tokens": sum(counts),
        "token_source": "usage",
        "finish_reason": "length",
        "http_status": 200,
        "reads": len(events),
        "worker": 0,
    }
    return RequestRecord(index=index, **(given | more))


def failed_record(index: int, outcome: Outcome = Outcome.BAD_STREAM, **more: Any) -> RequestRecord:
    given: dict[str, Any] = {"phase": "measure", "sent_ns": 0, "end_ns": MS, "error": "it broke"}
    return RequestRecord(index=index, outcome=outcome, **(given | more))


def closed_loop(**more: Any) -> RunContext:
    return RunContext(**({"name": "test", "open_loop": False} | more))


def open_loop(**more: Any) -> RunContext:
    return RunContext(**({"name": "test", "open_loop": True} | more))


def limit(metric: str, stat: str, value: float, *, higher_is_better: bool = False) -> StatedLimit:
    return StatedLimit(metric=metric, stat=stat, limit=value, higher_is_better=higher_is_better)


def decidable(context: RunContext) -> RunContext:
    """The steady run's context without the limit that its requests are too few for."""
    return replace(context, slo=tuple(one for one in context.slo if one.stat != "p999"))


def steady_run(num: int = 247) -> tuple[list[RequestRecord], RunContext]:
    """Four requests a second for a minute after 5 s of warm-up; two of them fail. No chance involved."""
    records = []
    for index in range(num):
        due = index * S // 4
        first = due + 120 * MS + (index * 37 % 101) * 3 * MS + (400 * MS if index % 60 == 7 else 0)
        step = 20 * MS + (index % 7) * MS // 2
        events = [first + token * step + (token * index % 5) * MS for token in range(128)]
        records.append(
            ok_record(
                index,
                sent=due + (50 + index % 40) * 1000,
                events=events,
                due_ns=due,
                phase="warmup" if due < 5 * S else "measure",
                input_tokens_asked=512,
                input_tokens=512 + index % 9 - 4,
                output_tokens_asked=128,
            )
        )
    for index, outcome, kind, status, error in (
        (100, Outcome.TIMEOUT, "timeout", None, "nothing for 60 s"),
        (120, Outcome.HTTP_ERROR, "http_status", 503, "HTTP 503: overloaded | try <later>"),
    ):
        if index < num:
            due = records[index].due_ns
            records[index] = failed_record(
                index, outcome, due_ns=due, sent_ns=due, error_kind=kind, http_status=status, error=error
            )
            records[index].end_ns = due + 2 * S
    context = open_loop(
        name="chat-steady",
        planned=num,
        num_warmup=20,
        window_ns=(5 * S, 65 * S),
        rate_asked_per_s=4.0,
        target="http://127.0.0.1:8000",
        model="Llama-3.1-8B-Instruct",
        server="vLLM 0.33",
        load="open loop, Poisson 4/s for 60 s after 5 s of warm-up",
        seed=7,
        slo=(
            limit("ttft", "p95", 0.5),
            limit("tpot", "p95", 0.05),
            limit("ttft", "p999", 1.0),
            limit("errors", "share", 0.005),
        ),
    )
    return records, context
