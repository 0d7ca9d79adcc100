"""Whether the instrument is exact enough for what it reports: its calibrated error beside the figure."""

from __future__ import annotations

from llmbench.trust.reason import Check, Reason, Rule, Summary, percent, reason

ERROR_SHARE = 0.05  # of the figure
CHECKED = (("ttft", "p50"), ("ttft", "p99"), ("itl", "p50"))


def _instrument_error(summary: Summary) -> Reason | None:
    """The figure that the error is largest beside. What was calibrated at a lower load says too little, not
    too much: it counts as well.
    """
    errors = summary["instrument"].get("calibrated_error") or {}
    found = []
    for metric, stat in CHECKED:
        error, value = errors.get(f"{metric}_{stat}_s"), summary["metrics"][metric][stat]
        if error is not None and value and error / value > ERROR_SHARE:
            found.append((error / value, metric, stat, error, value))
    if not found:
        return None
    share, metric, stat, error, value = max(found)
    return reason(
        "instrument_error",
        "SUSPECT",
        share,
        ERROR_SHARE,
        f"{metric.upper()} {stat} {value * 1e3:.3g} ms is known to ± {error * 1e3:.2g} ms only, "
        f"{percent(share)} of it (limit 5 %)",
        _exacter(summary),
    )


def _exacter(summary: Summary) -> str:
    """What to do, given who stamps arrivals and whether the error was found just now."""
    if (summary["instrument"].get("calibration") or {}).get("source") == "cache":
        return "calibrate anew (instrument.calibrate: true) on a quiet machine, or ask for a lower rate"
    if summary["instrument"].get("timestamps_note") == "instrument.timestamps: loop":
        return "let the kernel stamp arrivals (instrument.timestamps: auto), or ask for a lower rate"
    return "move other work off this machine, or ask for a lower rate"


CHECKS: tuple[Check, ...] = (_instrument_error,)
RULES = (
    Rule(
        code="instrument_error",
        measured="the instrument's calibrated error against TTFT p50, TTFT p99 and ITL p50",
        suspect=f"> {percent(ERROR_SHARE)}",
        remedy="let the kernel stamp, give the client more of the machine, or ask for less",
    ),
)
