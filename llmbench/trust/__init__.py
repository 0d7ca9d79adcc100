"""Whether a run's numbers can be believed: VALID, SUSPECT or INVALID, with reasons.

Each reason is a small pure function of the finished summary, so that a stored run can be judged again. A
reason gives what was measured, the limit, and what to do about it. INVALID: the figures describe something
else than the target. SUSPECT: they hold, with a caveat that a reader must know. One fact is one reason: what
is dropped is neither an error of the server nor late, and does not count again in the rate.

    workers     did the client's own processes keep up, and live
    sending     was what was asked for sent, and did it come to something
    instrument  were arrivals stamped when they came
    samples     was there enough to say what is said
    streams     are the streams streams
    answers     are the answers those asked for, their tokens counted
    steadiness  was it steady, did arrivals come as planned, what could a closed loop not see
"""

from __future__ import annotations

from typing import Any

from llmbench.trust import answers, instrument, samples, sending, steadiness, streams, workers
from llmbench.trust.reason import Summary

KINDS = (workers, sending, samples, instrument, streams, answers, steadiness)
CHECKS = tuple(check for kind in KINDS for check in kind.CHECKS)
RULES = tuple(rule for kind in KINDS for rule in kind.RULES)


def judge_trust(summary: Summary) -> dict[str, Any]:
    """The `verdict` of summary.json; the gravest reasons first."""
    found = [reason for check in CHECKS if (reason := check(summary)) is not None]
    codes = {reason["code"] for reason in found}
    told = [reason for reason in found if not codes & steadiness.SAID_BY.get(reason["code"], frozenset())]
    reasons = sorted(told, key=lambda reason: reason["severity"] != "INVALID")
    return {"status": reasons[0]["severity"] if reasons else "VALID", "reasons": reasons}


def rules_table() -> str:
    """Every code with its limits, as the README has it: a Markdown table."""
    rows = [("code", "measured", "SUSPECT", "INVALID", "what to do"), ("---",) * 5]
    rows += [(f"`{rule.code}`", rule.measured, rule.suspect, rule.invalid, rule.remedy) for rule in RULES]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
