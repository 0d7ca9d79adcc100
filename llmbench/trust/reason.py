"""What a reason is made of, for the checks of every module here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Summary = Mapping[str, Any]
Reason = dict[str, Any]
Check = Callable[[Summary], Reason | None]


def reason(code: str, severity: str, measured: Any, limit: Any, message: str, hint: str) -> Reason:
    """One entry of `verdict.reasons`: what was measured, the limit, and what to do about it."""
    return {
        "code": code,
        "severity": severity,
        "measured": measured,
        "limit": limit,
        "message": message,
        "hint": hint,
    }


def percent(share: float) -> str:
    """A share for people."""
    return f"{share * 100:.2g} %" if share < 0.995 else f"{share * 100:.0f} %"


def beyond(share: float, limit: float) -> str:
    """A share above its limit, with as many digits as it takes to tell the two apart: 5.02 %, not 5 %."""
    if share >= 0.995:
        return percent(share)
    texts = [f"{share * 100:.{digits}g}" for digits in range(2, 17)]
    return next((text for text in texts if float(text) != limit * 100), texts[-1]) + " %"
