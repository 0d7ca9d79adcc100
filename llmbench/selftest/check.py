"""One expectation beside what was measured, and the table of them all. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

SCHEMA: Final = "llmbench.selftest/1"
_WHAT, _EXPECTED, _MEASURED = 33, 18, 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was expected, what was measured, and whether that is near enough, in words."""

    case: str
    what: str
    expected: str
    measured: str
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """How much of a load was measured here. `note` says what it was bounded by."""

    what: str
    value: float
    unit: str
    note: str


def near(case: str, what: str, expected: float, measured: float | None, within: float, unit: str) -> Check:
    """A figure that must be within so much of the expected one."""
    return Check(
        case=case,
        what=what,
        expected=f"{expected:.4g} ± {within:.3g} {unit}".strip(),
        measured="nothing" if measured is None else f"{measured:.4g} {unit}".strip(),
        passed=measured is not None and abs(measured - expected) <= within,
    )


def at_most(case: str, what: str, limit: float, measured: float | None, unit: str) -> Check:
    """A figure that must not be above the limit."""
    return Check(
        case=case,
        what=what,
        expected=f"≤ {limit:.3g} {unit}".strip(),
        measured="nothing" if measured is None else f"{measured:.3g} {unit}".strip(),
        passed=measured is not None and measured <= limit,
    )


def at_least(case: str, what: str, limit: float, measured: float | None, unit: str) -> Check:
    """A figure that must not be below the limit."""
    return Check(
        case=case,
        what=what,
        expected=f"≥ {limit:.3g} {unit}".strip(),
        measured="nothing" if measured is None else f"{measured:.3g} {unit}".strip(),
        passed=measured is not None and measured >= limit,
    )


def same(case: str, what: str, expected: object, measured: object) -> Check:
    """Something that is either right or not."""
    return Check(
        case=case,
        what=what,
        expected=_short(expected, _EXPECTED),
        measured=_short(measured, _MEASURED),
        passed=expected == measured,
    )


def _short(value: object, width: int) -> str:
    text = "none" if value is None else value if isinstance(value, str) else str(value)
    return text if len(text) <= width else text[: width - 1] + "…"


def table(checks: Sequence[Check], ceilings: Sequence[Ceiling]) -> str:
    """Everything for a terminal, in 80 columns."""
    lines = [f"  {'':<{_WHAT}} {'expected':<{_EXPECTED}} {'measured':<{_MEASURED}}"]
    case = None
    for check in checks:
        if check.case != case:
            lines += ["", check.case] if case is not None else [check.case]
            case = check.case
        word = "ok" if check.passed else "FAIL"
        what = _short(check.what, _WHAT)
        lines.append(
            f"  {what:<{_WHAT}} {check.expected:<{_EXPECTED}} {check.measured:<{_MEASURED}} {word}".rstrip()
        )
    if ceilings:
        lines += ["", "this machine's ceilings, the server beside the client"]
        lines += [f"  {f'{one.value:,.0f} {one.unit}':<{_WHAT}} {one.note}" for one in ceilings]
    return "\n".join([*lines, "", _conclusion(checks)]) + "\n"


def _conclusion(checks: Sequence[Check]) -> str:
    failed = sum(not check.passed for check in checks)
    if failed:
        return f"FAIL: {failed} of {len(checks)} checks; do not trust this instrument here as it is"
    return f"PASS: {len(checks)} checks"


def document(checks: Iterable[Check], ceilings: Iterable[Ceiling], took_s: float) -> Mapping[str, Any]:
    """The same as plain JSON values."""
    found = [asdict(check) for check in checks]
    return {
        "schema": SCHEMA,
        "passed": all(check["passed"] for check in found),
        "took_s": took_s,
        "checks": found,
        "ceilings": [asdict(one) for one in ceilings],
    }
