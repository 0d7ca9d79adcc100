"""What to do about requests that fail, by the most frequent kind of failure and what the user had set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llmbench.records import Outcome
from llmbench.trust.reason import Summary, less_load, setting


def remedy_for(summary: Summary) -> str | None:
    """A remedy for the most frequent failure, dropped arrivals aside; None where nothing failed."""
    failures = [one for one in summary["failures"] if one["outcome"] != Outcome.DROPPED]
    return _remedy(failures[0], summary) if failures else None


def _remedy(failure: Mapping[str, Any], summary: Summary) -> str:
    said = failure["example"] or ""
    match failure["outcome"]:
        case Outcome.HTTP_ERROR:
            return _for_status(failure["http_status"], said, summary)
        case Outcome.TIMEOUT:
            return _for_timeout(said, summary)
        case Outcome.CONNECT_ERROR:
            return (
                f"the target took no connection, or closed it unanswered: is it up? Else {less_load(summary)}"
            )
        case Outcome.CANCELLED:
            return "the run ended before their answers did: raise load.drain_timeout"
    match failure["error_kind"]:
        case "not_sse":
            return "the server does not stream: set target.stream: false"
        case "stream_error" | "http_body_error":
            return "the server says an error of its own in place of the answer; its log says why"
        case "empty":
            return "the server ends answers without a word; its log, or target.api, may tell why"
        case _:
            return "answers broke off: see the server's log, and the read timeout of a proxy before it"


def _for_status(status: int | None, said: str, summary: Summary) -> str:
    match status:
        case 429:
            after = re.search(r"Retry-After: ([^,)]+)", said)
            asks = f" (it says Retry-After: {after[1]})" if after else ""
            return f"the server limits the rate{asks}: {less_load(summary)}, or have its limit raised"
        case 401 | 403:
            had_key = setting(summary, "api_key")
            return "the server refuses target.api_key" if had_key else "give the key with target.api_key"
        case 404 | 405:
            return "does it serve target.api and target.model at target.url?"
        case _ if status is not None and status >= 500:
            return f"the server fails: see its log, or {less_load(summary)}"
        case _ if status is not None and status >= 400:
            return "the server refuses these requests; its words are with the failures"
        case _:
            return "target.url leads elsewhere; its words are with the failures"


def _for_timeout(said: str, summary: Summary) -> str:
    name = "no_progress_timeout" if "no_progress_timeout" in said else "timeout"
    limit_s = setting(summary, f"{name}_s")
    now = "" if limit_s is None else f" ({limit_s:g} s now)"
    return f"answers take longer than target.{name}{now}: raise it, or {less_load(summary)}"
