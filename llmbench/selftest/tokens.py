"""Whether tokens are counted as the server sent them, whoever counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmbench.calibration.null_target import null_target
from llmbench.selftest.check import Check, same
from llmbench.selftest.measured import run_against

_NUM_REQUESTS, _NUM_TOKENS = 6, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What the server does, and what is to be counted for each request. `events` carry output."""

    name: str
    mock: Mapping[str, Any]
    source: str = "usage"
    tokens: int = _NUM_TOKENS
    events: int = _NUM_TOKENS
    reasoning: int | None = None
    api: str = "chat"


_CASES = (
    _Case(name="one token a chunk", mock={}),
    _Case(name="three tokens a chunk", mock={"tokens_per_chunk": 3}, events=4),
    _Case(name="usage in every chunk", mock={"usage": "every"}),
    _Case(name="no usage: events", mock={"usage": "none"}, source="events"),
    _Case(name="reasoning, then text", mock={"reasoning_tokens": 5}, reasoning=5),
    _Case(name="a tool call", mock={"answer": "tool"}),
    _Case(name="completions", mock={}, api="completions"),
    _Case(name="responses", mock={}, api="responses"),
)


def known_tokens() -> list[Check]:
    """Each way of counting, all answers of one run alike."""
    with null_target(["--ttft", "5ms", "--itl", "1ms"]) as url:
        return [_counted(url, case) for case in _CASES]


def _counted(url: str, case: _Case) -> Check:
    seen = run_against(
        url,
        {
            "target": {"api": case.api, "body": {"mock": dict(case.mock)}},
            "load": {"arrivals": "closed", "concurrency": 3, "requests": _NUM_REQUESTS},
            "workload": {"kind": "inline", "prompts": ["Tell me more."], "output_tokens": _NUM_TOKENS},
        },
    )
    tokens = seen.summary["tokens"]
    counted = f"{tokens['output']} {tokens['source']}"
    expected = f"{case.tokens * _NUM_REQUESTS} {case.source}"
    if case.reasoning is not None:
        counted += f", {tokens['reasoning']}"
        expected += f", {case.reasoning * _NUM_REQUESTS}"
    if case.api != "responses":  # its tool calls and parts come in events of their own
        counted += f" / {int(seen.columns.num_events.sum())}"
        expected += f" / {case.events * _NUM_REQUESTS}"
    return same("known tokens: tokens and who counts them / events", case.name, expected, counted)
