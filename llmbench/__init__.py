"""llmbench: load tests for OpenAI-compatible LLM endpoints.

The public names are imported on first use, so that `import llmbench` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmbench.bench import RunResult
    from llmbench.bench import run_scenario as run
    from llmbench.errors import CannotMeasure, LlmbenchError, ScenarioError, UsageError
    from llmbench.measurement import MeasureResult, measure
    from llmbench.scenario.load import load_scenario, parse_scenario
    from llmbench.scenario.model import Scenario

__version__ = "0.1.0"

__all__ = [
    "CannotMeasure",
    "LlmbenchError",
    "MeasureResult",
    "RunResult",
    "Scenario",
    "ScenarioError",
    "UsageError",
    "__version__",
    "load_scenario",
    "measure",
    "parse_scenario",
    "run",
]

_HOMES = {
    "CannotMeasure": "llmbench.errors",
    "LlmbenchError": "llmbench.errors",
    "MeasureResult": "llmbench.measurement",
    "RunResult": "llmbench.bench",
    "Scenario": "llmbench.scenario.model",
    "ScenarioError": "llmbench.errors",
    "UsageError": "llmbench.errors",
    "load_scenario": "llmbench.scenario.load",
    "measure": "llmbench.measurement",
    "parse_scenario": "llmbench.scenario.load",
    "run": "llmbench.bench",
}

_NAMES_THERE = {"run": "run_scenario"}


def __getattr__(name: str) -> Any:
    """The public name, from the module where it lives (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'llmbench' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), _NAMES_THERE.get(name, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
