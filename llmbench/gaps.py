"""Gaps between the events of a stream: chunk gaps, inter-token latencies, stalls.

The only pass over every event of a run. It goes through the rows some thousands at a time, so that memory
holds the events and one gap for each, and little else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmbench.columns import RequestColumns
from llmbench.stats import Z95, Sample, WeightedValues

_ROWS_AT_ONCE = 8192
MIN_STREAMS = 30  # requests; with fewer, a standard error between them is itself too uncertain


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGaps:
    """Chunk gaps and inter-token latencies in nanoseconds, over the chosen requests.

    `longest_ns` is each request's longest gap, 0 where it has none. `tokens_in_time` of `num_tokens` came no
    later than a reader who starts at the first token and takes one token every `token_limit_s` needs them;
    None without such a limit.
    """

    chunk_gap: Sample
    itl: Sample
    longest_ns: NDArray[np.int64]
    stall_limit_s: float
    token_limit_s: float | None
    num_tokens: int
    tokens_in_time: int | None

    def stalls(self) -> dict[str, Any]:
        """Gaps above the limit, the longest one, the share of tokens in time ("fluidity")."""
        limit_ns = self.stall_limit_s * 1e9
        in_time = None
        if self.tokens_in_time is not None and self.num_tokens:
            in_time = self.tokens_in_time / self.num_tokens
        return {
            "limit_s": self.stall_limit_s,
            "count": self.chunk_gap.count - self.chunk_gap.num_at_most(limit_ns),
            "requests": int((self.longest_ns > limit_ns).sum()),
            "longest_s": self.chunk_gap.max() / 1e9 if self.chunk_gap.count else None,
            "fluidity": in_time,
            "fluidity_token_limit_s": self.token_limit_s,
        }


def measure_gaps(
    columns: RequestColumns, rows: NDArray[np.bool_], *, token_limit_s: float | None, stall_limit_s: float
) -> TokenGaps:
    """The gaps of the chosen rows. `rows` is a mask [num_rows]."""
    num_events = np.where(rows, columns.num_events, 0)
    gaps = np.empty(int(np.maximum(num_events - 1, 0).sum()), dtype=np.int64)
    longest = np.zeros(columns.num_rows, dtype=np.int64)
    filled, num_tokens, in_time = 0, 0, 0
    for first in range(0, columns.num_rows, _ROWS_AT_ONCE):
        chunk = _Chunk.cut(columns, rows, first)
        found = chunk.gaps()
        gaps[filled : filled + len(found)] = found
        filled += len(found)
        longest[first : first + _ROWS_AT_ONCE] = chunk.longest()
        if token_limit_s is not None:
            total, met = chunk.tokens_in_time(token_limit_s * 1e9)
            num_tokens, in_time = num_tokens + total, in_time + met
    itl = None if _one_token_each(columns, rows) else _inter_token(columns, rows)
    gaps.sort()
    chunk_gap = Sample((1,), (gaps,))
    return TokenGaps(
        chunk_gap=chunk_gap,
        itl=chunk_gap if itl is None else itl,
        longest_ns=longest,
        stall_limit_s=stall_limit_s,
        token_limit_s=token_limit_s,
        num_tokens=num_tokens,
        tokens_in_time=None if token_limit_s is None else in_time,
    )


def _one_token_each(columns: RequestColumns, rows: NDArray[np.bool_]) -> bool:
    """Whether every event of the chosen rows is one token, so that gaps and inter-token latencies are one."""
    with_events = rows & (columns.num_events > 0)
    if not columns.has_event_tokens[with_events].all():
        return False
    tokens = columns.event_tokens
    if not len(tokens) or (tokens.min() == 1 and tokens.max() == 1):
        return True
    odd = np.flatnonzero(tokens != 1)
    return not rows[np.searchsorted(columns.event_offsets, odd, side="right") - 1].any()


def _inter_token(columns: RequestColumns, rows: NDArray[np.bool_]) -> Sample:
    """(a_i - a_(i-1)) / k_i, counted k_i times, of rows whose tokens are known."""
    rows = rows & columns.has_event_tokens
    pieces = WeightedValues()
    for first in range(0, columns.num_rows, _ROWS_AT_ONCE):
        gaps, tokens, _ = _Chunk.cut(columns, rows, first).token_gaps()
        pieces.add(gaps / tokens, tokens)
    return pieces.finish()


def itl_intervals(
    columns: RequestColumns, rows: NDArray[np.bool_], itl: Sample, percents: Sequence[float]
) -> list[tuple[float, float] | None]:
    """95 % intervals of pooled inter-token latencies, in nanoseconds, with the request as the unit.

    Gaps of one stream resemble each other, so that an interval for independent values would be far too
    narrow. The share of gaps below each percentile is a ratio of per-request totals; its standard error,
    found by linearization, is carried over to the percentile (Woodruff 1952). None below `MIN_STREAMS`
    requests, or where an end of the interval lies outside the sample.
    """
    rows = rows & columns.has_event_tokens
    limits = [itl.percentile(percent) for percent in percents]
    below = np.zeros((len(percents), columns.num_rows))
    totals = np.zeros(columns.num_rows)
    for first in range(0, columns.num_rows, _ROWS_AT_ONCE):
        gaps, tokens, row_of = _Chunk.cut(columns, rows, first).token_gaps()
        span = slice(first, first + _ROWS_AT_ONCE)
        num = len(totals[span])
        totals[span] = np.bincount(row_of, weights=tokens, minlength=num)
        for number, limit in enumerate(limits):
            within = gaps <= limit * tokens
            below[number, span] = np.bincount(row_of, weights=tokens * within, minlength=num)
    streams = totals > 0
    if streams.sum() < MIN_STREAMS:
        return [None] * len(percents)
    return [
        _carried_over(itl, percent, _standard_error(counts[streams], totals[streams]))
        for percent, counts in zip(percents, below, strict=True)
    ]


def _standard_error(below: NDArray[np.float64], totals: NDArray[np.float64]) -> float:
    """Of the ratio sum(below) / sum(totals), requests drawn independently; at least that of a share."""
    num, total = len(totals), float(totals.sum())
    share = float(below.sum()) / total
    residuals = below - share * totals
    clustered = math.sqrt(num / (num - 1) * float(np.dot(residuals, residuals))) / total
    return max(clustered, math.sqrt(share * (1 - share) / total))


def _carried_over(itl: Sample, percent: float, error: float) -> tuple[float, float] | None:
    reach = 100 * Z95 * error
    if percent - reach <= 0 or percent + reach >= 100:
        return None
    return itl.percentile(percent - reach), itl.percentile(percent + reach)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some consecutive rows' events. `starts` are the positions of first events of the rows that have any."""

    event_ns: NDArray[np.int64]
    tokens: NDArray[np.int32]
    lengths: NDArray[np.int64]
    rows: NDArray[np.bool_]

    @classmethod
    def cut(cls, columns: RequestColumns, rows: NDArray[np.bool_], first: int) -> _Chunk:
        offsets = columns.event_offsets[first : first + _ROWS_AT_ONCE + 1]
        span = slice(offsets[0], offsets[-1])
        chosen = rows[first : first + _ROWS_AT_ONCE]
        return cls(columns.event_ns[span], columns.event_tokens[span], np.diff(offsets), chosen)

    def starts(self) -> NDArray[np.int64]:
        return (np.cumsum(self.lengths) - self.lengths)[self.lengths > 0]

    def chosen(self) -> NDArray[np.bool_]:
        """Which events belong to chosen rows."""
        return np.repeat(self.rows, self.lengths)

    def gaps(self) -> NDArray[np.int64]:
        if len(self.event_ns) < 2:
            return self.event_ns[:0]
        inner = self.chosen()
        inner[self.starts()] = False
        return np.diff(self.event_ns)[inner[1:]]

    def longest(self) -> NDArray[np.int64]:
        """The longest gap of each row."""
        longest = np.zeros(len(self.lengths), dtype=np.int64)
        if len(self.event_ns):
            starts = self.starts()
            gaps = np.diff(self.event_ns, prepend=self.event_ns[0])
            gaps[starts] = 0
            longest[self.lengths > 0] = np.maximum.reduceat(gaps, starts)
        return np.where(self.rows, longest, 0)

    def token_gaps(self) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
        """Gaps to each event with tokens, that event's tokens, and the gap's row in the chunk.

        An event without tokens lengthens the next gap.
        """
        is_first = np.zeros(len(self.event_ns), dtype=np.bool_)
        is_first[self.starts()] = True
        kept = self.chosen() & ((self.tokens > 0) | is_first)
        instants, tokens, begins = self.event_ns[kept], self.tokens[kept], is_first[kept]
        inner = ~begins[1:]
        row_of = np.repeat(np.arange(len(self.lengths)), self.lengths)[kept]
        return np.diff(instants)[inner], tokens[1:][inner], row_of[1:][inner]

    def tokens_in_time(self, token_ns: float) -> tuple[int, int]:
        """(tokens, those that came in time) of the chosen rows; see `TokenGaps`."""
        if not len(self.event_ns):
            return 0, 0
        starts, lengths = self.starts(), self.lengths[self.lengths > 0]
        before = np.cumsum(self.tokens, dtype=np.int64) - self.tokens
        before -= np.repeat(before[starts], lengths)
        since_first = self.event_ns - np.repeat(self.event_ns[starts], lengths)
        chosen = self.chosen()
        met = chosen & (since_first <= before * token_ns)
        return int(self.tokens[chosen].sum()), int(self.tokens[met].sum())
