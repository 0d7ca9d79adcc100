"""One prompt, measured: for a look at an endpoint, a notebook, a latency test.

    from llmbench import measure
    result = measure("http://127.0.0.1:8000", "Say hello.", max_tokens=32)
    result.ttft, result.tpot, result.total_tokens, result.e2e

The same client and the same definitions as a whole run; one sample says nothing of a distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from llmbench.errors import CannotMeasure, UsageError
from llmbench.records import Outcome
from llmbench.scenario.address import API_PATHS, mask_address

if TYPE_CHECKING:
    from llmbench.records import RequestRecord

NS_PER_S = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureResult:
    """What one request took. Seconds; None where the answer does not allow the number.

    ttft                   request sent to the first event with output, of any kind
    tpot                   (last output - first output) / (output tokens - 1); None below two tokens
    e2e                    request sent to the last event with output
    itl                    gaps between tokens: the gap before an event of k tokens counts as k gaps of 1/k
    time_to_first_answer   request sent to the first output that is not reasoning
    total_tokens           input and output tokens; None when the server does not count its input
    token_source           who counted the output: the server's usage, or events
    """

    model: str
    text: str
    reasoning: str
    finish_reason: str | None
    ttft: float | None
    tpot: float | None
    e2e: float | None
    itl: tuple[float, ...]
    time_to_first_answer: float | None
    input_tokens: int | None
    output_tokens: int | None
    total_tokens: int | None
    cached_tokens: int | None
    reasoning_tokens: int | None
    token_source: str | None


def measure(
    url: str,
    prompt: str,
    *,
    max_tokens: int = 128,
    model: str = "auto",
    api: Literal["chat", "completions", "responses"] = "chat",
    api_key: str | None = None,
    timeout_s: float = 120.0,
) -> MeasureResult:
    """Send one prompt as a stream and time the answer.

    `url` is as in a scenario: with or without `/v1`, and HOST:PORT means http. Raises CannotMeasure
    (TargetUnreachable, TargetRefused) when the request did not succeed, with the server's words and what to
    do; UsageError and TypeError for arguments that cannot be meant. Not from a running event loop's thread;
    use a worker thread there.
    """
    _check_arguments(url, prompt, max_tokens, model, api, api_key, timeout_s)
    from llmbench.client.single import measure_once

    served, record = measure_once(
        url, prompt, max_tokens=max_tokens, model=model, api=api, api_key=api_key, timeout_s=timeout_s
    )
    if record.outcome is not Outcome.OK:
        raise CannotMeasure(_failure(mask_address(url), record, api=api, model=served, timeout_s=timeout_s))
    return result_of(record, model=served)


def _check_arguments(
    url: object,
    prompt: object,
    max_tokens: object,
    model: object,
    api: object,
    api_key: object,
    timeout_s: object,
) -> None:
    """Refuses at once what a server would only answer with its own riddle."""
    texts = {
        "url": url,
        "prompt": prompt,
        "model": model,
        "api": api,
        "api_key": "" if api_key is None else api_key,
    }
    for name, value in texts.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} must be text, not {type(value).__name__}: measure(url, prompt)")
    if not prompt:
        raise UsageError("prompt is empty; a server has nothing to answer")
    if not isinstance(max_tokens, int) or isinstance(max_tokens, bool):
        raise TypeError(f"max_tokens must be a whole number, not {type(max_tokens).__name__}")
    if not isinstance(timeout_s, int | float) or isinstance(timeout_s, bool):
        raise TypeError(f"timeout_s must be a number of seconds, not {type(timeout_s).__name__}")
    if max_tokens < 1:
        raise UsageError(f"max_tokens={max_tokens}: must be 1 or more")
    if not 0 < timeout_s < float("inf"):
        raise UsageError(f"timeout_s={timeout_s}: must be more than 0")
    if api not in API_PATHS:
        raise UsageError(f"api={api!r}: write one of {', '.join(API_PATHS)}")


def _failure(url: str, record: RequestRecord, *, api: str, model: str, timeout_s: float) -> str:
    """What became of the request, and what to do about it."""
    said = record.error or record.error_kind or "no reason given"
    return f"{url}: {record.outcome.value}: {said}\n{_remedy(record, url, api, model, timeout_s)}"


def _remedy(record: RequestRecord, url: str, api: str, model: str, timeout_s: float) -> str:
    match record.outcome, record.http_status:
        case Outcome.TIMEOUT, _:
            return f"Nothing (more) came within {timeout_s:g} s; give it longer with timeout_s=."
        case Outcome.CONNECT_ERROR, _:
            return f"Is the server up?  curl {url}"
        case Outcome.HTTP_ERROR, 401 | 403:
            return "Give the key with api_key=."
        case Outcome.HTTP_ERROR, 404 | 405:
            return f"Does it serve /v1/{API_PATHS[api]}, and model {model!r}? Choose with api= and model=."
        case Outcome.HTTP_ERROR, 429:
            return "The server limits the rate; try again later."
        case Outcome.HTTP_ERROR, status if status is not None and status >= 500:
            return "The server failed; its own log says why."
        case Outcome.HTTP_ERROR, _:
            return "The server refuses the request; see its words, and max_tokens=, model=, api=."
        case _:
            return "The answer is no whole stream; the server's log, or another api=, may tell why."


def result_of(record: RequestRecord, *, model: str) -> MeasureResult:
    """The contract's definitions on one successful record."""
    sent_ns, events = record.sent_ns, record.event_ns
    span_s = (events[-1] - events[0]) / NS_PER_S if events else None
    output = record.output_tokens
    return MeasureResult(
        model=model,
        text=record.text or "",
        reasoning=record.reasoning or "",
        finish_reason=record.finish_reason,
        ttft=_since(sent_ns, events[0] if events else None),
        tpot=span_s / (output - 1) if span_s is not None and output is not None and output > 1 else None,
        e2e=_since(sent_ns, events[-1] if events else None),
        itl=_token_gaps(events, record.event_tokens),
        time_to_first_answer=_since(sent_ns, record.first_answer_ns),
        input_tokens=record.input_tokens,
        output_tokens=output,
        total_tokens=None if record.input_tokens is None or output is None else record.input_tokens + output,
        cached_tokens=record.cached_tokens,
        reasoning_tokens=record.reasoning_tokens,
        token_source=record.token_source,
    )


def _since(start_ns: int | None, end_ns: int | None) -> float | None:
    return None if start_ns is None or end_ns is None else (end_ns - start_ns) / NS_PER_S


def _token_gaps(event_ns: list[int], event_tokens: list[int] | None) -> tuple[float, ...]:
    if event_tokens is None:
        return ()
    gaps: list[float] = []
    for (before_ns, now_ns), num_tokens in zip(pairwise(event_ns), event_tokens[1:], strict=True):
        gaps += [(now_ns - before_ns) / NS_PER_S / num_tokens] * num_tokens if num_tokens else []
    return tuple(gaps)
