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

# Kinds of windows: see `measured_window`.
PLANNED, BETWEEN_DUE, BETWEEN_SENDS = "planned", "first to last due", "first to last send"
WHOLE = "first send to last end"

BoolRows = NDArray[np.bool_]


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
    failure of the target. `starts` are when requests were due (open loop) or sent (closed loop); `reached`
    are those whose turn came before the run ended, whether they were then sent or dropped.
    """

    columns: RequestColumns
    ok: BoolRows
    measured: BoolRows
    warmup: BoolRows
    attempted: BoolRows
    starts: IntColumn
    reached: BoolRows
    finish_ns: NDArray[np.int64]
    num_tokens: IntColumn
    measures: Mapping[str, Measure]

    @property
    def succeeded(self) -> BoolRows:
        """Measured and ok: what metrics are computed over."""
        return self.ok & self.measured

    def began_in(self, window: Window) -> BoolRows:
        """The measured requests that began in [start, end); in the whole run's, which they span, all."""
        starts = self.starts.values
        inside = (starts >= window.start_ns) & (starts < window.end_ns)
        return self.measured & self.reached & (inside | (window.kind == WHOLE))


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
        """Which instants lie inside, both ends included."""
        return (instants >= self.start_ns) & (instants <= self.end_ns)


# ---- per request


def derive(columns: RequestColumns, context: RunContext) -> Requests:
    """Every per-request measure, vectorised; shapes are [num_rows]."""
    ok = columns.labels["outcome"].among(Outcome.OK)
    starts = _starts(columns, open_loop=context.open_loop)
    measured = columns.labels["phase"].among("measure")
    cancelled = columns.labels["outcome"].among(Outcome.CANCELLED)
    stopped_early = context.cut_short
    attempted = measured & ~cancelled if stopped_early else measured
    num_tokens = output_tokens(columns)
    last, has_events = _last_event(columns)
    end = columns.integers["end_ns"]
    finish = np.where(has_events, last, end.values)
    return Requests(
        columns=columns,
        ok=ok & (has_events | end.is_set),
        measured=measured,
        warmup=columns.labels["phase"].among("warmup"),
        attempted=attempted,
        starts=starts,
        reached=starts.is_set & ~(cancelled & ~columns.integers["sent_ns"].is_set),
        finish_ns=finish,
        num_tokens=num_tokens,
        measures=_measures(columns, finish, has_events, num_tokens, open_loop=context.open_loop),
    )


def unfinished(requests: Requests) -> BoolRows:
    """Requests that were sent and then not waited for to their end: cut off, or timed out. What is known of
    them is that they took longer than that. Shape [num_rows].
    """
    integers = requests.columns.integers
    cut_off = requests.columns.labels["outcome"].among(Outcome.CANCELLED, Outcome.TIMEOUT)
    return cut_off & integers["sent_ns"].is_set & integers["end_ns"].is_set


def _starts(columns: RequestColumns, *, open_loop: bool) -> IntColumn:
    due, sent = columns.integers["due_ns"], columns.integers["sent_ns"]
    if not open_loop:
        return sent
    return IntColumn(np.where(due.is_set, due.values, sent.values), due.is_set | sent.is_set)


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
    """The interval that rates are over: the measured phase, ramp and drain left out.

    planned                  from the end of the warm-up to the end of the planned duration. A run that was
                             cut short ends with the last request that had its turn
    first to last due, send  without a planned duration (or when a closed loop's requests ran out before it):
                             from the first measured request to the last one, as due in an open loop, as sent
                             in a closed one. The last begins at its end and is not counted: n requests are
                             n - 1 gaps apart
    first send to last end   where that holds too little to tell a rate, because everything was sent at once
                             or because most of the answers came later: all measured requests, over all of
                             their time. Of one request alone no rate is known
    """
    if context.window_ns is not None and not _ran_out(requests, context):
        start, end = context.window_ns
        reached = requests.starts.values[requests.reached]
        if _cut_short(requests, context) and len(reached):
            end = max(start, min(end, int(reached.max())))
        return Window(start_ns=start, end_ns=end, kind=PLANNED)
    began = requests.starts.values[requests.reached & requests.measured]
    if not len(began):
        return Window(start_ns=0, end_ns=0, kind="empty")
    kind = BETWEEN_DUE if context.open_loop else BETWEEN_SENDS
    between = Window(start_ns=int(began.min()), end_ns=int(began.max()), kind=kind)
    return between if _tells_a_rate(requests, between) else whole_run(requests)


def _ran_out(requests: Requests, context: RunContext) -> bool:
    """Did a closed loop send all that it was allowed to, before its time was up?"""
    limit, sent = context.request_limit, requests.columns.integers["sent_ns"].is_set
    return limit is not None and not context.open_loop and int((sent & requests.measured).sum()) >= limit


def _cut_short(requests: Requests, context: RunContext) -> bool:
    """Did the run end before its plan? One that was interrupted while it drained did not."""
    is_whole = context.open_loop and bool(requests.reached.all())
    return context.cut_short and not is_whole


def _tells_a_rate(requests: Requests, window: Window) -> bool:
    """Do half of the answers to what began in the window end in it, so that its rate is a steady one's?"""
    num_answered = int((requests.began_in(window) & requests.ok).sum())
    return window.duration_s > 0 and 2 * _num_ended(requests, window, requests.ok) >= num_answered > 0


def whole_run(requests: Requests) -> Window:
    """From the first measured send to the last measured end."""
    columns = requests.columns
    sent, end = columns.integers["sent_ns"], columns.integers["end_ns"]
    was_sent = sent.is_set & requests.measured
    if not was_sent.any():
        return Window(start_ns=0, end_ns=0, kind="empty")
    ends = np.where(end.is_set, np.maximum(end.values, requests.finish_ns), requests.finish_ns)
    first = int(sent.values[was_sent].min())
    return Window(start_ns=first, end_ns=max(first, int(ends[was_sent].max())), kind=WHOLE)


def weights(requests: Requests, window: Window) -> NDArray[np.float64]:
    """How much each request counts in the window's rates; shape [num_rows].

    A measured request that began in the window counts whole. The window opens while requests of the warm-up
    are still being answered and closes while measured ones are: those make up for these, so that neither a
    long answer nor a short window bends the rate. Hence of the warm-up requests that ended in it only as many
    count as measured ones were left unfinished at its end, each with the same share. What is counted is then
    never more than what was sent, nor that more than what was due.
    """
    began = requests.began_in(window)
    counts = began.astype(np.float64)
    if window.kind == WHOLE:
        return counts  # holds the measured requests from end to end
    columns = requests.columns
    sent, end = columns.integers["sent_ns"].is_set, columns.integers["end_ns"]
    ends = np.where(requests.ok, requests.finish_ns, end.values)
    ended = (requests.ok | end.is_set) & (ends <= window.end_ns)
    num_in = int((requests.warmup & requests.ok & window.holds(requests.finish_ns)).sum())
    num_out = int((began & sent & ~ended).sum())
    counts[requests.warmup] = min(1.0, num_out / num_in) if num_in else 1.0
    return counts


def _num_ended(requests: Requests, window: Window, rows: BoolRows) -> float:
    return float(weights(requests, window)[rows & window.holds(requests.finish_ns)].sum())


def rate_of(requests: Requests, window: Window, rows: BoolRows) -> float | None:
    """Requests of these rows that ended in the window, each with its weight, per second. None where the
    window tells no rate.
    """
    return _num_ended(requests, window, rows) / window.duration_s if _has_rate(requests, window) else None


def _has_rate(requests: Requests, window: Window) -> bool:
    """One request alone has a duration, and no rate: but for a window that the plan has set."""
    num_sent = int((requests.measured & requests.columns.integers["sent_ns"].is_set).sum())
    return window.duration_s > 0 and (window.kind == PLANNED or num_sent > 1)


def throughput(requests: Requests, window: Window, context: RunContext) -> dict[str, Any]:
    """Rates in the window, of successful requests, each with its weight (see `weights`).

    A request counts when its answer ends, input tokens count with the first output, output tokens when they
    come. Tokens that came before a request was cut off at the end of the drain have come. `offered` and
    `sent` are of the same requests over the same time: those due (sent, in a closed loop) in the window, and
    of them those that were sent, over more time where the last of them was sent after its end. `asked` is the
    mean rate of the whole plan, whatever became of it. All None where the window tells no rate.
    """
    asked = {"asked_requests_per_s": context.rate_asked_per_s}
    if not _has_rate(requests, window):
        return dict.fromkeys(RATES) | asked
    duration, columns, counts = window.duration_s, requests.columns, weights(requests, window)
    first, inputs = columns.integers["first_event_ns"], columns.integers["input_tokens"]
    prefilled = window.holds(np.where(first.is_set, first.values, requests.finish_ns)) & requests.ok
    has_input = bool(inputs.is_set.any())
    rows = prefilled & inputs.is_set
    num_input = float((inputs.values[rows] * counts[rows]).sum())
    num_output = _tokens_within(requests, window, counts)
    began, sent = requests.began_in(window), columns.integers["sent_ns"]
    sends = sent.values[began & sent.is_set]
    until = max(window.end_ns, int(sends.max())) if len(sends) else window.end_ns
    is_open = context.open_loop and bool(columns.integers["due_ns"].is_set.any())
    return {
        "requests_per_s": _num_ended(requests, window, requests.ok) / duration,
        "input_tokens_per_s": num_input / duration if has_input else None,
        "output_tokens_per_s": num_output / duration,
        "total_tokens_per_s": (num_input + num_output) / duration if has_input else None,
        "sent_requests_per_s": len(sends) / ((until - window.start_ns) / NS_PER_S),
        "offered_requests_per_s": int(began.sum()) / duration if is_open else None,
    } | asked


def _tokens_within(requests: Requests, window: Window, counts: NDArray[np.float64]) -> float:
    """Output tokens that came in the window, each with the weight of its request."""
    columns = requests.columns
    gave = requests.ok | (columns.labels["outcome"].among(Outcome.CANCELLED) & (columns.num_events > 0))
    by_event = gave & columns.has_event_tokens & (columns.num_events > 0)
    inside = window.holds(requests.finish_ns)
    starts = np.zeros(columns.num_rows, dtype=np.int64)
    rows = columns.num_events > 0
    starts[rows] = columns.event_ns[columns.event_offsets[:-1][rows]]
    # Whole requests first; only those that cross an edge of the window are looked at event by event.
    enclosed = by_event & inside & window.holds(starts)
    whole = (enclosed | (requests.ok & ~by_event & inside)) & requests.num_tokens.is_set
    total = float((requests.num_tokens.values[whole] * counts[whole]).sum())
    crossing = by_event & ~enclosed & (starts <= window.end_ns) & (requests.finish_ns >= window.start_ns)
    for row in np.flatnonzero(crossing & (counts > 0)):
        span = slice(columns.event_offsets[row], columns.event_offsets[row + 1])
        inside_ns = window.holds(columns.event_ns[span])
        total += float(columns.event_tokens[span][inside_ns].sum() * counts[row])
    return total
