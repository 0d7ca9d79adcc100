"""What is fixed about a run before its first request. Data only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from llmbench.load.plan import Plan
from llmbench.load.workers import Workers
from llmbench.replay.reach import Reached
from llmbench.scenario.model import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class RunIdentity:
    """What is fixed about a run before its first request. `engine` names the bundled engine's model."""

    scenario: Scenario
    plan: Plan
    reached: Reached
    salt: str
    started: datetime
    command_line: Sequence[str] = ()
    engine: str | None = None
    workers: Workers = field(default_factory=Workers)
