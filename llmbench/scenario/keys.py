"""The keys a scenario may hold, and what an unknown one was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator
from functools import cache
from typing import Any, NamedTuple, get_args

from llmbench.scenario.frozen import Frozen
from llmbench.scenario.model import Scenario, Workload
from llmbench.scenario.rules import Path

_CLOSE = 0.7
_FREE = (("target", "engine"), ("target", "headers"), ("target", "body"), ("load", "until"), ("matrix",))
# What other load generators and the APIs themselves call it.
_ELSEWHERE = {
    "api_base": "target.url", "base_url": "target.url", "endpoint": "target.url", "host": "target.url",
    "rps": "load.rate", "qps": "load.rate", "request_rate": "load.rate",
    "max_concurrency": "load.concurrency", "users": "load.concurrency", "vus": "load.concurrency",
    "num_prompts": "load.requests", "num_requests": "load.requests", "iterations": "load.requests",
    "max_tokens": "workload.output_tokens", "output_len": "workload.output_tokens",
    "input_len": "workload.input_tokens", "dataset": "workload.kind", "dataset_path": "workload.path",
    "prefix_len": "workload.prefix.tokens",
    "temperature": "target.body.temperature", "top_p": "target.body.top_p", "top_k": "target.body.top_k",
    "thresholds": "slo", "slos": "slo", "error_rate": "slo.errors",
}  # fmt: skip

# Numbers that belong in the shape of a distribution, with the shape they most likely are of.
_SHAPE_OF = {
    "mean": ("lognormal", "{lognormal: {mean: 512, sigma: 0.6}}"),
    "sigma": ("lognormal", "{lognormal: {mean: 512, sigma: 0.6}}"),
    "std": ("normal", "{normal: {mean: 512, std: 64}}"),
}


class Guess(NamedTuple):
    """What an unknown key was probably meant to be: a remedy, and where the key belongs if known."""

    remedy: str
    path: Path | None


@cache
def keys_of(model: type[Frozen]) -> dict[str, type[Frozen] | None]:
    """The YAML keys of a type, each with the type below it (None for values)."""
    keys = {field.alias or name: _model_in(field.annotation) for name, field in model.model_fields.items()}
    if model is Scenario:
        keys["workload"] = Workload
    return keys


def types_of(model: type[Frozen]) -> list[type[Frozen]]:
    """`model` and every type below it, each once."""
    found = [model]
    for item in found:
        found += [below for below in keys_of(item).values() if below is not None and below not in found]
    return list(dict.fromkeys(found))


def model_at(path: Path) -> type[Frozen] | None:
    """The type whose keys stand at `path`; None below values and free mappings."""
    model: type[Frozen] | None = Scenario
    for part in path:
        if isinstance(part, int):
            continue
        model = keys_of(model).get(part) if model is not None else None
    return model


def is_known_path(path: Path) -> bool:
    """Whether a scenario can hold something at `path`."""
    if any(path[: len(free)] == free and len(path) > len(free) for free in _FREE):
        return True
    if len(path) > 1 and path[-2] in keys_of(model_at(("slo",)) or Frozen) and "slo" in path[:-2]:
        return True
    parent = model_at(path[:-1])
    return bool(path) and parent is not None and (isinstance(path[-1], int) or path[-1] in keys_of(parent))


def guess(key: str, parent: Path) -> Guess:
    """What the unknown `key` below `parent` was probably meant to be."""
    model = model_at(parent)
    own = keys_of(model) if model is not None else {}
    spelled = key.strip().lower().replace("-", "_")
    if spelled in own:
        return Guess(f"unknown key; did you mean {spelled}?", (*parent, spelled))
    by_attribute = (
        {name: field.alias for name, field in model.model_fields.items() if field.alias} if model else {}
    )
    if spelled in by_attribute:
        return Guess(f"unknown key; write {by_attribute[spelled]}", (*parent, str(by_attribute[spelled])))
    if spelled in _SHAPE_OF and {"normal", "lognormal"} <= set(own):
        shape, example = _SHAPE_OF[spelled]
        return Guess(f"unknown key here; write {example}", (*parent, shape, spelled))
    longer = [name for name in own if name.startswith(f"{spelled}_")]
    if len(longer) == 1:
        return Guess(f"unknown key; did you mean {longer[0]}?", (*parent, longer[0]))
    belongs = _belongs(key, spelled, parent, own)
    if belongs is not None:
        return belongs
    close = difflib.get_close_matches(spelled, own, n=1, cutoff=_CLOSE)
    if close:
        return Guess(f"unknown key; did you mean {close[0]}?", (*parent, close[0]))
    everywhere = {str(path[-1]): path for path in reversed(_all_keys())}
    close = difflib.get_close_matches(spelled, everywhere, n=1, cutoff=0.8)
    if close:
        path = everywhere[close[0]]
        return Guess(f"unknown key; did you mean {_dotted(path)}?", path)
    return Guess(f"unknown key; known are {', '.join(own)}" if own else "unknown key; remove it", None)


def _belongs(key: str, spelled: str, parent: Path, own: Collection[str]) -> Guess | None:
    """Where a key that is right in itself belongs."""
    first, dot, rest = key.partition(".")
    if dot and first in own:
        return Guess(f"unknown key; write {rest} below {first}:", (*parent, *key.split(".")))
    for path in _all_keys():
        if path[-1] == spelled and path[:-1] != parent:
            place = f"under {_dotted(path[:-1])}" if len(path) > 1 else "at the top level"
            return Guess(f"unknown key here; {spelled} belongs {place}", path)
    if spelled in _ELSEWHERE:
        target = _ELSEWHERE[spelled]
        return Guess(f"unknown key; write {target}", tuple(target.split(".")))
    return None


@cache
def _all_keys() -> list[Path]:
    """Every key's path, the shallow ones first; one workload stands for all."""
    return sorted(_walk(Scenario, ()), key=len)


def _walk(model: type[Frozen], parent: Path) -> Iterator[Path]:
    for key, below in keys_of(model).items():
        if key == "workloads" or (key in ("min", "max", "mean", "std", "sigma", "fixed", "values", "for")):
            continue  # the same word in many places guides nobody
        yield (*parent, key)
        if below is not None and len(parent) < 3:
            yield from _walk(below, (*parent, key))


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))


def _model_in(annotation: Any) -> type[Frozen] | None:
    if isinstance(annotation, type) and issubclass(annotation, Frozen):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)
