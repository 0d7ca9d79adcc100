"""From columns to per-request measures, windows and rates, by the definitions below.

For one request: due d (open loop), sent s, output events at a_1 … a_m with k_1 … k_m tokens, N tokens in all.

    send lag               s - d
    TTFT                   a_1 - s            from due: a_1 - d
    time to first answer   first output that is not reasoning - s
    TPOT                   (a_m - a_1) / (N - 1); undefined for N < 2
    ITL                    (a_i - a_(i-1)) / k_i, counted k_i times
    chunk gap              a_i - a_(i-1)
    E2E                    a_m - s, so that TTFT + TPOT * (N - 1) = E2E exactly; from due: a_m - d
    normalized latency     E2E / N

An answer that was not streamed has no events: its E2E ends with the response, TTFT and TPOT are undefined.
With several choices tokens cannot be laid to events: TPOT, ITL and normalized latency are undefined.
Instants and measures are nanoseconds, vectorised over all requests; `report.summary` turns them to seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmbench.columns import IntColumn, RequestColumns
from llmbench.context import Limit, RunContext
from llmbench.records import Outcome

NS_PER_S = 1e9
# Limits on these can be met or missed by a single request.
REQUEST_LATENCIES = (
    "ttft",
    "ttft_due",
    "tpot",
    "e2e",
    "e2e_due",
    "time_to_first_answer",
    "normalized_latency",
)

RATES = (
    "requests_per_s",
    "input_tokens_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "sent_requests_per_s",
    "offered_requests_per_s",
)

BoolRows = NDArray[np.bool_]

PLANNED, SENDS, WHOLE = "planned", "first to last send", "first send to last end"  # kinds of windows
# A window so many answers long: what began before it and what ends after it weigh little against what
# happens in it.
STEADY_ANSWERS = 10


@dataclass(frozen=True, slots=True)
class Measure:
    """A value of each request, in nanoseconds (or tokens), and where it is defined."""

    values: NDArray[Any]
    defined: BoolRows

    def of(self, rows: BoolRows) -> NDArray[Any]:
        """The defined values of these rows."""
        return self.values[self.defined & rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What each request amounts to. `attempted` are the measured requests that count as tried.

    A request cancelled because the run was interrupted was not tried to its end: it is counted, but it is no
    failure of the target.
    """

    columns: RequestColumns
    ok: BoolRows
    measured: BoolRows
    attempted: BoolRows
    finish_ns: NDArray[np.int64]
    num_tokens: IntColumn
    measures: Mapping[str, Measure]

    @property
    def succeeded(self) -> BoolRows:
        """Measured and ok: what metrics are computed over."""
        return self.ok & self.measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The interval that rates are over. `kind` says which one it is."""

    start_ns: int
    end_ns: int
    kind: str

    @property
    def duration_s(self) -> float:
        """Never negative."""
        return max(0, self.end_ns - self.start_ns) / NS_PER_S

    def holds(self, instants: NDArray[np.int64]) -> BoolRows:
        """Which instants lie in [start, end): an interval between n sends holds n - 1 of them. That of the
        whole run holds its last end, too.
        """
        return (instants >= self.start_ns) & (instants < self.end_ns + self.is_whole)

    @property
    def is_whole(self) -> bool:
        """Does it enclose all measured requests, so that they alone are counted?"""
        return self.kind == WHOLE


# ---- per request


def derive(columns: RequestColumns, context: RunContext) -> Requests:
    """Every per-request measure, vectorised; shapes are [num_rows]."""
    ok = columns.labels["outcome"].among(Outcome.OK)
    measured = columns.labels["phase"].among("measure")
    cancelled = columns.labels["outcome"].among(Outcome.CANCELLED)
    stopped_early = context.interrupted or context.killed
    attempted = measured & ~cancelled if stopped_early else measured
    num_tokens = output_tokens(columns)
    last, has_events = _last_event(columns)
    end = columns.integers["end_ns"]
    finish = np.where(has_events, last, end.values)
    return Requests(
        columns=columns,
        ok=ok & (has_events | end.is_set),
        measured=measured,
        attempted=attempted,
        finish_ns=finish,
        num_tokens=num_tokens,
        measures=_measures(columns, finish, has_events, num_tokens, open_loop=context.open_loop),
    )


def output_tokens(columns: RequestColumns) -> IntColumn:
    """N of each request: the count on record, else the sum over its events."""
    stated = columns.integers["output_tokens"]
    sums = np.zeros(columns.num_rows, dtype=np.int64)
    rows = columns.num_events > 0
    if rows.any():
        starts = columns.event_offsets[:-1][rows]
        sums[rows] = np.add.reduceat(columns.event_tokens, starts, dtype=np.int64)
    summed = columns.has_event_tokens & rows
    return IntColumn(np.where(stated.is_set, stated.values, sums), stated.is_set | summed)


def _last_event(columns: RequestColumns) -> tuple[NDArray[np.int64], BoolRows]:
    has_events = columns.num_events > 0
    last = np.zeros(columns.num_rows, dtype=np.int64)
    last[has_events] = columns.event_ns[columns.event_offsets[1:][has_events] - 1]
    return last, has_events


def _measures(
    columns: RequestColumns,
    finish: NDArray[np.int64],
    has_events: BoolRows,
    num_tokens: IntColumn,
    *,
    open_loop: bool,
) -> dict[str, Measure]:
    sent, due = columns.integers["sent_ns"], columns.integers["due_ns"]
    first_event, answer = columns.integers["first_event_ns"], columns.integers["first_answer_ns"]
    first = np.zeros(columns.num_rows, dtype=np.int64)
    first[has_events] = columns.event_ns[columns.event_offsets[:-1][has_events]]
    # An event without `first_event_ns` is the body of an answer that was not streamed.
    streamed = has_events & first_event.is_set
    ended = has_events | columns.integers["end_ns"].is_set
    is_due = due.is_set & open_loop
    tokens = num_tokens.values
    counted = num_tokens.is_set & (columns.has_event_tokens | ~has_events)
    timed = streamed & counted & (tokens >= 2)
    e2e = finish - sent.values
    return {
        "send_lag": Measure(sent.values - due.values, is_due & sent.is_set),
        "ttft": Measure(first - sent.values, streamed & sent.is_set),
        "ttft_due": Measure(first - due.values, streamed & is_due),
        "time_to_first_answer": Measure(answer.values - sent.values, answer.is_set & sent.is_set),
        "tpot": Measure((finish - first) / np.where(timed, tokens - 1, 1), timed),
        "e2e": Measure(e2e, ended & sent.is_set),
        "e2e_due": Measure(finish - due.values, ended & is_due & sent.is_set),
        "normalized_latency": Measure(
            e2e / np.where(tokens > 0, tokens, 1), ended & sent.is_set & counted & (tokens > 0)
        ),
        "input_tokens": _as_measure(columns.integers["input_tokens"]),
        "output_tokens": _as_measure(num_tokens),
    }


def _as_measure(column: IntColumn) -> Measure:
    return Measure(column.values, column.is_set)


def meets_limits(requests: Requests, context: RunContext) -> BoolRows | None:
    """Which requests meet every per-request limit of their SLO; None where there is no such limit.

    Of several statistics of one metric the strictest limit counts: p95 below 500 ms is the same statement as
    95 % of requests below 500 ms. Only `ok` requests can be good. A limit on something the answer does not
    have is not met, but for TPOT where there are fewer than two tokens to be apart.
    """
    columns = requests.columns
    limits: dict[str | None, tuple[Limit, ...]] = {None: context.slo}
    limits.update(context.tenant_slo)
    per_request = {tenant: request_limits(slo) for tenant, slo in limits.items()}
    if not any(per_request.values()):
        return None
    tenants = columns.labels["tenant"]
    special = tenants.among(*context.tenant_slo)
    good = requests.ok.copy()
    for tenant, metrics in per_request.items():
        rows = ~special if tenant is None else tenants.among(tenant)
        for metric, limit_s in metrics.items():
            measure = requests.measures[metric]
            met = measure.defined & (measure.values <= limit_s * NS_PER_S)
            if metric == "tpot":
                met |= requests.num_tokens.is_set & (requests.num_tokens.values < 2)
            good &= met | ~rows
    return good


def request_limits(slo: tuple[Limit, ...]) -> dict[str, float]:
    """The limits, in seconds, that single requests can meet or miss, by metric."""
    limits: dict[str, float] = {}
    for limit in slo:
        if limit.metric in REQUEST_LATENCIES and limit.stat != "mean":
            limits[limit.metric] = min(limit.limit, limits.get(limit.metric, math.inf))
    return limits


# ---- windows and rates


def measured_window(requests: Requests, context: RunContext) -> Window:
    """Planned: from the end of the warm-up to the end of the planned duration, ramp and drain left out.

    Of a run bounded by its number of requests: from the first measured send to the last one. When that is no
    steady stretch (a burst, or few requests; see `_is_steady`): all of the measured requests, and no others,
    over the time from their first send to their last end.
    """
    if context.window_ns is not None:
        start, end = context.window_ns
        if (context.interrupted or context.killed) and requests.columns.integers["sent_ns"].is_set.any():
            end = max(start, min(end, _last_send_ns(requests)))  # nothing was asked for after it
        return Window(start_ns=start, end_ns=end, kind=PLANNED)
    sent = requests.columns.integers["sent_ns"]
    sends = sent.values[sent.is_set & requests.measured]
    if not len(sends):
        return Window(start_ns=0, end_ns=0, kind="empty")
    sends_only = Window(start_ns=int(sends.min()), end_ns=int(sends.max()), kind=SENDS)
    return sends_only if _is_steady(requests, sends_only) else whole_run(requests)


def _is_steady(requests: Requests, sends: Window) -> bool:
    """Does what ends between the first and the last send tell how fast the target works?

    Half of the answers must end in it. What began in the warm-up and ends in it must be less than what ends
    after it, or more requests would be counted than were sent; unless it is so long that neither matters.
    """
    answers = requests.measures["e2e"].of(requests.succeeded)
    inside = sends.holds(requests.finish_ns)
    num_inside = int((inside & requests.succeeded).sum())
    if sends.duration_s <= 0 or num_inside == 0 or 2 * num_inside < len(answers):
        return False
    num_before = int((inside & requests.ok & ~requests.measured).sum())
    is_long = sends.duration_s * NS_PER_S >= STEADY_ANSWERS * float(np.median(answers))
    return is_long or num_before == 0 or num_before < len(answers) - num_inside


def _last_send_ns(requests: Requests) -> int:
    sent = requests.columns.integers["sent_ns"]
    return int(sent.values[sent.is_set].max())


def whole_run(requests: Requests) -> Window:
    """From the first measured send to the last measured end."""
    columns = requests.columns
    sent, end = columns.integers["sent_ns"], columns.integers["end_ns"]
    was_sent = sent.is_set & requests.measured
    if not was_sent.any():
        return Window(start_ns=0, end_ns=0, kind="empty")
    ends = np.where(end.is_set, np.maximum(end.values, requests.finish_ns), requests.finish_ns)
    first = int(sent.values[was_sent].min())
    last = max(first, int(ends[was_sent].max()))
    return Window(start_ns=first, end_ns=last, kind=WHOLE)


def throughput(requests: Requests, window: Window, context: RunContext) -> dict[str, Any]:
    """Rates in the window, over successful requests of any phase: one that began in the warm-up works for the
    window as one that began in the window works beyond it. Output tokens count when they come, input tokens
    with the first output, requests when they end. A window of the whole run has no such neighbours: it counts
    the measured requests, each of which it encloses, in every rate, so that no more can be achieved than was
    offered.
    """
    columns = requests.columns
    duration = window.duration_s
    if duration <= 0:
        return {**dict.fromkeys(RATES), "asked_requests_per_s": context.rate_asked_per_s}
    rows = requests.measured if window.is_whole else np.ones(columns.num_rows, dtype=np.bool_)
    ok = requests.ok & rows
    ended = window.holds(requests.finish_ns) & ok
    first = columns.integers["first_event_ns"]
    prefilled = window.holds(np.where(first.is_set, first.values, requests.finish_ns)) & ok
    inputs = columns.integers["input_tokens"]
    num_input = int(inputs.values[prefilled & inputs.is_set].sum())
    num_output = _tokens_within(requests, window, ok)
    sent, due = columns.integers["sent_ns"], columns.integers["due_ns"]
    num_sent = int((rows & sent.is_set & (window.holds(sent.values) | window.is_whole)).sum())
    num_due = _num_due(requests, window) if context.open_loop and due.is_set.any() else None
    has_input = bool(inputs.is_set.any())
    return {
        "requests_per_s": int(ended.sum()) / duration,
        "input_tokens_per_s": num_input / duration if has_input else None,
        "output_tokens_per_s": num_output / duration,
        "total_tokens_per_s": (num_input + num_output) / duration if has_input else None,
        "sent_requests_per_s": num_sent / duration,
        "offered_requests_per_s": None if num_due is None else num_due / duration,
        "asked_requests_per_s": context.rate_asked_per_s,
    }


def _num_due(requests: Requests, window: Window) -> int:
    """Arrivals that the window is about, also those that were never sent.

    A window made of sends is a little later than the arrivals it stands for: there they are counted, not
    looked for. All in the whole run; one less between the first and the last.
    """
    due = requests.columns.integers["due_ns"]
    if window.kind == PLANNED:
        return int((window.holds(due.values) & due.is_set).sum())
    return int((requests.measured & due.is_set).sum()) - (not window.is_whole)


def _tokens_within(requests: Requests, window: Window, ok: BoolRows) -> int:
    """Output tokens of these successful requests that came in the window."""
    columns = requests.columns
    by_event = ok & columns.has_event_tokens & (columns.num_events > 0)
    inside = window.holds(requests.finish_ns)
    starts = np.zeros(columns.num_rows, dtype=np.int64)
    rows = columns.num_events > 0
    starts[rows] = columns.event_ns[columns.event_offsets[:-1][rows]]
    # Whole requests first; only those that cross an edge of the window are looked at event by event.
    enclosed = by_event & inside & window.holds(starts)
    whole = enclosed | (ok & ~by_event & inside)
    total = int(requests.num_tokens.values[whole & requests.num_tokens.is_set].sum())
    crossing = by_event & ~enclosed & (starts <= window.end_ns) & (requests.finish_ns >= window.start_ns)
    for row in np.flatnonzero(crossing):
        span = slice(columns.event_offsets[row], columns.event_offsets[row + 1])
        total += int(columns.event_tokens[span][window.holds(columns.event_ns[span])].sum())
    return total
