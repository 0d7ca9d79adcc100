"""The mock's own account: what arrived, what was sent and exactly when, and how late the server itself
was.

Instants are CLOCK_MONOTONIC in nanoseconds, taken just before the bytes are given to the kernel.
"""

from __future__ import annotations

import json
import os
import time
from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

_BUCKET_NS = 5_000
_NUM_BUCKETS = 200_000  # one second


@dataclass(slots=True, kw_only=True)
class Served:
    """One generation request. Absent instants are None; `end` says how it ended."""

    ordinal: int
    request_id: str | None
    path: str
    arrival_ns: int
    status: int = 200
    stream: bool = False
    start_ns: int | None = None  # when it began to decode: the arrival, or later if it had to wait
    end_ns: int | None = None
    end: str = "pending"  # done, cut, reset, refused, client left
    fault: str | None = None
    model: str | None = None
    input_tokens: int | None = None
    num_tokens: int | None = None
    finish_reason: str | None = None
    event_ns: array[int] = field(default_factory=lambda: array("q"))
    event_tokens: array[int] = field(default_factory=lambda: array("q"))
    headers: dict[str, str] | None = None
    body: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values under the names of GET /log."""
        entry: dict[str, Any] = {
            "id": self.request_id,
            "ordinal": self.ordinal,
            "path": self.path,
            "status": self.status,
            "stream": self.stream,
            "end": self.end,
            "fault": self.fault,
            "model": self.model,
            "input_tokens": self.input_tokens,
            "num_tokens": self.num_tokens,
            "sent_tokens": sum(self.event_tokens),
            "finish_reason": self.finish_reason,
            "arrival_ns": self.arrival_ns,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "event_ns": self.event_ns.tolist(),
            "event_tokens": self.event_tokens.tolist(),
        }
        if self.body is not None:
            entry |= {"headers": self.headers, "body": self.body}
        return entry


class Lateness:
    """How long after its due instant each send was made: a histogram of 5 us steps up to one second."""

    def __init__(self) -> None:
        self._counts = array("q", bytes(8 * (_NUM_BUCKETS + 1)))
        self.num_sends = 0
        self.max_ns = 0

    def add(self, late_ns: int) -> None:
        """Count one send."""
        self.num_sends += 1
        self.max_ns = max(self.max_ns, late_ns)
        self._counts[min(late_ns // _BUCKET_NS, _NUM_BUCKETS)] += 1

    def quantile_s(self, share: float) -> float | None:
        """The lateness in seconds (up to 5 us) that `share` of the sends keep; None without sends."""
        wanted, seen = share * self.num_sends, 0
        if not self.num_sends:
            return None
        for bucket, count in enumerate(self._counts):
            seen += count
            if seen >= wanted:
                return min((bucket + 1) * _BUCKET_NS, self.max_ns) / 1e9
        return self.max_ns / 1e9


class TruthLog:
    """Requests as they end: the newest in memory, all of them in a file where one is given."""

    def __init__(self, *, path: str | None, limit: int) -> None:
        self._limit = limit
        self._file: TextIO | None = (
            Path(path).open("w", encoding="utf-8") if path else None  # noqa: SIM115 -- open as long as the server
        )
        self.reset()

    def reset(self) -> None:
        """Forget everything so far; what the file holds stays."""
        self.requests: deque[Served] = deque(maxlen=self._limit)
        self.lateness = Lateness()
        self.statuses: Counter[int] = Counter()
        self.ends: Counter[str] = Counter()
        self.other: Counter[str] = Counter()
        self.input_tokens = 0
        self.output_tokens = 0
        self._cpu_s = time.process_time()

    def add(self, served: Served) -> None:
        """Keep a request that has ended."""
        self.requests.append(served)
        self.statuses[served.status] += 1
        self.ends[served.end] += 1
        self.input_tokens += served.input_tokens or 0
        self.output_tokens += sum(served.event_tokens)
        if self._file is not None:
            self._file.write(json.dumps(served.to_dict(), ensure_ascii=False) + "\n")

    def summary(self) -> dict[str, Any]:
        """Totals, and the server's own lateness in seconds: read it before blaming a client."""
        late = self.lateness
        return {
            "requests": sum(self.statuses.values()),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "ends": dict(sorted(self.ends.items())),
            "other_requests": dict(sorted(self.other.items())),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "sends": late.num_sends,
            "lateness_p50_s": late.quantile_s(0.5),
            "lateness_p99_s": late.quantile_s(0.99),
            "lateness_max_s": late.max_ns / 1e9 if late.num_sends else None,
            "cpu_s": round(time.process_time() - self._cpu_s, 6),
            "pid": os.getpid(),
        }

    def close(self) -> None:
        """Write the summary as the file's last line."""
        if self._file is not None:
            self._file.write(json.dumps({"summary": self.summary()}) + "\n")
            self._file.close()
            self._file = None
