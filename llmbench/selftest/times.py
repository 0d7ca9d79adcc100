"""Whether TTFT and ITL are those of the server, by its own log."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmbench.calibration.error import Pair
from llmbench.selftest.check import Check, near
from llmbench.selftest.measured import run_logged

_STREAMS, _TTFT_MS, _ITL_MS, _NUM_TOKENS = 16, 100, 10, 40


def exact_times() -> list[Check]:
    """Reported percentiles beside those of the log, the same requests on both sides."""
    seen = run_logged(
        ["--ttft", f"{_TTFT_MS}ms", "--itl", f"{_ITL_MS}ms"],
        {
            "load": {"arrivals": "closed", "concurrency": _STREAMS, "requests": 7 * _STREAMS},
            "workload": {"kind": "inline", "prompts": ["Tell me more."], "output_tokens": _NUM_TOKENS},
        },
    )
    case = f"exact times: {_STREAMS} streams, TTFT {_TTFT_MS} ms, a token every {_ITL_MS} ms"
    checks = []
    known_ms = {"ttft": true_ttft_ms(seen.pairs), "itl": _true_gaps(seen.pairs)}
    for metric, true in known_ms.items():
        for percent, within in ((50, 0.5), (99, 2.0)):
            known = float(np.percentile(true, percent)) if len(true) else float("inf")
            measured = seen.metric_ms(metric, f"p{percent}")
            checks.append(
                near(case, f"{metric.upper()} p{percent}, as logged", known, measured, within, "ms")
            )
    return checks


def true_ttft_ms(pairs: Sequence[Pair]) -> NDArray[np.float64]:
    """What the server logged of each request: its first event after its arrival."""
    return np.array([(pair.true[1] - pair.true[0]) / 1e6 for pair in pairs])


def _true_gaps(pairs: Sequence[Pair]) -> NDArray[np.float64]:
    return np.concatenate([np.diff(pair.true[1:]) / 1e6 for pair in pairs]) if pairs else np.empty(0)
