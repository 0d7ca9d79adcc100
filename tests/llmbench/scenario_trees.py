"""Hypothesis strategies for scenarios in the file's own words, shared by the scenario tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

WORDS = st.text("abcdefgh XYZ09", min_size=1, max_size=12).map(str.strip).filter(bool)
COUNTS = st.integers(1, 10_000)
DURATIONS = st.one_of(
    st.integers(1, 5000).map("{}ms".format), st.integers(1, 500).map("{}s".format), st.just("1m30s")
)
RATES = st.one_of(st.integers(1, 900).map("{}/s".format), st.integers(1, 900).map("{}/m".format))
SHARES = st.floats(0, 100).map("{}%".format)
NUMBERS = st.floats(0.01, 1e4)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.floats(-1e6, 1e6), WORDS.map("v{}".format)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3)),
    max_leaves=6,
)


def some(required: dict[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


LENGTHS = st.one_of(
    COUNTS,
    st.fixed_dictionaries({"fixed": COUNTS}),
    some({"uniform": st.just({"min": 3, "max": 77})}, max=COUNTS),
    some({"normal": st.fixed_dictionaries({"mean": NUMBERS, "std": NUMBERS})}, min=COUNTS),
    some(
        {"lognormal": st.fixed_dictionaries({"mean": NUMBERS, "sigma": NUMBERS})},
        min=st.just(1),
        max=st.just(9),
    ),
    st.fixed_dictionaries({"empirical": st.lists(COUNTS, min_size=1, max_size=4)}),
    st.just({"empirical": {"values": [1, 2], "weights": [0.5, 2]}}),
)
TIMES = st.one_of(
    DURATIONS,
    st.fixed_dictionaries({"lognormal": st.fixed_dictionaries({"mean": DURATIONS, "sigma": NUMBERS})}),
    st.fixed_dictionaries({"exponential": st.fixed_dictionaries({"mean": DURATIONS})}),
)
OPEN_STAGES = st.lists(
    st.one_of(
        st.fixed_dictionaries({"rate": RATES, "for": DURATIONS}),
        st.fixed_dictionaries({"ramp_to": RATES, "for": DURATIONS}),
    ),
    min_size=1,
    max_size=3,
)
LOADS = st.one_of(
    some(
        {"arrivals": st.sampled_from(["constant", "poisson"]), "rate": RATES, "duration": DURATIONS},
        requests=COUNTS,
        warmup=DURATIONS,
        max_in_flight=COUNTS,
        drain_timeout=DURATIONS,
    ),
    some({"arrivals": st.just("gamma"), "rate": RATES, "requests": COUNTS}, burstiness=NUMBERS),
    st.fixed_dictionaries({"arrivals": st.just("poisson"), "stages": OPEN_STAGES}),
    some({"arrivals": st.just("closed"), "concurrency": COUNTS, "requests": COUNTS}, think_time=TIMES),
    some({"arrivals": st.just("burst"), "requests": COUNTS}, burst=st.just({"size": 8, "every": "1s"})),
)
STATS = st.sampled_from(["p50", "p90", "p95", "p99", "p999", "p99.5", "mean", "max"])
SLOS = some(
    {},
    ttft=st.dictionaries(STATS, DURATIONS, max_size=3),
    tpot=st.dictionaries(STATS, DURATIONS, max_size=3),
    errors=SHARES,
    goodput=SHARES,
    output_tokens_per_s=RATES,
)
TARGETS = st.one_of(
    some(
        {"url": st.sampled_from(["http://127.0.0.1:8000", "https://[::1]:8443/v1/", "http://host/prefix"])},
        api=st.sampled_from(["chat", "completions", "responses"]),
        model=WORDS,
        api_key=st.sampled_from(["sk-first-secret", "sk-second-secret"]),
        body=st.dictionaries(WORDS.map("b{}".format), JSON, max_size=3),
        headers=st.dictionaries(st.sampled_from(["X-A", "X-B", "x-api-key"]), WORDS, max_size=2),
        timeout=DURATIONS,
        stream=st.booleans(),
        ignore_eos=st.sampled_from(["auto", True, False]),
    ),
    st.fixed_dictionaries(
        {
            "engine": st.dictionaries(
                st.sampled_from(["model", "batching"]), st.sampled_from(["tiny", 3, True, 0.5])
            )
        }
    ),
)
WORKLOADS = st.one_of(
    some(
        {"kind": st.just("synthetic"), "input_tokens": LENGTHS, "output_tokens": LENGTHS},
        weight=NUMBERS,
        tenant=WORDS,
        slo=SLOS,
        prefix=st.just({"tokens": 5}),
        cache=st.sampled_from(["cold", "warm"]),
    ),
    some({"kind": st.just("inline"), "prompts": st.lists(WORDS, min_size=1, max_size=3)}, system=WORDS),
)
_REST: dict[str, Any] = {
    "description": WORDS,
    "slo": SLOS,
    "seed": st.integers(0, 2**31),
    "server_metrics": st.sampled_from(["auto", True, False, "http://127.0.0.1:9/metrics"]),
    "cost": st.just({"per_hour": "3.50 USD"}),
    "matrix": st.just({"load.concurrency": [1, 2]}),
    "instrument": st.just({"workers": 2, "transport": "aiohttp"}),
}
_STREAMED = ("ttft", "tpot")


def _measurable(tree: dict[str, Any]) -> dict[str, Any]:
    """Without limits on what is never measured when the answer comes in one piece."""
    if tree["target"].get("stream") is False:
        for part in (tree, *tree.get("workloads", [tree.get("workload")])):
            limits = part.get("slo", {})
            part.update({"slo": {key: limits[key] for key in limits if key not in _STREAMED}})
    return tree


SCENARIOS = st.one_of(
    some({"name": WORDS.map("n{}".format), "target": TARGETS, "load": LOADS, "workload": WORKLOADS}, **_REST),
    some(
        {
            "name": st.just("n"),
            "target": TARGETS,
            "load": LOADS,
            "workloads": st.lists(WORKLOADS, min_size=2, max_size=3),
        },
        **_REST,
    ),
).map(_measurable)
