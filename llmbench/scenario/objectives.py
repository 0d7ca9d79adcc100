"""Service level objectives: `ttft: {p95: 500ms}`, `errors: 1%`, `goodput: 95%`."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from llmbench.scenario.fields import LatencyS, RatePerS, Share, Stat, TokenRatePerS
from llmbench.scenario.frozen import Frozen

LATENCY_METRICS = (
    "ttft",
    "ttft_due",
    "tpot",
    "itl",
    "chunk_gap",
    "e2e",
    "e2e_due",
    "time_to_first_answer",
    "normalized_latency",
    "send_lag",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SloLimit:
    """One limit, in seconds for latencies, as a share (0 to 1) for errors and goodput, else per second.

    `stat` is p50, p99.5, p999, mean or max for latencies; `share` for errors and goodput; `rate` for
    throughputs.
    """

    metric: str
    stat: str
    limit: float
    higher_is_better: bool


class Slo(Frozen):
    """Limits on latency statistics, on the share of errors, and minimums of goodput and throughput."""

    ttft: dict[Stat, LatencyS] = Field({}, description="Time to first token, from the request sent.")
    ttft_due: dict[Stat, LatencyS] = Field(
        {}, description="Time to first token, from when the request was due."
    )
    tpot: dict[Stat, LatencyS] = Field({}, description="Time per output token after the first.")
    itl: dict[Stat, LatencyS] = Field({}, description="Gaps between tokens.")
    chunk_gap: dict[Stat, LatencyS] = Field({}, description="Raw gaps between stream chunks.")
    e2e: dict[Stat, LatencyS] = Field({}, description="Request sent to last token.")
    e2e_due: dict[Stat, LatencyS] = Field({}, description="Request due to last token.")
    time_to_first_answer: dict[Stat, LatencyS] = Field(
        {}, description="Request sent to the first output that is not reasoning."
    )
    normalized_latency: dict[Stat, LatencyS] = Field({}, description="E2E divided by output tokens.")
    send_lag: dict[Stat, LatencyS] = Field({}, description="How late requests were sent (open loop).")
    errors: Share | None = Field(None, description="Largest share of requests that may fail.")
    goodput: Share | None = Field(
        None, description="Smallest share of requests that meet every per-request limit."
    )
    requests_per_s: RatePerS | None = Field(None, description="Smallest throughput of requests.")
    output_tokens_per_s: TokenRatePerS | None = Field(
        None, description="Smallest throughput of output tokens."
    )

    @property
    def limits(self) -> tuple[SloLimit, ...]:
        """Every limit, in the order of the metrics above."""
        limits = [
            SloLimit(metric=metric, stat=stat, limit=limit, higher_is_better=False)
            for metric in LATENCY_METRICS
            for stat, limit in getattr(self, metric).items()
        ]
        for metric, stat, higher in (
            ("errors", "share", False),
            ("goodput", "share", True),
            ("requests_per_s", "rate", True),
            ("output_tokens_per_s", "rate", True),
        ):
            limit = getattr(self, metric)
            if limit is not None:
                limits.append(SloLimit(metric=metric, stat=stat, limit=limit, higher_is_better=higher))
        return tuple(limits)


def quantile(stat: str) -> float | None:
    """The quantile (0 to 1) of `p95`, `p99.5` or `p999`; None for mean, max, share and rate."""
    if stat == "p999":
        return 0.999
    return float(stat[1:]) / 100 if stat.startswith("p") else None
