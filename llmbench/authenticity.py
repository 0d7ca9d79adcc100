"""Whether the streams are streams: how the output of each answer was spread over its time.

From outside only arrivals are seen. What follows from them is told apart, per stream:

    one_piece    the output came at once and at the end, or (nearly) all of it in one event. A proxy held it
                 back, or the server only pretends to stream; which of the two cannot be seen, but for one
                 event: a proxy does not join events, so that is what was sent
    at_once      it came at once, and may have been written as fast: too short an answer, or too late a client
    blocks       events come in groups of (nearly) equal size with pauses between: a buffer that fills
    speculative  several tokens at a time, their number varying, as speculative decoding gives
    intervals    an event every n tokens, as a stream interval gives
    tokens       an event a token

Two things look like buffering and are not. A client that wakes late finds several events in one read: nothing
is held against a stream that its lag explains. A server may be fast, and a first token slow (a queue): output
is called one piece only where its tokens came faster than any model writes them (`FASTEST_TOKEN_NS`), though
the answer as a whole took long enough to write them one by one. Reads are not counted: what one read brought
bears one stamp, and a burst may take several. Of several choices (n > 1) a server sends one event each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmbench.columns import RequestColumns, take_rows
from llmbench.metrics import NS_PER_S, BoolRows, Requests

NEAR_ZERO_NS = 200_000  # gaps up to it are within one burst: the next segment, not the next token
FASTEST_TOKEN_NS = 200_000  # of one stream: 5,000 tokens a second
AT_END_SHARE = 0.98  # of E2E had passed when the last nine tenths of the events began
TAIL_SHARE = 0.9  # of the events; a first one may have been let through
ONE_EVENT_SHARE = 0.9  # of the tokens in one event
ONE_EVENT_TOKENS = 32  # fewer may be what a speculative step or a stream interval gives
FIRST_READ_BYTES = 1 << 12  # of a burst, at most (client.kernel_stamps)
STAMPED_TOKENS = 8  # with stamps of their own, that need no look at the lag
MIN_EVENTS = 4  # below, a stream shows no shape
CROWDED = 4  # events an instant
MIN_GROUPED_EVENTS = 8
GROUP_EVENTS = 4.0  # in the mean; fewer together are a speculative step
GROUPED_GAP_SHARE = 0.6
LULL_FLOOR_NS = 5_000_000  # shorter pauses between groups no reader notices
LULL_LAGS = 2.0  # times the client's own lag
SAME_SIZE = 0.15  # groups within so much of the median, or one event, are of one size
SAME_SHARE = 0.75  # of groups that must be
INTERVAL_SHARE = 0.9  # of streams or events that an interval of n tokens must explain
MAIN_SHARE = 0.8  # of the streams that are of the kind the run is called by
UNKNOWN_LAG_NS = 1_000_000  # assumed where nobody measured the client's lag
_MOST_STREAMS, _MOST_EVENTS = 20_000, 4_000_000  # that are looked at; of more, every second, third, …
_CALLS = ("tool_calls", "function_call")  # servers that parse tool calls send them whole

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """Runs of events with near-zero gaps. `row` [G] is each one's stream, `lull_ns` the pause before it
    (no meaning where `is_first`).
    """

    row: NDArray[np.int64]
    size: NDArray[np.int64]
    lull_ns: NDArray[np.int64]
    is_first: BoolRows
    is_last: BoolRows


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shapes:
    """The streams looked at, [n] each. `num_tokens` leaves out reasoning that was not streamed; `has_tokens`
    says where tokens can be laid to events, `is_exact` where the server said how many each held.
    """

    columns: RequestColumns
    groups: _Groups
    num_events: NDArray[np.int64]
    num_tokens: Numbers
    has_tokens: BoolRows
    is_exact: BoolRows
    num_near: NDArray[np.int64]
    num_groups: NDArray[np.int64]
    mean_size: Numbers
    mean_lull_ns: Numbers
    is_one_piece: BoolRows
    is_one_event: BoolRows
    is_crowded: BoolRows
    ttft_share: Numbers


def stream_facts(requests: Requests, *, lag_s: float | None) -> dict[str, Any]:
    """`streams` of summary.json, over measured successes that were streamed.

    `lag_s` is how late the client reads (the tail of its loop lag). `kind` is that of four fifths of the
    streams that show one, "mixed" where there is none, None where no stream shows any.
    """
    rows = _sampled(requests)
    if not len(rows):
        return _no_facts()
    lag_ns = UNKNOWN_LAG_NS if lag_s is None else lag_s * NS_PER_S
    shapes = _shapes(take_rows(requests.columns, rows), requests.num_tokens.values[rows], lag_ns)
    kinds, blocks, interval = _kinds(shapes, lag_ns)
    judged = sum(int(kind.sum()) for kind in kinds.values())
    shares = {name: int(kind.sum()) / judged for name, kind in kinds.items() if kind.any()}
    main = next((name for name, share in shares.items() if share >= MAIN_SHARE), "mixed" if shares else None)
    num_gaps = int((shapes.num_events - 1).sum())
    return {
        "kind": main,
        "judged": judged,
        "shares": shares,
        "one_event_share": int(shapes.is_one_event.sum()) / judged if judged else None,
        "one_piece_ttft_share": _median(shapes.ttft_share[kinds["one_piece"]]),
        "events_per_read": _events_per_read(shapes),
        "tokens_per_event": _tokens_per_event(shapes, interval),
        "tokens_at_a_time": _tokens_at_a_time(shapes),
        "near_zero_gap_share": int(shapes.num_near.sum()) / num_gaps if num_gaps else None,
        "ttft_share_of_e2e_p50": _median(shapes.ttft_share),
        "blocks": blocks,
        "client_lag_s": lag_s,
    }


def _no_facts() -> dict[str, Any]:
    names = [
        "kind",
        "one_event_share",
        "one_piece_ttft_share",
        "events_per_read",
        "tokens_per_event",
        "tokens_at_a_time",
    ]
    names += ["near_zero_gap_share", "ttft_share_of_e2e_p50", "blocks", "client_lag_s"]
    return {**dict.fromkeys(names), "judged": 0, "shares": {}}


def _median(values: Numbers) -> float | None:
    return float(np.median(values)) if len(values) else None


def _sampled(requests: Requests) -> NDArray[np.int64]:
    """The rows that are looked at: all streams, or every so many of them."""
    rows = np.flatnonzero(requests.succeeded & requests.measures["ttft"].defined)
    num_events = int(requests.columns.num_events[rows].sum())
    step = math.ceil(max(len(rows) / _MOST_STREAMS, num_events / _MOST_EVENTS, 1))
    return rows[::step]


def _shapes(columns: RequestColumns, total_tokens: NDArray[np.int64], lag_ns: float) -> _Shapes:
    """Every row has an event, and was sent."""
    groups = _groups(columns)
    num, events = columns.num_rows, columns.num_events
    num_groups = np.bincount(groups.row, minlength=num)
    inner, later = ~groups.is_last, ~groups.is_first
    sums = np.bincount(groups.row[inner], weights=groups.size[inner], minlength=num)
    lulls = np.bincount(groups.row[later], weights=groups.lull_ns[later], minlength=num)
    pauses = np.maximum(num_groups - 1, 1)
    num_tokens = _visible_tokens(columns, total_tokens)
    one_event = _is_one_event(columns, num_tokens)
    first, last = (
        columns.event_ns[columns.event_offsets[:-1]],
        columns.event_ns[columns.event_offsets[1:] - 1],
    )
    sent = columns.integers["sent_ns"].values
    e2e = np.maximum(last - sent, 1)
    shared_out = [code for code in columns.labels["warnings"].names if "tokens_shared_out" in code.split(",")]
    return _Shapes(
        columns=columns,
        groups=groups,
        num_events=events,
        num_tokens=num_tokens,
        has_tokens=columns.has_event_tokens,
        is_exact=columns.has_event_tokens & ~columns.labels["warnings"].among(*shared_out),
        num_near=events - num_groups,
        num_groups=num_groups,
        mean_size=sums / pauses,
        mean_lull_ns=lulls / pauses,
        is_one_piece=_is_one_piece(columns, num_tokens, num_groups, lag_ns) & ~one_event,
        is_one_event=one_event & (e2e >= FASTEST_TOKEN_NS * num_tokens),
        is_crowded=(events >= MIN_EVENTS) & (num_groups == 1) & (CROWDED * _num_instants(columns) <= events),
        ttft_share=(first - sent) / e2e,
    )


def _num_instants(columns: RequestColumns) -> NDArray[np.int64]:
    """At how many different instants each stream's events came."""
    new = np.diff(columns.event_ns, prepend=columns.event_ns[:1]) > 0
    new[columns.event_offsets[:-1]] = True
    return np.add.reduceat(new, columns.event_offsets[:-1], dtype=np.int64)


def _groups(columns: RequestColumns) -> _Groups:
    events, starts = columns.event_ns, columns.event_offsets[:-1]
    gaps = np.diff(events, prepend=events[:1])
    opens = gaps > NEAR_ZERO_NS
    opens[starts] = True
    at = np.flatnonzero(opens)
    row = np.repeat(np.arange(columns.num_rows), columns.num_events)[at]
    changes = np.diff(row) > 0
    return _Groups(
        row=row,
        size=np.diff(np.append(at, len(events))),
        lull_ns=gaps[at],
        is_first=np.concatenate([[True], changes]),
        is_last=np.concatenate([changes, [True]]),
    )


def _visible_tokens(columns: RequestColumns, total: NDArray[np.int64]) -> Numbers:
    """Tokens that were streamed, at least one an event: reasoning that the server keeps to itself is in its
    usage and in no event.
    """
    reasoning = columns.integers["reasoning_tokens"]
    first, answer = columns.integers["first_event_ns"], columns.integers["first_answer_ns"]
    hidden = reasoning.is_set & answer.is_set & (answer.values == first.values)
    visible = total - np.where(hidden, reasoning.values, 0)
    return np.maximum(visible, columns.num_events).astype(np.float64)


def _is_one_event(columns: RequestColumns, num_tokens: Numbers) -> BoolRows:
    """(Nearly) the whole answer in one event, as far as tokens can be laid to events."""
    starts = columns.event_offsets[:-1]
    most = np.maximum.reduceat(columns.event_tokens, starts)
    total = np.maximum(np.add.reduceat(columns.event_tokens, starts, dtype=np.int64), 1)
    whole = columns.has_event_tokens & (most >= ONE_EVENT_SHARE * total) & (num_tokens >= ONE_EVENT_TOKENS)
    return whole & ~columns.labels["finish_reason"].among(*_CALLS)


def _is_one_piece(
    columns: RequestColumns, num_tokens: Numbers, num_groups: NDArray[np.int64], lag_ns: float
) -> BoolRows:
    """Did the output come at the end, faster than any model writes, though there had been time to write it?

    A client that was late by its lag may have seen as one what came spread over so much time. Where the
    kernel stamped, only in a burst's first read: what later ones brought came between the stamps.
    """
    events, num = columns.event_ns, columns.num_events
    skipped = np.floor(num * (1 - TAIL_SHARE)).astype(np.int64)
    tail_start = events[columns.event_offsets[:-1] + skipped]
    last, sent = events[columns.event_offsets[1:] - 1], columns.integers["sent_ns"].values
    tail_tokens = num_tokens * (num - skipped) / num
    at_end = tail_start - sent >= AT_END_SHARE * (last - sent)
    tail_ns = last - tail_start
    stamped = _after_first_read(columns, num_groups) * tail_tokens
    too_fast = (tail_ns + lag_ns < FASTEST_TOKEN_NS * (tail_tokens - 1)) | (
        (stamped >= STAMPED_TOKENS) & (tail_ns < FASTEST_TOKEN_NS * (stamped - 1))
    )
    had_time = last - sent >= FASTEST_TOKEN_NS * num_tokens
    found: BoolRows = (num >= MIN_EVENTS) & at_end & too_fast & had_time
    return found


def _after_first_read(columns: RequestColumns, num_groups: NDArray[np.int64]) -> Numbers:
    """At least which share of each stream's last burst came after its first read; 0 where nobody knows."""
    body, reads = columns.integers["body_bytes"], columns.integers["reads"]
    known = columns.integers["read_lag_ns"].is_set & body.is_set & (body.values > 0) & reads.is_set
    known &= reads.values - (num_groups - 1) >= 2  # every other burst took a read at least
    share = 1 - FIRST_READ_BYTES / np.where(known, body.values, FIRST_READ_BYTES)
    return np.where(known, np.maximum(share, 0.0), 0.0)


def _kinds(shapes: _Shapes, lag_ns: float) -> tuple[dict[str, BoolRows], dict[str, Any] | None, int | None]:
    """(which streams are of each kind, what the blocks are, tokens of an interval)."""
    one_piece = shapes.is_one_piece | shapes.is_one_event
    at_once = shapes.is_crowded & ~one_piece
    spread = ~one_piece & ~at_once & shapes.has_tokens
    paused = shapes.mean_lull_ns > max(LULL_FLOOR_NS, LULL_LAGS * lag_ns)
    shown = spread & (shapes.num_events >= MIN_GROUPED_EVENTS) & (shapes.num_groups >= 2) & paused
    near = shapes.num_near >= GROUPED_GAP_SHARE * (shapes.num_events - 1)
    grouped = shown & near & (shapes.mean_size >= GROUP_EVENTS)
    few = shown & ~grouped & (shapes.mean_size >= 1.5)
    blocks = _blocks(shapes, grouped)
    others = spread & ~grouped & ~few & (shapes.num_events >= MIN_EVENTS)
    extra = shapes.num_tokens - shapes.num_events
    single = others & (extra <= np.maximum(2, 0.1 * shapes.num_events))
    several = others & ~single
    interval = _interval(shapes, several)
    in_blocks = grouped if blocks is not None else np.zeros_like(grouped)
    in_intervals = several if interval is not None else np.zeros_like(several)
    return (
        {
            "one_piece": one_piece,
            "at_once": at_once,
            "blocks": in_blocks,
            "speculative": (grouped & ~in_blocks) | few | (several & ~in_intervals),
            "intervals": in_intervals,
            "tokens": single,
        },
        blocks,
        interval,
    )


def _blocks(shapes: _Shapes, grouped: BoolRows) -> dict[str, Any] | None:
    """Size and pace of the blocks, where the groups of these streams are of one size; None where not.

    The last group of a stream is what was left over, and the first of several may be shorter by the head.
    """
    groups = shapes.groups
    chosen = grouped[groups.row] & ~groups.is_last
    later = chosen & (~groups.is_first | (shapes.num_groups[groups.row] < 3))
    sizes = groups.size[later]
    if not len(sizes):
        return None
    median = float(np.median(sizes))
    if np.mean(np.abs(sizes - median) <= max(1.0, SAME_SIZE * median)) < SAME_SHARE:
        return None
    body, num = shapes.columns.integers["body_bytes"], shapes.num_events
    known = grouped & body.is_set
    an_event = body.values[known].sum() / num[known].sum() if known.any() else None
    pauses = groups.lull_ns[grouped[groups.row] & ~groups.is_first]
    return {
        "events": median,
        "bytes": None if an_event is None else float(median * an_event),
        "every_s": float(np.median(pauses)) / NS_PER_S,
    }


def _interval(shapes: _Shapes, several: BoolRows) -> int | None:
    """n, where these streams have an event every n tokens; None where their number varies.

    Where the server says how many tokens each event holds, all but a stream's first and last must hold n.
    Else the number of events decides: ceil(N / n), one more where the first token goes out at once, one
    token fewer where the end of the sequence is counted and not shown.
    """
    if not several.any():
        return None
    columns, exact = shapes.columns, several & shapes.is_exact
    if exact.sum() * 2 >= several.sum():
        row = np.repeat(np.arange(columns.num_rows), columns.num_events)
        inside = exact[row]
        inside[columns.event_offsets[:-1]] = False
        inside[columns.event_offsets[1:] - 1] = False
        held = columns.event_tokens[inside]
        usual = int(np.median(held))
        return usual if usual > 1 and np.mean(held == usual) >= INTERVAL_SHARE else None
    total, events = shapes.num_tokens[several], shapes.num_events[several]
    about = float(np.median(total / events))
    tried = range(max(2, math.floor(about)), math.ceil(about) + 2)
    fits = {size: float(np.mean(_fits(total, events, size))) for size in tried}
    best = max(fits, key=lambda size: fits[size])
    return best if fits[best] >= INTERVAL_SHARE else None


def _fits(total: Numbers, events: NDArray[np.int64], size: int) -> BoolRows:
    without_end = np.ceil((total - 1) / size)
    found: BoolRows = (
        (events == np.ceil(total / size)) | (events == without_end) | (events == 1 + without_end)
    )
    return found


def _events_per_read(shapes: _Shapes) -> float | None:
    reads = shapes.columns.integers["reads"]
    known = reads.is_set & (reads.values > 0)
    return float(shapes.num_events[known].sum() / reads.values[known].sum()) if known.any() else None


def _tokens_per_event(shapes: _Shapes, interval: int | None) -> dict[str, Any] | None:
    """`mean` over all events, `max` of one, `interval` n where each holds n, `exact`: the server said."""
    known = shapes.has_tokens
    if not known.any():
        return None
    held = shapes.columns.event_tokens[np.repeat(known, shapes.num_events)]
    return {
        "mean": float(shapes.num_tokens[known].sum() / shapes.num_events[known].sum()),
        "max": int(held.max()),
        "interval": interval,
        "exact": bool(shapes.is_exact[known].all()),
    }


def _tokens_at_a_time(shapes: _Shapes) -> float | None:
    """Tokens that came together, in one event or in several."""
    known = shapes.has_tokens
    return float(shapes.num_tokens[known].sum() / shapes.num_groups[known].sum()) if known.any() else None
