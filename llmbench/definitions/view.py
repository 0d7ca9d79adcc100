"""A run's measured requests in the terms in which other tools define their metrics.

Instants are seconds from the start of the run, one for each chosen request, NaN where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmbench.columns import RequestColumns
from llmbench.context import RunContext
from llmbench.metrics import NS_PER_S, Requests, derive, meets_limits, request_limits

Floats = NDArray[np.float64]
Rows = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class View:
    """The rows that a tool would have reported on: all measured requests that were sent."""

    columns: RequestColumns
    context: RunContext
    requests: Requests

    @classmethod
    def of(cls, columns: RequestColumns, context: RunContext) -> View:
        """All of it, vectorised once."""
        return cls(columns, context, derive(columns, context))

    @property
    def ok(self) -> Rows:
        """Requests that succeeded, the only ones latencies are over."""
        return self.requests.succeeded

    @property
    def failed(self) -> Rows:
        """Requests that were sent, or tried to be, and did not succeed."""
        return self.requests.attempted & ~self.requests.ok & self.columns.integers["sent_ns"].is_set

    @property
    def cut_off(self) -> Rows:
        """Requests that were cancelled: a run that ended before they did."""
        return self.requests.measured & self.columns.labels["outcome"].among("cancelled")

    def instant(self, name: str) -> Floats:
        """A column of instants, in seconds; `[num_rows]`, NaN where absent."""
        column = self.columns.integers[name]
        return np.where(column.is_set, column.values / NS_PER_S, np.nan)

    def first_event(self) -> Floats:
        """The first event that carried output: a_1; `[num_rows]`."""
        return self.instant("first_event_ns")

    def last_event(self) -> Floats:
        """The last event that carried output, a_m; `[num_rows]`."""
        return np.where(self.columns.num_events > 0, self.requests.finish_ns / NS_PER_S, np.nan)

    def num_tokens(self) -> Floats:
        """Output tokens, the server's count first; `[num_rows]`, NaN where unknown."""
        return np.where(self.requests.num_tokens.is_set, self.requests.num_tokens.values, np.nan)

    def input_tokens(self) -> Floats:
        """`[num_rows]`, NaN where unknown."""
        column = self.columns.integers["input_tokens"]
        return np.where(column.is_set, column.values, np.nan)

    def events(self, row: int) -> tuple[Floats, NDArray[np.int32]]:
        """Instants of a row's output events, and the tokens of each; both `[m]`."""
        span = slice(*self.columns.event_offsets[row : row + 2])
        return self.columns.event_ns[span] / NS_PER_S, self.columns.event_tokens[span]

    def duration_s(self) -> float:
        """From the first send to the last end, the drain included: the denominator of other tools' rates."""
        known = self.ok | self.failed
        if not known.any():
            return 0.0
        ends = np.fmax(self.instant("end_ns"), self.last_event())
        return float(np.nanmax(ends[known]) - np.nanmin(self.instant("sent_ns")[known]))

    def num_good(self) -> int | None:
        """Successful requests that meet every per-request limit of the scenario; None without limits."""
        good = meets_limits(self.requests, self.context)
        return None if good is None else int((good & self.ok).sum())

    def limits(self) -> dict[str, float]:
        """The per-request limits, in seconds."""
        return request_limits(self.context.slo)


def defined(values: Floats) -> Floats:
    """Without the NaN."""
    kept: Floats = values[~np.isnan(values)]
    return kept


def per_token(times: Floats, counts: Floats) -> Floats:
    """`times / counts` where there is a positive count, NaN elsewhere."""
    quotients: Floats = np.divide(times, counts, out=np.full(len(times), np.nan), where=counts > 0)
    return quotients


def number(value: Any) -> float | None:
    """A plain float; None for what JSON has no word for."""
    return float(value) if np.isfinite(value) else None


def rate(amount: float, duration_s: float) -> float:
    """Per second; 0 for a run without length, as these tools have it."""
    return float(amount / duration_s) if duration_s > 0 else 0.0
