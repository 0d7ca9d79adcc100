"""Whether the client's own processes kept up, and lived."""

from __future__ import annotations

from typing import Any

from llmbench.trust.reason import Check, Reason, Rule, Summary, reason

BUSY_SHARE = 0.90  # of a core: beyond it what a worker has to send and to read waits for it
SHORT_S = 2.0  # a run so short is all start


def _worker_died(summary: Summary) -> Reason | None:
    workers: list[dict[str, Any]] = summary["instrument"]["per_worker"]
    died = [one for one in workers if one["died"] is not None]
    if not died:
        return None
    others = f", and {len(died) - 1} more" if len(died) > 1 else ""
    return reason(
        "worker_died",
        "INVALID",
        len(died),
        0,
        f"worker {died[0]['worker']} of {len(workers)} {died[0]['died']}{others}; the rest was not sent",
        "look for what ended it (memory, a signal, the message above), and run it again",
    )


def _client_busy(summary: Summary) -> Reason | None:
    """The busiest worker, over the whole run."""
    instrument = summary["instrument"]
    workers: list[dict[str, Any]] = [one for one in instrument["per_worker"] if one["cpu_share"] is not None]
    busiest = max(workers, key=lambda one: one["cpu_share"], default=None)
    if busiest is None or busiest["cpu_share"] <= BUSY_SHARE:
        return None
    if summary["throughput_whole"]["window"]["duration_s"] < SHORT_S:
        return None
    share = busiest["cpu_share"]
    count, at_most = instrument["workers"] or 1, instrument["workers_at_most"] or 1
    who = "the client" if count == 1 else f"worker {busiest['worker']} of {count}"
    return reason(
        "client_busy",
        "SUSPECT",
        share,
        BUSY_SHARE,
        f"{who} used {share * 100:.0f} % of a core (limit {BUSY_SHARE * 100:.0f} %): it cannot keep up",
        f"share the work: set instrument.workers: {min(at_most, count * 2)}"
        if at_most > count
        else "lower the load, or send it from a machine with more cores to spare",
    )


CHECKS: tuple[Check, ...] = (_worker_died, _client_busy)
RULES = (
    Rule(
        code="worker_died",
        measured="client processes that ended before their share was sent",
        invalid="> 0",
        remedy="look for what ended it (memory, a signal), and run it again",
    ),
    Rule(
        code="client_busy",
        measured=f"share of a core that the busiest client process used, in runs of {SHORT_S:g} s and more",
        suspect=f"> {BUSY_SHARE * 100:.0f} %",
        remedy="more workers (`instrument.workers`) where cores are free, else ask for less",
    ),
)
