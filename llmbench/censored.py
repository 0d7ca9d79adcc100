"""Percentiles over answers that were not waited for to their end: Kaplan and Meier's estimate.

A request cut off at the end of the drain, by an interrupt or by its timeout took at least as long as it
had lasted by then. Leaving it out makes a slow server look fast, counting it as infinitely slow (`attempts`)
may make it look slower than it is. The product-limit estimate (Kaplan and Meier 1958, "Nonparametric
estimation from incomplete observations", JASA 53) uses exactly what is known: F(t) = 1 - prod over ends
t_i <= t of (1 - 1/n_i), n_i the requests neither ended nor cut off before t_i. It supposes that being cut
off says nothing about how long was left. Where the curve ends below a percentile, that is not known: None.

A request that failed by itself (an error, a broken stream) did not take longer: it is no observation here,
and infinity in `attempts`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmbench.metrics import NS_PER_S, Requests, unfinished
from llmbench.stats import sample, samples_needed

Values = NDArray[Any]


def curve(ended: Values, cut_off: Values) -> tuple[Values, Values]:
    """(t, F): the distinct ends in order and the estimated share at or below each; shapes [k].

    An end at the instant at which another was cut off counts as the earlier of the two.
    """
    ends, counts = np.unique(ended, return_counts=True)
    ordered, cuts = np.sort(ended), np.sort(cut_off)
    at_risk = (
        len(ended)
        + len(cut_off)
        - np.searchsorted(ordered, ends, side="left")
        - np.searchsorted(cuts, ends, side="left")
    )
    return ends, 1 - np.cumprod(1 - counts / at_risk)


def percentile(ended: Values, cut_off: Values, percent: float) -> float | None:
    """The percentile of all of them, in the unit of the values; None where the curve does not reach it.

    Interpolated as the plain percentiles are (Hyndman and Fan's definition 7): an end lies at the share below
    it, n / (n - 1) times. Without anything cut off it is the plain percentile, to the last bit.
    """
    if not len(ended):
        return None
    if not len(cut_off):
        return sample(ended).percentile(percent)
    num, share = len(ended) + len(cut_off), percent / 100
    ends, at_most = curve(ended, cut_off)
    if share > at_most[-1] + 1e-12:
        return None
    # Of several equal ends the last lies at the share at or below it less its own part, a first one below.
    scale = num / (num - 1)
    below = np.concatenate([[0.0], at_most[:-1]])
    positions = np.column_stack([below * scale, np.maximum(below, at_most - 1 / num) * scale]).ravel()
    return float(np.interp(share, positions, np.repeat(ends, 2)))


def censored(requests: Requests, percentiles: Mapping[str, float]) -> dict[str, Any]:
    """`censored` of summary.json: TTFT and E2E over measured successes and what was cut off."""
    cut = unfinished(requests) & requests.measured
    sent, end = (requests.columns.integers[name].values for name in ("sent_ns", "end_ns"))
    lasted = end - sent
    facts: dict[str, Any] = {"count": int(cut.sum())}
    for name in ("ttft", "e2e"):
        measure = requests.measures[name]
        began = measure.defined & cut if name == "ttft" else np.zeros_like(cut)
        ended = measure.of(requests.succeeded | began)
        waiting = lasted[cut & ~began]
        facts[name] = _block(ended, waiting, percentiles)
    return facts


def _block(ended: Values, waiting: Values, percentiles: Mapping[str, float]) -> dict[str, Any]:
    """From nanoseconds to seconds."""
    count = len(ended) + len(waiting)
    values: dict[str, Any] = {"unit": "s", "count": count, "unfinished": len(waiting)}
    for name, percent in percentiles.items():
        value = percentile(ended, waiting, percent) if count >= samples_needed(percent) else None
        values[name] = None if value is None else value / NS_PER_S
    return values
