"""Mistakes in a scenario: found, put into words with a remedy, and laid out for a terminal of 80 columns."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import ErrorDetails

from llmbench.scenario import units
from llmbench.scenario.address import mask_address
from llmbench.scenario.keys import guess, model_at
from llmbench.scenario.masking import MASK, is_secret_name
from llmbench.scenario.not_yet import IMPLEMENTED_WORKLOADS, values_not_yet
from llmbench.scenario.options import KeyProblems
from llmbench.scenario.rules import Path, value_at
from llmbench.scenario.source import Document, Flaw, Place

_WIDTH = 80
_WIDEST_KEY = 30
_LONGEST_VALUE = 24
_LOOKS_SECRET = re.compile(
    r"^(sk|pk|hf|gsk|xai|nvapi|ghp|bearer|basic|akia)[-_ ]|^(?=.*[0-9])(?=.*[A-Za-z])[\w+=-]{16,}$",
    re.IGNORECASE,
)
_EXAMPLES = {
    "target": "target: {url: http://127.0.0.1:8000}",
    "load": "load: {arrivals: poisson, rate: 4/s, duration: 60s}",
    "workloads": "workload: {kind: synthetic, input_tokens: 512, output_tokens: 128}",
    "arrivals": "arrivals: poisson, or closed, constant, gamma, burst, trace",
    "kind": f"kind: synthetic, or {', '.join(IMPLEMENTED_WORKLOADS[1:])}",
    "for": "for: 30s",
    "every": "every: 1s",
    "size": "size: 8",
    "per_hour": "per_hour: 3.50 USD",
    "tokens": "tokens: 256",
    "values": "values: [16, 64, 256]",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One mistake: where it stands, the key and value as written (secrets masked), and what to do."""

    path: Path
    place: Place
    key: str
    text: str

    @property
    def where(self) -> str:
        """`line 7`, or the option it came from; empty for a scenario made in Python."""
        if self.place.origin != "file":
            return self.place.origin
        return "" if self.place.line is None else f"line {self.place.line}"


def from_flaw(flaw: Flaw) -> Mistake:
    return Mistake(path=flaw.path, place=flaw.place, key=shown_key(flaw.path, flaw.place), text=flaw.text)


def at(document: Document, path: Path, text: str) -> Mistake:
    """A mistake at `path`, or at the nearest thing around it that was written."""
    place = document.place(path)
    exact = document.places.get(path)
    return Mistake(path=path, place=place, key=shown_key(path, exact or Place()), text=text)


def shown_key(path: Path, place: Place) -> str:
    """`load.rate: 4`: the dotted path and the value as written, shortened, without secrets."""
    dotted = _dotted(path)
    if place.written is None:
        return dotted
    return f"{dotted}: {_shown_value(path, place.written)}".strip(": ").rstrip()


def _shown_value(path: Path, written: str) -> str:
    value = " ".join(written.split())
    names = [str(part) for part in path]
    if any(is_secret_name(name) for name in names) or _LOOKS_SECRET.search(value):
        return value if re.fullmatch(r"\$\{\w+(:-)?\}|", value) else MASK
    value = mask_address(value)
    return value if len(value) <= _LONGEST_VALUE else value[: _LONGEST_VALUE - 1] + "…"


def from_validation(error: ErrorDetails, document: Document) -> list[Mistake]:
    """A type's complaint in the file's own words; none where another mistake explains it."""
    path = _path_as_written(error["loc"], document.tree)
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, KeyProblems):
        return [at(document, (*path, key), text) for key, text in cause.problems]
    if error["type"] == "too_short" and value_at(document.tree, path) != []:
        return []  # counted without its broken items
    return [_mistake(error, path, document)]


def _mistake(error: ErrorDetails, path: Path, document: Document) -> Mistake:
    kind = error["type"]
    if kind == "missing":
        name = str(path[-1])
        if name == "workloads":
            path = (*path[:-1], "workload")
        return at(document, path, f"missing; write {_EXAMPLES.get(name, _number_example(path))}")
    if kind == "extra_forbidden":
        return _unknown_key(path, document)
    if kind == "literal_error":
        return at(document, path, _unknown_word(error, document, path))
    if kind == "value_error":
        return at(document, path, str(error.get("ctx", {}).get("error", error["msg"])))
    if kind in ("model_type", "dict_type", "model_attributes_type", "dataclass_type"):
        return at(document, path, _mapping_remedy(path, value_at(document.tree, path)))
    if kind in ("tuple_type", "list_type"):
        return at(document, path, "must be a list, as in [a, b]")
    if kind == "too_short":
        return at(document, path, "is empty; give at least one")
    return at(document, path, error["msg"])


def _unknown_key(path: Path, document: Document) -> Mistake:
    found = guess(str(path[-1]), path[:-1])
    mistake = at(document, path, found.remedy)
    if found.path is not None and any(is_secret_name(str(part)) for part in found.path):
        return Mistake(path=path, place=mistake.place, key=f"{_dotted(path)}: {MASK}", text=mistake.text)
    return mistake


def _unknown_word(error: ErrorDetails, document: Document, path: Path) -> str:
    known = re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", "")))
    key = ".".join("workload" if part == "workloads" else str(part) for part in path if isinstance(part, str))
    options = [option for option in known if option not in values_not_yet(key)]
    value = value_at(document.tree, path)
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in options:
        return f"write {word} (lower case)"
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    return f"unknown; did you mean {close[0]}?" if close else f"unknown; write one of {', '.join(options)}"


def _mapping_remedy(path: Path, value: Any) -> str:
    name = str(path[-1]) if path else ""
    if len(path) >= 2 and path[-2] == "slo":
        return _statistic_remedy(value)
    model = model_at(path)
    if name in _EXAMPLES:
        return f"must be a mapping; write {_EXAMPLES[name]}"
    keys = ", ".join(list(model.model_fields)[:4]) if model is not None else "key: value"
    return f"must be a mapping, with keys such as {keys}"


def _statistic_remedy(value: Any) -> str:
    """What a limit without its statistic should have been, with the user's own value where it is one."""
    try:
        units.parse_latency(value)
    except ValueError:
        given = units.bare_number(value)
        if given is None:
            return "needs a statistic; write {p95: 500ms}"
        return f"needs a statistic and a unit; write {{p95: {given:g}s}} or {{p95: {given:g}ms}}"
    return f"needs a statistic; write {{p95: {value.strip()}}}"


def _number_example(path: Path) -> str:
    name = str(path[-1])
    if name == "sigma":
        return "sigma: 0.6"
    return f"{name}: 1s" if "think_time" in path else f"{name}: 100"


def _path_as_written(location: Sequence[str | int], tree: Any) -> Path:
    """The error's location in the file's own structure: shorthands have no `fixed` and no `values`."""
    parts = [part for part in location if part != "[key]"]
    if parts[:2] == ["workloads", 0] and isinstance(tree, Mapping) and tree.get("workloads") is None:
        parts = ["workload", *parts[2:]]
    path: list[str | int] = []
    current = tree
    for part in parts:
        if isinstance(current, Mapping):
            current = current.get(part)
        elif isinstance(current, list):
            if part == "values":
                continue
            current = current[part] if isinstance(part, int) and part < len(current) else None
        elif current is not None or part == "fixed":
            break  # a scalar stands where the type expected something deeper
        path.append(part)
    return tuple(path)


def layout(label: str, mistakes: Iterable[Mistake], noun: str = "mistake") -> str:
    """`chat.yaml: 3 mistakes`, then one aligned row each, in the order of the file."""
    rows = sorted(mistakes, key=lambda mistake: (mistake.place.origin != "file", mistake.place.line or 0))
    plural = "" if len(rows) == 1 else "s"
    where_width = max((len(row.where) for row in rows), default=0)
    where_width += 4 if where_width else 0
    keys = [len(row.key) for row in rows if len(row.key) <= _WIDEST_KEY]
    key_width = max(keys, default=0) + (3 if keys else 0)
    lines = [f"{label}: {len(rows)} {noun}{plural}"]
    for row in rows:
        lines += _row(row, where_width, key_width)
    return "\n".join(lines)


def _row(row: Mistake, where_width: int, key_width: int) -> list[str]:
    start = "  " + row.where.ljust(where_width)
    column = len(start) + key_width
    if len(row.key) <= _WIDEST_KEY and column <= 56:
        text = textwrap.wrap(row.text, _WIDTH - column, break_long_words=False, break_on_hyphens=False) or [
            ""
        ]
        return [
            (start + row.key.ljust(key_width) + text[0]).rstrip(),
            *(" " * column + line for line in text[1:]),
        ]
    indent = len(start) + 2
    text = textwrap.wrap(row.text, _WIDTH - indent, break_long_words=False, break_on_hyphens=False)
    return [start + row.key, *(" " * indent + line for line in text)]


def _dotted(path: Path) -> str:
    return ".".join(f'"{part}"' if isinstance(part, str) and "." in part else str(part) for part in path)
