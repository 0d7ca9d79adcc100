"""A run folder of many requests, made in seconds: `python tests/llmbench/make_big_run.py FOLDER`.

200,000 requests of 200 tokens by default. Then time the report with
`/usr/bin/time -v llmbench report FOLDER/…`; `--tokens-per-event 3` makes every stream speculative.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from llmbench.columns import (
    COUNTS,
    DURATIONS,
    INSTANTS,
    LABELS,
    TEXTS,
    IntColumn,
    LabelColumn,
    RequestColumns,
)
from llmbench.context import RunContext, StatedLimit
from llmbench.parquet import write_requests
from llmbench.report.folder import RunFolder, create

RATE_PER_S = 100
SECOND_NS = 1_000_000_000


def make_columns(num_requests: int, num_events: int, tokens_per_event: int) -> RequestColumns:
    """Poisson arrivals, lognormal TTFT, gaps of about 20 ms; one request in 500 fails."""
    chance = np.random.default_rng(5)
    due = np.cumsum(chance.exponential(SECOND_NS / RATE_PER_S, num_requests)).astype(np.int64)
    sent = due + chance.integers(20_000, 200_000, num_requests)
    events = np.empty((num_requests, num_events), dtype=np.int64)
    events[:, 0] = sent + (chance.lognormal(-1.6, 0.4, num_requests) * SECOND_NS).astype(np.int64)
    for column in range(1, num_events):
        events[:, column] = events[:, column - 1] + chance.integers(15_000_000, 25_000_000, num_requests)
    first, end = events[:, 0].copy(), events[:, -1] + 1_000_000
    tokens = np.full(num_requests * num_events, tokens_per_event, dtype=np.int32)
    if tokens_per_event > 1:
        tokens[::3] = 1
    failed = np.arange(num_requests) % 500 == 0
    return RequestColumns(
        index=np.arange(num_requests),
        integers=integers(due, sent, first, end, tokens.reshape(num_requests, num_events).sum(axis=1)),
        labels=labels(num_requests, failed),
        texts={name: [None] * num_requests for name in TEXTS},
        event_offsets=np.arange(0, num_requests * num_events + 1, num_events),
        event_ns=events.ravel(),
        event_tokens=tokens,
        has_event_tokens=np.ones(num_requests, dtype=np.bool_),
    )


def integers(
    due: np.ndarray, sent: np.ndarray, first: np.ndarray, end: np.ndarray, output: np.ndarray
) -> dict[str, IntColumn]:
    always, never = np.ones(len(due), dtype=np.bool_), np.zeros(len(due), dtype=np.bool_)
    given = {
        "due_ns": due,
        "sent_ns": sent,
        "headers_ns": first - 1_000_000,
        "first_event_ns": first,
        "first_answer_ns": first,
        "end_ns": end,
        "input_tokens_asked": np.full(len(due), 512),
        "input_tokens": np.full(len(due), 515),
        "output_tokens_asked": output,
        "output_tokens": output,
        "http_status": np.full(len(due), 200),
        "worker": np.zeros(len(due), dtype=np.int64),
        "reads": np.full(len(due), 200),
    }
    names = [name for name in (*INSTANTS, *DURATIONS, *COUNTS) if name not in given]
    absent = dict.fromkeys(names, np.zeros(len(due), dtype=np.int64))
    return {name: IntColumn(values, always) for name, values in given.items()} | {
        name: IntColumn(values, never) for name, values in absent.items()
    }


def labels(num_requests: int, failed: np.ndarray) -> dict[str, LabelColumn]:
    constant = {
        "phase": "measure",
        "tenant": "a",
        "token_source": "usage",
        "finish_reason": "length",
    }
    same = np.zeros(num_requests, dtype=np.int32)
    made = {name: LabelColumn(same, (label,)) for name, label in constant.items()}
    made["outcome"] = LabelColumn(failed.astype(np.int32), ("ok", "bad_stream"))
    made["error_kind"] = LabelColumn(failed.astype(np.int32) - 1, ("truncated",))
    made["warnings"] = LabelColumn(same - 1, ())
    assert set(made) == set(LABELS)
    return made


def make_big_run(
    base: Path, *, num_requests: int = 200_000, num_events: int = 200, tokens_per_event: int = 1
) -> RunFolder:
    folder = create(base, "big", datetime.now(UTC))
    columns = make_columns(num_requests, num_events, tokens_per_event)
    context = RunContext(
        name="big",
        open_loop=True,
        planned=num_requests,
        window_ns=(0, int(columns.integers["due_ns"].values[-1])),
        rate_asked_per_s=float(RATE_PER_S),
        slo=(
            StatedLimit(metric="ttft", stat="p95", limit=0.5),
            StatedLimit(metric="tpot", stat="p95", limit=0.05),
        ),
    )
    folder.write_run({"measurement": context.to_json()})
    write_requests(folder.requests, columns)
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", type=Path)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--tokens-per-event", type=int, default=1)
    asked = parser.parse_args()
    made = make_big_run(
        asked.base,
        num_requests=asked.requests,
        num_events=asked.events,
        tokens_per_event=asked.tokens_per_event,
    )
    print(made.path)  # noqa: T201  a script of its own
