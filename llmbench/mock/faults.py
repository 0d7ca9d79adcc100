"""What can go wrong on purpose, and for which requests.

A fault is written `KIND[,key=value]…`, for example `status,code=429,every=10,retry_after=2s` or
`reset,after=5,share=10%`. Without `every` or `share` it strikes every request. `every=N` strikes the N-th,
2N-th, … request since the start or the last POST /reset; `share` draws from the seed and the request's
number, so that the same order of requests meets the same faults again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmbench.mock import values

KINDS = {
    "status": "an HTTP status instead of an answer (code=, body=, retry_after=, location=)",
    "drop": "the connection is closed without a word of answer",
    "reset": "TCP reset (RST) after `after` tokens",
    "cut": "the connection is closed in the middle of the body after `after` tokens",
    "truncate": "the body ends properly after `after` tokens, without finish_reason, usage or [DONE]",
    "error": "an error object in the stream after `after` tokens, then [DONE]",
    "malformed": "one event that is no JSON after `after` tokens; the stream goes on",
    "stall": "silence of length `for` after `after` tokens (for=forever: until the client leaves)",
    "empty": "200 and an event stream without a single event",
    "json": "one JSON document (not an event stream) although a stream was asked for",
    "json-error": "200 with a JSON error object instead of an answer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. `after` counts output tokens, at most the answer's length: a fault always strikes."""

    kind: str
    every: int | None = None
    share: float | None = None
    after: int = 3
    code: int = 503
    body: str = "auto"
    retry_after: float | None = None
    location: str | None = None
    for_s: float = values.FOREVER_S
    message: str = "the mock was told to fail"

    def strikes(self, ordinal: int, seed: int, position: int) -> bool:
        """Whether this fault, the `position`-th of its list, befalls the `ordinal`-th request (from 1)."""
        if self.every is not None and ordinal % self.every:
            return False
        if self.share is None:
            return True
        return random.Random(f"{seed}/{ordinal}/{position}").random() < self.share


_READERS: dict[str, values.Reader] = {
    "kind": values.one_of(*KINDS),
    "every": values.optional(values.whole(1)),
    "share": values.optional(values.share),
    "after": values.whole(0),
    "code": values.status(200, what="an answer"),
    "body": values.one_of("auto", "json", "html", "text", "empty"),
    "retry_after": values.optional(values.finite_s),
    "location": values.optional(values.text),
    "for_s": values.finite_or_forever_s,
    "message": values.text,
}


def read_fault(value: object) -> Fault:
    """A fault from `KIND[,key=value]…` or a JSON object of the same keys and `kind`; or ValueError."""
    if isinstance(value, Fault):
        return value
    settings: dict[str, object]
    if isinstance(value, Mapping):
        settings = {str(key): item for key, item in value.items()}
    else:
        kind, *pairs = str(value).split(",")
        settings = {"kind": kind}
        for pair in pairs:
            name, _, written = pair.partition("=")
            settings[name.strip()] = written
    if "for" in settings:
        settings["for_s"] = settings.pop("for")
    typed: dict[str, Any] = {}
    for key, setting in settings.items():
        if key not in _READERS:
            raise ValueError(f"fault {value!r}: unknown key {key!r}: one of {', '.join(sorted(_READERS))}")
        try:
            typed[key] = _READERS[key](setting)
        except ValueError as error:
            raise ValueError(f"fault {value!r}: {key}: {error}") from None
    return Fault(**typed)


def striking(faults: Sequence[Fault], ordinal: int, seed: int) -> Fault | None:
    """The first fault of the list that befalls the `ordinal`-th request, or None."""
    for position, fault in enumerate(faults):
        if fault.strikes(ordinal, seed, position):
            return fault
    return None
