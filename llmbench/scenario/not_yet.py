"""What a scenario may say and this version cannot do: one table, so that it is refused rather than ignored.

The keys are part of the scenario's language and of its types; whoever implements one deletes its line here,
and checks, messages and the JSON Schema follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmbench.scenario.rules import FILE_WORKLOADS, Broken, Path, value_at, workloads


def _says_something(value: Any) -> bool:
    """Anything but nothing: `{}` and mappings of empty mappings ask for nothing."""
    if isinstance(value, Mapping):
        return any(_says_something(item) for item in value.values())
    return value is not None and value not in ([], ())


def _is_demanded(value: Any) -> bool:
    """`true` or a URL; `auto` leaves the choice to llmbench."""
    word = value.lower() if isinstance(value, str) else ""
    return value is True or word in ("true", "yes", "on") or "://" in word


@dataclass(frozen=True, slots=True, kw_only=True)
class NotYet:
    """A key that is refused: with `value`, or whenever `asks` says so. `workload` is every workload."""

    key: str
    value: str | None = None
    asks: Callable[[Any], bool] = _says_something
    instead: str = ""

    def is_asked(self, value: Any) -> bool:
        """Whether the value at the key asks for what is not there."""
        return self.asks(value) if self.value is None else value == self.value

    @property
    def text(self) -> str:
        """What is wrong and what to do."""
        kinds = ", ".join(IMPLEMENTED_WORKLOADS)
        return f"not in this version; {self.instead or f'write one of {kinds}'}"


NOT_YET = (
    NotYet(key="matrix", instead="run it once for each combination, with --set"),
    NotYet(key="cost", instead="remove it"),
    NotYet(key="server_metrics", asks=_is_demanded, instead="write auto or false"),
    NotYet(key="load.until", instead="write duration: 60s or requests: 500"),
    NotYet(key="workload.slo", instead="write the limits under slo, for all workloads"),
    NotYet(key="workload.kind", value="sharegpt"),
    NotYet(key="workload.kind", value="servegen"),
    NotYet(key="workload.kind", value="openai-batch"),
    NotYet(key="workload.kind", value="sessions"),
)


def values_not_yet(key: str) -> tuple[str, ...]:
    """The values of `key` that are refused, so that nothing offers them."""
    return tuple(entry.value for entry in NOT_YET if entry.key == key and entry.value is not None)


IMPLEMENTED_WORKLOADS = tuple(
    kind for kind in ("synthetic", "inline", *FILE_WORKLOADS) if kind not in values_not_yet("workload.kind")
)


def asked_too_early(tree: Any) -> list[Broken]:
    """Every place in a scenario's tree that asks for what this version cannot do."""
    return [
        (path, entry.text)
        for entry in NOT_YET
        for path in _places(entry.key, tree)
        if entry.is_asked(value_at(tree, path))
    ]


def _places(key: str, tree: Any) -> list[Path]:
    first, *rest = key.split(".")
    if first != "workload":
        return [(first, *rest)]
    return [(*root, *rest) for root, _ in workloads(tree)] if isinstance(tree, Mapping) else []
