"""Whether the instrument was in time to see what it reports.

Where the kernel stamps arrivals, a late event loop moves no stamp. Where the loop stamps them, an arrival is
late by as much as the loop was, and a tail may be off by as much as the tail of the loop's lag. A loop that
regularly sleeps through whole gaps (its lag's p99 beyond the ITL's p50, or beyond a fifth of the TTFT's)
describes itself, not the server: INVALID.
"""

from __future__ import annotations

from llmbench.trust.reason import Check, Reason, Rule, Summary, less_load, percent, reason

LOOP_LAG_FLOOR_S = 0.002  # what any machine gives with something else to do
LOOP_LAG_SHARE_OF_ITL = 0.25  # of the ITL p50
LOOP_LAG_SHARE_OF_ITL_INVALID = 1.0
LOOP_LAG_SHARE_OF_TTFT = 0.05  # of the TTFT p50
LOOP_LAG_SHARE_OF_TTFT_INVALID = 0.20
SHARED_SHARE = 0.005  # of events that bear the stamp of a later one: half of what a p99 is made of
SHARED_BOUND_SHARE = 0.5  # of the ITL p50, by which their stamps may be late
CLOCK_STEP_S = 0.001


def _loop_late(summary: Summary) -> Reason | None:
    """The lag of a loop that stamps, against the shortest times it stamps."""
    instrument = summary["instrument"]
    lag = instrument["loop_lag_p99_s"]
    if instrument.get("timestamps") == "kernel" or lag is None or lag <= LOOP_LAG_FLOOR_S:
        return None
    found = []
    for name, limit, invalid in (
        ("itl", LOOP_LAG_SHARE_OF_ITL, LOOP_LAG_SHARE_OF_ITL_INVALID),
        ("ttft", LOOP_LAG_SHARE_OF_TTFT, LOOP_LAG_SHARE_OF_TTFT_INVALID),
    ):
        value = summary["metrics"][name]["p50"]
        if value and lag / value > limit:
            found.append((lag / value > invalid, lag / value / limit, name, limit, value))
    if not found:
        return None
    is_invalid, _, name, limit, value = max(found)
    return reason(
        "loop_late",
        "INVALID" if is_invalid else "SUSPECT",
        lag / value,
        limit,
        f"arrivals were stamped up to {lag * 1e3:.3g} ms late (p99 of the loop lag), "
        f"{percent(lag / value)} of {name.upper()} p50 (limit {limit * 100:g} %)",
        _unhurried(summary),
    )


def _unhurried(summary: Summary) -> str:
    """What to do about a late loop, given why the kernel does not stamp."""
    note = summary["instrument"].get("timestamps_note")
    if note == "instrument.timestamps: loop":
        return "let the kernel stamp arrivals (instrument.timestamps: auto), or move other work off"
    if note is not None and "TLS" in note:
        return "move other work off this machine, or measure over plain http: there the kernel stamps"
    return f"move other work off this machine, or {less_load(summary)}"


def _stamps_shared(summary: Summary) -> Reason | None:
    """Events read together: only the last one's stamp is exact. Servers that send several at once do it
    too: a caveat only where the read itself was late.
    """
    instrument, itl = summary["instrument"], summary["metrics"]["itl"]["p50"]
    stamps, lag = instrument.get("stamps") or {}, instrument["read_lag_p99_s"]
    share, bound = stamps.get("shared_share"), stamps.get("shared_bound_p50_s")
    if not share or share <= SHARED_SHARE or not itl or lag is None or bound is None:
        return None
    if min(bound, lag) <= max(SHARED_BOUND_SHARE * itl, LOOP_LAG_FLOOR_S):
        return None
    return reason(
        "stamps_shared",
        "SUSPECT",
        share,
        SHARED_SHARE,
        f"{percent(share)} of events were read together with later ones, {lag * 1e3:.3g} ms after these had "
        f"arrived (p99): TTFT and ITL p99 may be off by as much",
        f"move other work off this machine, or {less_load(summary)}",
    )


def _clock_step(summary: Summary) -> Reason | None:
    step = summary["instrument"].get("clock_step_s")
    if not step or abs(step) < CLOCK_STEP_S:
        return None
    return reason(
        "clock_step",
        "SUSPECT",
        step,
        CLOCK_STEP_S,
        f"the wall clock was set by {step:+.3g} s during the run; arrivals in the second before may be off",
        "latencies are on a clock that cannot be set; run again if the second before mattered",
    )


CHECKS: tuple[Check, ...] = (_loop_late, _stamps_shared, _clock_step)

RULES = (
    Rule(
        code="loop_late",
        measured=f"p99 of the loop lag where the loop stamps, from {LOOP_LAG_FLOOR_S * 1e3:g} ms on, "
        "against ITL p50; against TTFT p50",
        suspect=f"> {percent(LOOP_LAG_SHARE_OF_ITL)}; > {percent(LOOP_LAG_SHARE_OF_TTFT)}",
        invalid=f"> {percent(LOOP_LAG_SHARE_OF_ITL_INVALID)}; > {percent(LOOP_LAG_SHARE_OF_TTFT_INVALID)}",
        remedy="let the kernel stamp (`instrument.timestamps: auto`), or give the client more of the machine",
    ),
    Rule(
        code="stamps_shared",
        measured=f"events read together with later ones, where the read lag p99 is above "
        f"{SHARED_BOUND_SHARE:g} ITL p50",
        suspect=f"> {percent(SHARED_SHARE)}",
        remedy="give the client more of the machine, or ask for less",
    ),
    Rule(
        code="clock_step",
        measured="by how much the wall clock was set during the run",
        suspect=f"≥ {CLOCK_STEP_S * 1e3:g} ms",
        remedy="run again, if the second before mattered",
    ),
)
