"""What must hold between the keys of a scenario, as pure functions over the file's own words.

Each rule reads the YAML-keyed tree (values as written: `"4/s"`, `16`, `null` for absent) and returns what is
broken as (path below the given tree, what is wrong and what to do). Values of a wrong type are the business
of the field types and are passed over here, so that a rule never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from llmbench.scenario import units
from llmbench.scenario.address import has_credentials

Path = tuple[str | int, ...]
Broken = tuple[Path, str]
Tree = Mapping[str, Any]

SHAPES = ("fixed", "uniform", "normal", "lognormal", "exponential", "empirical")
FILE_WORKLOADS = (
    "jsonl",
    "azure",
    "sharegpt",
    "mooncake",
    "bailian",
    "burstgpt",
    "trace",
    "servegen",
    "openai-batch",
    "sessions",
)
TRACE_WORKLOADS = ("azure", "mooncake", "bailian", "burstgpt", "trace", "servegen", "sessions")
_TRACE_LENGTHS = ("azure", "mooncake", "bailian", "burstgpt", "trace", "servegen")
_PATH_EXAMPLES = {
    "jsonl": "prompts.jsonl",
    "sharegpt": "conversations.json",
    "mooncake": "trace.jsonl",
    "bailian": "trace.jsonl",
    "trace": "trace.jsonl",
    "openai-batch": "batch.jsonl",
    "sessions": "sessions.jsonl",
}
_NEEDS_STREAM = ("ttft", "ttft_due", "tpot", "itl", "chunk_gap", "time_to_first_answer")
_NEEDS_DUE = {"ttft_due": "ttft", "e2e_due": "e2e", "send_lag": None}
_PACED = ("constant", "poisson", "gamma")


def distribution(tree: Any) -> list[Broken]:
    """Exactly one shape; bounds the right way round; as many weights as values."""
    if not isinstance(tree, Mapping):
        return []
    shapes = [name for name in SHAPES if tree.get(name) is not None]
    broken: list[Broken] = []
    if len(shapes) != 1:
        found = " and ".join(shapes) or "none"
        remedy = "a number or one of uniform, normal, lognormal"
        if not shapes and tree.get("min") is not None and tree.get("max") is not None:
            remedy = f"{{uniform: {{min: {tree['min']}, max: {tree['max']}}}}}"
        broken.append(((), f"needs one shape, has {found}; write {remedy}"))
    for path in ((), ("uniform",)):
        bounds = tree.get("uniform") if path else tree
        if isinstance(bounds, Mapping) and _is_above(bounds.get("min"), bounds.get("max")):
            broken.append(((*path, "min"), "is above max; swap them"))
    empirical = tree.get("empirical")
    if isinstance(empirical, Mapping):
        values, weights = empirical.get("values"), empirical.get("weights")
        if isinstance(values, list | tuple) and isinstance(weights, list | tuple):
            if len(values) != len(weights):
                broken.append((("empirical", "weights"), f"{len(weights)} weights for {len(values)} values"))
            elif all(weight == 0 for weight in weights):
                broken.append((("empirical", "weights"), "all weights are 0; nothing could be drawn"))
    return broken


def target(tree: Any) -> list[Broken]:
    """A URL or an engine, one way to authorize."""
    if not isinstance(tree, Mapping):
        return []
    given = [key for key in ("url", "engine") if tree.get(key) is not None]
    broken: list[Broken] = []
    if not given and tree.get("unix_socket") is None:
        broken.append(((), "needs url or engine; write url: http://127.0.0.1:8000"))
    if len(given) == 2:
        broken.append((("engine",), "url and engine exclude each other; keep one"))
    if tree.get("engine") is not None and tree.get("unix_socket") is not None:
        broken.append((("unix_socket",), "the bundled engine listens on a port; remove it"))
    headers = tree.get("headers")
    url = tree.get("url")
    if tree.get("api_key") not in (None, "") and isinstance(url, str) and has_credentials(url):
        broken.append((("url",), "user:password@ and api_key exclude each other; keep one"))
    if isinstance(headers, Mapping) and tree.get("api_key") not in (None, ""):
        doubled = [name for name in headers if str(name).lower() == "authorization"]
        broken += [(("headers", name), "api_key is sent as Authorization too; keep one") for name in doubled]
    return broken


def stage(tree: Any) -> list[Broken]:
    """One of rate, concurrency, ramp_to."""
    if not isinstance(tree, Mapping):
        return []
    levels = [key for key in ("rate", "concurrency", "ramp_to") if tree.get(key) is not None]
    if len(levels) == 1:
        return []
    found = " and ".join(levels) or "none"
    return [((), f"needs one of rate, concurrency, ramp_to; has {found}")]


def load(tree: Any) -> list[Broken]:
    """What each kind of arrivals needs and cannot use."""
    if not isinstance(tree, Mapping):
        return []
    arrivals = tree.get("arrivals")
    stages = _stages(tree)
    broken = _useless_load_keys(tree, arrivals, bool(stages))
    if arrivals == "closed" and not stages and tree.get("concurrency") is None:
        broken.append(((), "closed needs concurrency; write concurrency: 16"))
    if arrivals in _PACED and not stages and tree.get("rate") is None:
        broken.append(((), f"{arrivals} needs rate; write rate: 4/s"))
    if stages:
        broken += _broken_stages(tree, stages, arrivals)
    ends = ("duration", "requests", "until")
    if not stages and arrivals not in ("trace", None) and all(tree.get(key) is None for key in ends):
        burst_at_once = arrivals == "burst" and tree.get("burst") is None
        remedy = "requests: 100" if burst_at_once else "duration: 60s or requests: 500"
        broken.append(((), f"nothing ends the run; write {remedy}"))
    elif arrivals == "burst" and tree.get("burst") is None and tree.get("requests") is None:
        broken.append(((), "all at once needs requests: N, or write burst: {size: 8, every: 1s}"))
    return broken


def _useless_load_keys(tree: Tree, arrivals: Any, has_stages: bool) -> list[Broken]:
    """Keys that the chosen arrivals would silently ignore."""
    if arrivals not in (*_PACED, "closed", "burst", "trace"):
        return []
    checks: tuple[tuple[str, bool, str], ...] = (
        ("rate", arrivals in _PACED, _rate_remedy(arrivals)),
        (
            "concurrency",
            arrivals == "closed",
            "belongs to arrivals: closed; an open loop is capped by max_in_flight",
        ),
        ("think_time", arrivals == "closed", "belongs to arrivals: closed"),
        ("burst", arrivals == "burst", "belongs to arrivals: burst"),
        ("burstiness", arrivals == "gamma", "belongs to arrivals: gamma"),
        ("stages", arrivals in (*_PACED, "closed"), f"cannot shape arrivals: {arrivals}"),
        ("speed", arrivals == "trace", "belongs to arrivals: trace"),
        ("start", arrivals == "trace", "belongs to arrivals: trace"),
    )
    return [((key,), text) for key, is_used, text in checks if not is_used and _is_set(key, tree.get(key))]


def _is_set(key: str, value: Any) -> bool:
    """Whether a key says something other than its default (a resolved scenario spells defaults out)."""
    if value is None or value in ([], ()):
        return False
    if key in ("burstiness", "speed"):
        return bool(value != 1)
    return not (key == "start" and _seconds(value) == 0)


def _rate_remedy(arrivals: Any) -> str:
    if arrivals == "closed":
        return "a closed loop has no rate; write concurrency: 16, or arrivals: poisson"
    if arrivals == "burst":
        return "write burst: {size: 8, every: 1s} instead"
    return "the trace sets the rate; write speed: 0.5 for half"


def _stages(tree: Tree) -> list[Any]:
    stages = tree.get("stages")
    return list(stages) if isinstance(stages, list | tuple) else []


def _broken_stages(tree: Tree, stages: list[Any], arrivals: Any) -> list[Broken]:
    broken: list[Broken] = []
    is_closed = arrivals == "closed"
    for index, item in enumerate(stages):
        path: Path = ("stages", index)
        broken += [((*path, *below), text) for below, text in stage(item)]
        if not isinstance(item, Mapping) or arrivals not in (*_PACED, "closed"):
            continue
        ramp_to = item.get("ramp_to")
        if is_closed and item.get("rate") is not None:
            broken.append(((*path, "rate"), "a closed loop has no rate; write concurrency: 16"))
        if not is_closed and item.get("concurrency") is not None:
            broken.append(((*path, "concurrency"), f"arrivals: {arrivals} needs a rate; write rate: 4/s"))
        if is_closed and isinstance(ramp_to, str) and "/" in ramp_to:
            broken.append(((*path, "ramp_to"), "a closed loop ramps its concurrency; write ramp_to: 16"))
        if not is_closed and units.bare_number(ramp_to) is not None:
            broken.append(((*path, "ramp_to"), f"no unit; write {ramp_to}/s (requests per second)"))
    if tree.get("duration") is not None:
        broken.append((("duration",), "the stages say how long; remove it"))
    start = "concurrency" if is_closed else "rate"
    first = stages[0]
    if tree.get(start) is not None and isinstance(first, Mapping) and first.get("ramp_to") is None:
        broken.append(((start,), "the first stage sets it already; remove it"))
    return broken


def workload(tree: Any) -> list[Broken]:
    """What each kind needs and cannot use."""
    if not isinstance(tree, Mapping):
        return []
    kind = tree.get("kind")
    broken: list[Broken] = []
    needs = {"synthetic": ("input_tokens", "output_tokens"), "inline": ("prompts",)}
    examples = {"input_tokens": "512", "output_tokens": "128", "prompts": "[Say hi]"}
    examples["path"] = _PATH_EXAMPLES.get(str(kind), "traffic.csv")
    needed = ("path",) if kind in FILE_WORKLOADS else needs.get(kind, ()) if isinstance(kind, str) else ()
    missing = [key for key in needed if tree.get(key) is None]
    broken += [((), f"{kind} needs {key}; write {key}: {examples[key]}") for key in missing]
    useless: list[tuple[str, str]] = []
    if kind in ("synthetic", "inline"):
        useless += [("path", f"{kind} reads no file; remove it, or choose another kind")]
    if kind in _TRACE_LENGTHS:
        useless += [("input_tokens", f"{kind} takes lengths from its file; scale them with input_scale")]
        useless += [("output_tokens", f"{kind} takes lengths from its file; scale them with output_scale")]
    if kind in ("jsonl", "inline", "sharegpt", "openai-batch"):
        useless += [("input_tokens", f"{kind} brings its own prompts; remove it")]
    if kind in ("synthetic", *FILE_WORKLOADS):
        useless += [("prompts", "belongs to kind: inline")]
    broken += [((key,), text) for key, text in useless if tree.get(key) is not None]
    for key in ("input_tokens", "output_tokens"):
        broken += [((key, *below), text) for below, text in distribution(tree.get(key))]
    return broken


def together(tree: Any) -> list[Broken]:
    """What target, load, workloads and limits need of each other."""
    if not isinstance(tree, Mapping):
        return []
    return _unfit_trace(tree) + _unmeasurable(tree)


def _unfit_trace(tree: Tree) -> list[Broken]:
    """A replay needs one workload, and one that says when requests came."""
    arrivals = value_at(tree, ("load", "arrivals"))
    kinds = [item.get("kind") for _, item in workloads(tree) if isinstance(item, Mapping)]
    if arrivals != "trace" or not kinds:
        return []
    if len(kinds) > 1:
        return [(("load", "arrivals"), "a trace replays one workload; remove the others")]
    if (
        isinstance(kinds[0], str)
        and kinds[0] not in TRACE_WORKLOADS
        and kinds[0] in ("synthetic", *FILE_WORKLOADS, "inline")
    ):
        return [
            (("load", "arrivals"), f"trace needs a workload with times, not {kinds[0]}; write kind: azure")
        ]
    return []


def _unmeasurable(tree: Tree) -> list[Broken]:
    """Limits on what these settings never measure: a gate on them could not be decided."""
    stream = value_at(tree, ("target", "stream"))
    is_whole = stream is False or str(stream).strip().lower() in ("false", "no", "off")
    is_closed = value_at(tree, ("load", "arrivals")) == "closed"
    broken: list[Broken] = []
    for root in ((), *(path for path, _ in workloads(tree))):
        limits = value_at(tree, (*root, "slo"))
        for metric in limits if isinstance(limits, Mapping) else ():
            path = (*root, "slo", metric)
            if not limits[metric]:
                continue
            if is_whole and metric in _NEEDS_STREAM:
                text = "is never measured with target.stream: false; remove one of the two"
                broken.append((path, text))
            elif is_closed and metric in _NEEDS_DUE:
                other = _NEEDS_DUE[metric]
                remedy = f"write {other}" if other else "remove it"
                broken.append((path, f"a closed loop has no due times to count from; {remedy}"))
    return broken


def scenario(tree: Tree) -> list[Broken]:
    """Every rule, applied to a whole file."""
    broken: list[Broken] = []
    if tree.get("workload") is not None and tree.get("workloads") is not None:
        broken.append((("workloads",), "workload and workloads exclude each other; keep one"))
    broken += _below(("target",), target, tree)
    broken += _below(("load",), load, tree)
    if isinstance(tree.get("load"), Mapping):
        broken += [
            (("load", "think_time", *below), text)
            for below, text in distribution(tree["load"].get("think_time"))
        ]
    for path, item in workloads(tree):
        broken += [((*path, *below), text) for below, text in workload(item)]
    return broken + together(tree)


def value_at(tree: Any, path: Path) -> Any:
    """The value at `path`, None where there is none."""
    for part in path:
        if isinstance(tree, Mapping):
            tree = tree.get(part)
        elif isinstance(tree, list | tuple) and isinstance(part, int) and part < len(tree):
            tree = tree[part]
        else:
            return None
    return tree


def _below(path: tuple[str], rule: Callable[[Any], list[Broken]], tree: Tree) -> Iterable[Broken]:
    return [((*path, *below), text) for below, text in rule(tree.get(path[0]))]


def workloads(tree: Tree) -> list[tuple[Path, Any]]:
    """Each workload with its path: the one below `workload`, or those of `workloads`."""
    if tree.get("workload") is not None:
        return [(("workload",), tree["workload"])]
    several = tree.get("workloads")
    return (
        [(("workloads", index), item) for index, item in enumerate(several)]
        if isinstance(several, list | tuple)
        else []
    )


def _seconds(value: Any) -> float | None:
    try:
        return units.parse_duration(value)
    except ValueError:
        return units.bare_number(value)


def _is_above(low: Any, high: Any) -> bool:
    lower, upper = _seconds(low), _seconds(high)
    return lower is not None and upper is not None and lower > upper
