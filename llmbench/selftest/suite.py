"""All cases in order, and the ceilings; within a minute on two slow cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from llmbench.errors import CannotMeasure
from llmbench.selftest.ceilings import most_events, most_requests, most_streams
from llmbench.selftest.check import Ceiling, Check
from llmbench.selftest.schedule import buffering_proxy, known_schedule, overloaded_client, stalled_server
from llmbench.selftest.streams import stream_corpus
from llmbench.selftest.times import exact_times
from llmbench.selftest.tokens import known_tokens

BUDGET_S: Final = 57.0
_SLOW_REQUESTS_PER_S: Final = 2_000.0  # where the ceiling was not asked for: enough for any one Python client

# In their order: seconds that each takes on two slow cores, and what it is called while it runs.
CASES: Final[dict[str, tuple[float, str]]] = {
    "schedule": (4.0, "a known schedule"),
    "tokens": (6.0, "known tokens"),
    "times": (5.5, "exact times"),
    "corpus": (8.0, "the stream corpus"),
    "stall": (4.5, "a stall of the server"),
    "proxy": (2.5, "a buffering proxy"),
    "ceilings": (19.0, "this machine's ceilings"),
    "overload": (4.0, "an overloaded client"),
}


@dataclass(slots=True)
class Outcome:
    """What a self-test found so far."""

    checks: list[Check] = field(default_factory=list)
    ceilings: list[Ceiling] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def run_suite(names: Sequence[str], tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """Runs these cases (all, where none is named), in the order of CASES; `tell` hears what is going on.

    A case that cannot be measured at all is a failed check of its own. Raises KeyboardInterrupt as runs do.
    """
    chosen = [name for name in CASES if not names or name in names]
    began_s = time.monotonic()
    outcome = Outcome()
    for position, name in enumerate(chosen):
        left_s = sum(CASES[later][0] for later in chosen[position:])
        tell(f"{position + 1}/{len(chosen)} {CASES[name][1]}; about {left_s:.0f} s left")
        try:
            _run(name, outcome, began_s, sum(CASES[later][0] for later in chosen[position + 1 :]))
        except CannotMeasure as error:
            said = str(error).splitlines()[0]
            outcome.checks.append(
                Check(case=CASES[name][1], what=said, expected="a run", measured="none", passed=False)
            )
    outcome.took_s = time.monotonic() - began_s
    return outcome


def _run(name: str, outcome: Outcome, began_s: float, after_s: float) -> None:
    match name:
        case "ceilings":
            outcome.ceilings += [most_events(), most_requests()]
            outcome.ceilings.append(most_streams(began_s + BUDGET_S - after_s))
        case "overload":
            known = [one.value for one in outcome.ceilings if one.what == "requests"]
            outcome.checks += overloaded_client(known[0] if known else _SLOW_REQUESTS_PER_S)
        case _:
            outcome.checks += _CHECKED[name]()


_CHECKED: Final[dict[str, Callable[[], list[Check]]]] = {
    "schedule": known_schedule,
    "tokens": known_tokens,
    "times": exact_times,
    "corpus": stream_corpus,
    "stall": stalled_server,
    "proxy": buffering_proxy,
}
