"""What a trace holds: rate, lengths, burstiness, what its prompts share. Pure; seconds and shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from llmbench.workload.traces.trace import Ints, Trace

NS_PER_S = 1e9
WINDOWS_S = (1.0, 10.0, 60.0)
_RATE_BINS = 60
_MOST_ROWS_HASHED = 200_000


def facts_of(trace: Trace) -> dict[str, Any]:
    """Plain JSON values.

    `burstiness` is the coefficient of variation of the gaps: 1 for a Poisson process, more for bursts.
    `dispersion` is the variance of the number of arrivals in a window over its mean (index of dispersion of
    counts; Cox and Lewis 1966): 1 for a Poisson process at every window length, growing with it where bursts
    are longer than the window. `prefix_share` is what an endless prefix cache would find (of the first
    200,000 rows).
    """
    at_s = trace.offset_ns / NS_PER_S
    duration_s = float(at_s[-1]) if len(at_s) else 0.0
    gaps = np.diff(at_s)
    mean_gap = float(gaps.mean()) if len(gaps) else 0.0
    return {
        "path": trace.path,
        "rows": trace.num_file_rows,
        "requests": len(trace),
        "duration_s": duration_s,
        "requests_per_s": (len(trace) - 1) / duration_s if duration_s else None,
        "peak_per_s": {f"{window:g}s": _peak(at_s, window) for window in WINDOWS_S if window <= duration_s},
        "same_instant_share": float(np.mean(gaps == 0)) if len(gaps) else None,
        "burstiness": float(gaps.std() / mean_gap) if mean_gap else None,
        "dispersion": {f"{window:g}s": _dispersion(at_s, window) for window in WINDOWS_S},
        "input_tokens": _lengths(trace.input_tokens),
        "output_tokens": _lengths(trace.output_tokens),
        "tokens_per_s": {
            "input": float(trace.input_tokens.sum()) / duration_s if duration_s else None,
            "output": float(trace.output_tokens.sum()) / duration_s if duration_s else None,
        },
        "prefix_share": _prefix_share(trace),
        "block_tokens": None if trace.blocks is None else trace.blocks.tokens,
        "rate_over_time": _rates(at_s, duration_s),
        "notes": list(trace.notes),
    }


def _counts(at_s: npt.NDArray[np.float64], window_s: float) -> Ints:
    num = int(at_s[-1] // window_s)  # whole windows only: the last one would look like a lull
    return np.bincount((at_s // window_s).astype(np.int64), minlength=num)[:num]


def _peak(at_s: npt.NDArray[np.float64], window_s: float) -> float | None:
    counts = _counts(at_s, window_s)
    return float(counts.max()) / window_s if len(counts) else None


def _dispersion(at_s: npt.NDArray[np.float64], window_s: float) -> float | None:
    counts = _counts(at_s, window_s) if len(at_s) else np.empty(0)
    return float(counts.var() / counts.mean()) if len(counts) >= 10 and counts.mean() > 0 else None


def _lengths(tokens: Ints) -> dict[str, float]:
    points = np.percentile(tokens, (50, 90, 99))
    return {
        "mean": float(tokens.mean()),
        "min": int(tokens.min()),
        **{f"p{name}": float(value) for name, value in zip((50, 90, 99), points, strict=True)},
        "max": int(tokens.max()),
    }


def _prefix_share(trace: Trace) -> float | None:
    if trace.blocks is None:
        return None
    rows = np.arange(min(len(trace), _MOST_ROWS_HASHED))
    return trace.blocks.rows(rows).hit_share(trace.input_tokens[rows])


def _rates(at_s: npt.NDArray[np.float64], duration_s: float) -> list[float]:
    """Requests per second in equal parts of the trace."""
    if not duration_s:
        return []
    counts, _ = np.histogram(at_s, bins=_RATE_BINS, range=(0.0, duration_s))
    rates: list[float] = (counts / (duration_s / _RATE_BINS)).tolist()
    return rates
