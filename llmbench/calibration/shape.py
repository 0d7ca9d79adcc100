"""The shape of a load: what of it makes a client late. And how a few seconds of the same shape are made.

What a client has to do per second is streams × events a second and each; what it has to do at once is a round
of all streams. Both are kept when a run is replayed. The length of an answer and the wait for its first token
are not: idle time costs nothing, and answers of about a second give enough of them in a few seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np

from llmbench.columns import RequestColumns

MOST_EVENTS_PER_S = (
    12_000.0  # what the null target carries beside its client on two slow cores, with a margin
)
LONGEST_TTFT_S = 0.05
LONGEST_GAP_S = 0.05
ANSWER_S = 0.5  # of an answer, after its first token
FEWEST_EVENTS = 8
ENOUGH_ANSWERS = 40  # with few streams, answers are cut shorter for so many
WARMUP_S = 0.5
MEASURED_S = 4.0
COVERS = 0.9  # a calibration at this share of a load's streams and events is one of that load
BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A load as its client sees it. `concurrency` is the peak; times are medians, in seconds."""

    concurrency: int
    requests_per_s: float
    events_per_s: float
    events_per_answer: int
    tokens_per_event: int
    ttft_s: float
    gap_s: float
    body_bytes: int
    transport: str
    timestamps: str
    workers: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` reads them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Self:
        """What `to_json` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        kinds = {"int": int, "float": float, "str": str}
        return cls(**{item.name: kinds[str(item.type)](plain[item.name]) for item in fields(cls)})

    def rounded(self) -> dict[str, Any]:
        """The shape in powers of two (those above), for a key: loads of about the same size share it."""
        return {
            name: _power_of_two(value) if isinstance(value, int | float) else value
            for name, value in self.to_json().items()
            if name not in _NO_PART_OF_THE_KEY
        }

    def covers(self, wanted: Shape) -> bool:
        """Whether what is known of this load holds for the wanted one: it is as large, or nearly."""
        return (
            self.concurrency >= COVERS * wanted.concurrency
            and self.events_per_s >= COVERS * wanted.events_per_s
            and self.requests_per_s >= COVERS * wanted.requests_per_s
        )


# They follow from the others, or have next to no bearing on how late a client is.
_NO_PART_OF_THE_KEY = frozenset({"events_per_answer", "ttft_s", "gap_s"})


def _power_of_two(value: float) -> float:
    return float(2.0 ** math.ceil(math.log2(value))) if value > 0 else 0.0


def shape_of(columns: RequestColumns, summary: Mapping[str, Any]) -> Shape | None:
    """The shape of a run that has ended; None where nothing was streamed."""
    instrument, metrics = summary["instrument"], summary["metrics"]
    streamed = columns.num_events > 1
    ttft, gap = metrics["ttft"]["p50"], metrics["chunk_gap"]["p50"]
    rate = summary["throughput_whole"]["requests_per_s"]
    if not streamed.any() or ttft is None or gap is None or not rate:
        return None
    events = float(np.mean(columns.num_events[streamed]))
    prompt = summary["metrics"]["input_tokens"]["p50"]
    return Shape(
        concurrency=peak_in_flight(columns),
        requests_per_s=float(rate),
        events_per_s=float(rate) * events,
        events_per_answer=int(np.median(columns.num_events[streamed])),
        tokens_per_event=max(1, round(summary["tokens"]["per_event"] or 1)),
        ttft_s=float(ttft),
        gap_s=float(gap),
        body_bytes=round((prompt or 0) * BYTES_PER_TOKEN),
        transport=str(instrument.get("transport") or "auto"),
        timestamps=str(instrument.get("timestamps") or "auto"),
        workers=int(instrument.get("workers") or 1),
    )


def peak_in_flight(columns: RequestColumns) -> int:
    """The most requests that were sent and had not ended at one instant; at least 1."""
    sent, end = columns.integers["sent_ns"], columns.integers["end_ns"]
    known = sent.is_set & end.is_set
    starts, ends = np.sort(sent.values[known]), np.sort(end.values[known])
    if not len(starts):
        return 1
    in_flight = np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")
    return int(in_flight.max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A few seconds of a shape: what the null target does and what is asked of it. `share` of the events a
    second is what of the shape the null target can carry.
    """

    streams: int
    ttft_s: float
    gap_s: float
    num_events: int
    tokens_per_event: int
    share: float

    @property
    def events_per_s(self) -> float:
        """What a target that is in time sends."""
        return self.streams * self.num_events / (self.ttft_s + (self.num_events - 1) * self.gap_s)

    def mock_flags(self) -> list[str]:
        """The null target's command line."""
        flags = {
            "ttft": f"{self.ttft_s:.6f}s",
            "itl": f"{self.gap_s / self.tokens_per_event:.9f}s",
            "tokens-per-chunk": str(self.tokens_per_event),
        }
        return [word for name, value in flags.items() for word in (f"--{name}", value)]

    def scenario(self, url: str, shape: Shape) -> dict[str, Any]:
        """The scenario that is run against it: streams in step, as those of an engine that batches are."""
        return {
            "name": "calibration",
            "target": {"url": url, "model": "mock", "ignore_eos": False},
            "load": {
                "arrivals": "closed",
                "concurrency": self.streams,
                "warmup": f"{WARMUP_S}s",
                "duration": f"{MEASURED_S}s",
            },
            "workload": {
                "kind": "inline",
                "prompts": [_prompt(shape.body_bytes)],
                "output_tokens": self.num_events * self.tokens_per_event,
            },
            "instrument": {
                "transport": shape.transport,
                "timestamps": shape.timestamps,
                "workers": shape.workers,
                "calibrate": False,
            },
        }


def _prompt(num_bytes: int) -> str:
    return ("Tell me more. " * (num_bytes // 14 + 1))[: max(14, num_bytes)].strip()


def replay_of(shape: Shape) -> Replay:
    """How the shape is replayed: its streams and its gaps, cut to what the null target carries."""
    gap_s = min(max(shape.gap_s, 1e-5), LONGEST_GAP_S)
    ttft_s = min(shape.ttft_s, LONGEST_TTFT_S)
    longest_s = min(ANSWER_S, MEASURED_S * shape.concurrency / ENOUGH_ANSWERS)
    num_events = max(2, min(shape.events_per_answer, max(FEWEST_EVENTS, 1 + int(longest_s / gap_s))))
    answer_s = ttft_s + (num_events - 1) * gap_s
    # the peak is a moment; what must be carried all the time is the rate of the events, at least once over
    wanted = shape.concurrency * num_events / answer_s
    share = min(1.0, MOST_EVENTS_PER_S / wanted)
    return Replay(
        streams=max(1, int(shape.concurrency * share)),
        ttft_s=ttft_s,
        gap_s=gap_s,
        num_events=num_events,
        tokens_per_event=shape.tokens_per_event,
        share=share,
    )
