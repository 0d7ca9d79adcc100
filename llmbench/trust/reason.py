"""What a reason is made of, and the line of the documented table that stands for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Summary = Mapping[str, Any]
Reason = dict[str, Any]
Check = Callable[[Summary], Reason | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A code as the README's table has it.

    `suspect` and `invalid` say from where on a run is called that, empty where never. `remedy` is what to do
    in general; a reason's hint fits what the user had set.
    """

    code: str
    measured: str
    suspect: str = ""
    invalid: str = ""
    remedy: str


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


def setting(summary: Summary, name: str) -> Any:
    """What the user had set, or the target took (`context.Settings`); None where nobody noted it."""
    return (summary["run"].get("settings") or {}).get(name)


def less_load(summary: Summary) -> str:
    """How to ask for less, by what decides the load."""
    if not summary["run"]["open_loop"]:
        return "ask for a lower concurrency"
    wanted = {"burst": "smaller bursts (load.burst.size)", "trace": "a slower replay (load.speed)"}
    return f"ask for {wanted.get(setting(summary, 'arrivals'), 'a lower rate')}"


def limits_on(summary: Summary, *metrics: str) -> list[str]:
    """Those of the metrics that the scenario sets a limit on."""
    limited = {check["metric"] for check in summary["gate"]["checks"]}
    return [name for name in metrics if name in limited]


def was_cut_short(summary: Summary) -> bool:
    """Whether the run was interrupted or killed."""
    return bool(summary["run"]["interrupted"] or summary["run"]["killed"])
