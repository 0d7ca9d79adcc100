"""Whether a run's numbers can be believed: VALID, SUSPECT or INVALID, with reasons.

Each reason is a small pure function of the finished summary, so that a stored run can be judged again. A
reason gives what was measured, the limit, and what to do about it. INVALID: the figures describe something
else than the target. SUSPECT: they hold, with a caveat that a reader must know. One fact is one reason: what
is dropped is neither an error of the server nor late, and does not count again in the rate.

    sending     was what was asked for sent, and did it come to something
    instrument  were arrivals stamped when they came
    calibration is the instrument exact enough for what it reports
    streams     are the streams streams
    answers     are the answers those asked for, their tokens counted
"""

from __future__ import annotations

from typing import Any

from llmbench.trust import answers, calibration, instrument, sending, streams
from llmbench.trust.reason import Summary

CHECKS = (*sending.CHECKS, *instrument.CHECKS, *calibration.CHECKS, *streams.CHECKS, *answers.CHECKS)


def judge_trust(summary: Summary) -> dict[str, Any]:
    """The `verdict` of summary.json; the gravest reasons first."""
    found = [reason for check in CHECKS if (reason := check(summary)) is not None]
    reasons = sorted(found, key=lambda reason: reason["severity"] != "INVALID")
    return {"status": reasons[0]["severity"] if reasons else "VALID", "reasons": reasons}
