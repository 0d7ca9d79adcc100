"""What a scenario says, as frozen types: target, load, workloads, objectives.

Attribute names carry their unit (`_s` seconds, `_per_s` per second); the YAML key is the field's alias where
it differs. Editors show the descriptions through the JSON Schema.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from llmbench.errors import ScenarioError
from llmbench.scenario import rules
from llmbench.scenario.address import parse_address
from llmbench.scenario.distributions import LengthDistribution, TimeDistribution
from llmbench.scenario.fields import (
    FILE_CONTEXT,
    Count,
    CountFromZero,
    DurationS,
    Flag,
    MoneyAmount,
    PositiveDurationS,
    PositiveNumber,
    RateFromZeroPerS,
    RatePerS,
    Text,
)
from llmbench.scenario.frozen import Frozen
from llmbench.scenario.masking import is_secret_name, masked, scrub_list, secrets_in
from llmbench.scenario.objectives import Slo, SloLimit
from llmbench.scenario.options import (
    ApiKey,
    AutoFlag,
    Body,
    EngineOptions,
    Headers,
    Matrix,
    Name,
    Ramp,
    RampTo,
    ServerMetrics,
    TlsVerify,
    Until,
    Url,
    Workers,
)
from llmbench.scenario.rules import Broken
from llmbench.scenario.source import Source

__all__ = [
    "Burst",
    "Cost",
    "Instrument",
    "LengthDistribution",
    "Load",
    "Prefix",
    "RampTo",
    "Scenario",
    "Slo",
    "SloLimit",
    "Stage",
    "Target",
    "TimeDistribution",
    "Workload",
    "scenario_from_resolved",
    "secrets_of",
]

Api = Literal["chat", "completions", "responses"]
Arrivals = Literal["closed", "constant", "poisson", "gamma", "burst", "trace"]
WorkloadKind = Literal[
    "synthetic",
    "jsonl",
    "inline",
    "azure",
    "sharegpt",
    "mooncake",
    "bailian",
    "burstgpt",
    "trace",
    "servegen",
    "openai-batch",
    "sessions",
]


class Target(Frozen):
    """The endpoint that is measured: a URL, or the bundled engine started for the run."""

    url: Url | None = Field(
        None,
        description="Base URL, with or without /v1; HOST:PORT means http://HOST:PORT.",
        examples=["http://127.0.0.1:8000"],
    )
    engine: EngineOptions | None = Field(
        None,
        description="Instead of url: start the bundled engine with these options and stop it after the run.",
    )
    model: Text = Field("auto", description="Model name; auto takes the first one that /v1/models names.")
    api: Api = Field("chat", description="Which of OpenAI's APIs is called.")
    api_key: ApiKey | None = Field(
        None, description="Sent as a bearer token; never written to any output. Write ${OPENAI_API_KEY:-}."
    )
    headers: Headers = Field({}, description="Extra request headers.")
    body: Body = Field({}, description="Merged into every request body, as in {temperature: 0}.")
    stream: Flag = Field(True, description="Ask for a stream; without one TTFT is absent.")
    usage: Flag = Field(True, description="Ask for token counts at the end of the stream (stream_options).")
    ignore_eos: AutoFlag = Field(
        "auto", description="Make outputs as long as asked; auto: where the server can."
    )
    timeout_s: PositiveDurationS = Field(120.0, alias="timeout", description="For the whole request.")
    no_progress_timeout_s: PositiveDurationS = Field(
        60.0, alias="no_progress_timeout", description="Longest wait between two pieces of an answer."
    )
    connect_timeout_s: PositiveDurationS = Field(
        10.0, alias="connect_timeout", description="For a new connection."
    )
    ready_timeout_s: PositiveDurationS = Field(
        30.0, alias="ready_timeout", description="How long to wait for the target to become ready."
    )
    tls_verify: TlsVerify = Field(
        True, description="Check certificates: true, false or the path of a CA file."
    )
    unix_socket: Text | None = Field(None, description="Connect through this Unix socket.")
    tokenizer: Text | None = Field(None, description="Path of a tokenizer.json that fits and counts tokens.")

    @model_validator(mode="before")
    @classmethod
    def _take_credentials_from_url(cls, tree: Any) -> Any:
        """`user:password@` becomes a header, so that the URL may be shown."""
        if not isinstance(tree, Mapping):
            return tree
        if tree.get("url") is None and tree.get("unix_socket") is not None and tree.get("engine") is None:
            return {**tree, "url": "http://localhost"}
        try:
            address = parse_address(tree.get("url"))
        except ValueError:
            return tree
        headers = tree.get("headers") or {}
        if address.authorization is None or not isinstance(headers, Mapping):
            return tree
        return {**tree, "url": address.text, "headers": {**headers, "Authorization": address.authorization}}

    @classmethod
    def broken_rules(cls, present: Mapping[str, Any]) -> list[Broken]:
        """A URL or an engine, one way to authorize."""
        return rules.target(present)

    def __repr_args__(self) -> Any:
        """Fields as shown when printed: the body and the headers without their secrets."""
        return [(name, masked(value) if name in ("headers", "body") else value) for name, value in self]


class Burst(Frozen):
    """Groups of requests that arrive together."""

    size: Count = Field(description="Requests in each burst.")
    every_s: PositiveDurationS = Field(alias="every", description="Time from one burst to the next.")


class Stage(Frozen):
    """A stretch of the load: a level that is held, or a linear ramp from the level before it."""

    rate_per_s: RateFromZeroPerS | None = Field(None, alias="rate", description="Hold this rate (open loop).")
    concurrency: CountFromZero | None = Field(None, description="Hold this concurrency (closed loop).")
    ramp_to: Ramp | None = Field(None, description="Go linearly to this rate (10/s) or concurrency (16).")
    for_s: PositiveDurationS = Field(alias="for", description="How long the stage lasts.")

    @classmethod
    def broken_rules(cls, present: Mapping[str, Any]) -> list[Broken]:
        """One of rate, concurrency, ramp_to."""
        return rules.stage(present)

    @property
    def is_ramp(self) -> bool:
        """Whether the level changes during the stage."""
        return self.ramp_to is not None

    @property
    def end_rate_per_s(self) -> float | None:
        """The rate at the stage's end; None in a closed loop."""
        return self.ramp_to.rate_per_s if self.ramp_to is not None else self.rate_per_s

    @property
    def end_concurrency(self) -> int | None:
        """The concurrency at the stage's end; None in an open loop."""
        return self.ramp_to.concurrency if self.ramp_to is not None else self.concurrency


class Load(Frozen):
    """When requests are sent, and for how long. With both `duration` and `requests`, whichever ends first."""

    arrivals: Arrivals = Field(
        description="closed: a fixed number in flight; the others: a schedule of due times."
    )
    rate_per_s: RatePerS | None = Field(
        None, alias="rate", description="Mean arrival rate; with stages, where a first ramp starts (else 0)."
    )
    burstiness: PositiveNumber = Field(
        1.0, description="Shape of gamma gaps: 1 is Poisson, less is burstier, more is steadier."
    )
    burst: Burst | None = Field(
        None, description="Bursts; without it, arrivals: burst sends everything at once."
    )
    concurrency: Count | None = Field(
        None, description="Requests in flight (closed loop); with stages, where a first ramp starts (else 0)."
    )
    think_time: TimeDistribution | None = Field(
        None, description="Pause between an answer and the next request (closed loop)."
    )
    duration_s: PositiveDurationS | None = Field(
        None, alias="duration", description="Measured time, after warm-up."
    )
    requests: Count | None = Field(None, description="Measured requests, warm-up not counted.")
    until: Until | None = Field(
        None, description="Run until intervals are this narrow: {ttft.p95: ±5%, at_most: 10m}."
    )
    stages: tuple[Stage, ...] = Field((), description="Levels and ramps, one after the other.")
    warmup_s: DurationS = Field(0.0, alias="warmup", description="Sent first and left out of the statistics.")
    max_in_flight: Count = Field(512, description="Open loop: arrivals above it are recorded as dropped.")
    drain_timeout_s: DurationS | None = Field(
        None,
        alias="drain_timeout",
        description="How long to wait for the last answers; target.timeout if left out.",
    )
    speed: PositiveNumber = Field(1.0, description="Trace replay: 0.5 is half as fast, every gap doubled.")
    start_s: DurationS = Field(0.0, alias="start", description="Trace replay: skip this much of the trace.")

    @classmethod
    def broken_rules(cls, present: Mapping[str, Any]) -> list[Broken]:
        """What each kind of arrivals needs and cannot use."""
        return rules.load(present)


class Prefix(Frozen):
    """Prompts that begin alike."""

    tokens: Count = Field(description="Length of the shared prefix, which comes before input_tokens.")
    groups: Count = Field(1, description="Number of different prefixes; each request draws one.")


class Workload(Frozen):
    """What is asked: prompts made to length, given, or taken from a file of real traffic."""

    kind: WorkloadKind = Field(description="Where prompts and lengths come from.")
    weight: PositiveNumber = Field(1.0, description="Share of the requests, relative to the other workloads.")
    tenant: Text | None = Field(
        None, description="Name of who asks; with it, the results are also shown apart (by_tenant)."
    )
    slo: Slo | None = Field(None, description="Limits for this workload's requests alone.")
    input_tokens: LengthDistribution | None = Field(
        None, description="Prompt length: a number or a distribution."
    )
    output_tokens: LengthDistribution | None = Field(
        None, description="Output length: a number or a distribution; sent as max_tokens."
    )
    prefix: Prefix | None = Field(None, description="Shared beginnings of the prompts.")
    cache: Literal["cold", "warm", "mixed"] = Field(
        "cold",
        description=(
            "What a prefix cache can reuse of earlier runs. cold: nothing; mixed: the system message and the "
            "shared prefixes repeat, own parts are new; warm: every prompt repeats."
        ),
    )
    path: Text | None = Field(
        None,
        description=(
            "File of prompts or traffic; relative to the scenario file. jsonl: a JSON object a line, as in "
            '{"prompt": "Say hi.", "max_tokens": 32} or {"messages": [{"role": "user", "content": "Hi."}]}; '
            "azure, burstgpt: their CSV; mooncake, bailian: JSON lines with timestamp, lengths and hash_ids; "
            "trace: llmbench's own, as llmbench trace convert writes it."
        ),
    )
    input_scale: PositiveNumber = Field(1.0, description="Multiplies the prompt lengths of a trace.")
    output_scale: PositiveNumber = Field(1.0, description="Multiplies the output lengths of a trace.")
    max_input: Count | None = Field(
        None, description="Longer prompts of a trace are cut to this many tokens."
    )
    max_output: Count | None = Field(
        None, description="Longer outputs of a trace are cut to this many tokens."
    )
    system: Text | None = Field(None, description="System message in front of every prompt.")
    prompts: tuple[Text, ...] | None = Field(
        None, min_length=1, description="Fixed prompts, in order, repeated."
    )

    @classmethod
    def broken_rules(cls, present: Mapping[str, Any]) -> list[Broken]:
        """What each kind needs and cannot use."""
        return rules.workload(present)


class Cost(Frozen):
    """What the target costs while it runs."""

    per_hour: MoneyAmount = Field(description="Price of an hour, as in 3.50 USD.")


class Instrument(Frozen):
    """How llmbench itself works; auto fits nearly everyone."""

    workers: Workers = Field(
        "auto", description="Client processes; auto takes as many as the load needs, which is mostly one."
    )
    transport: Literal["auto", "fast", "aiohttp", "httpx"] = Field("auto", description="HTTP client.")
    timestamps: Literal["auto", "kernel", "loop"] = Field(
        "auto",
        description="Who stamps arrivals: the kernel (plain TCP on Linux) or the event loop when it reads.",
    )


class Scenario(Frozen):
    """One load test: target, load, workloads and the limits that decide whether it passed."""

    name: Name = Field("scenario", description="Names the run folder; the file's name if left out.")
    description: Text | None = Field(None, description="One line for people.")
    target: Target = Field(description="The endpoint that is measured.")
    load: Load = Field(description="When requests are sent, and for how long.")
    workloads: tuple[Workload, ...] = Field(min_length=1, description="Several workloads, mixed by weight.")
    slo: Slo = Field(Slo.model_construct(), description="Limits that decide between PASS and FAIL.")
    server_metrics: ServerMetrics = Field(
        "auto", description="Scrape the server's /metrics: auto, true, false, a URL."
    )
    cost: Cost | None = Field(None, description="Price of the target, for cost per token.")
    instrument: Instrument = Field(Instrument.model_construct(), description="How llmbench itself works.")
    seed: CountFromZero = Field(0, description="Same seed, same schedule and lengths.")
    matrix: Matrix = Field({}, description="One run per combination, as in {load.concurrency: [1, 8, 64]}.")

    _source: Source | None = PrivateAttr(None)

    @model_validator(mode="before")
    @classmethod
    def _accept_one_workload(cls, tree: Any) -> Any:
        if isinstance(tree, Mapping) and tree.get("workload") is not None and tree.get("workloads") is None:
            return {
                **{key: tree[key] for key in tree if key not in ("workload", "workloads")},
                "workloads": [tree["workload"]],
            }
        return {key: tree[key] for key in tree if key != "workload"} if isinstance(tree, Mapping) else tree

    @classmethod
    def broken_rules(cls, present: Mapping[str, Any]) -> list[Broken]:
        """What load and workloads need of each other."""
        return rules.together(present)

    @property
    def source(self) -> Source | None:
        """Where it was read; None for a scenario made in Python."""
        return self._source

    def read_from(self, source: Source) -> Self:
        """The same scenario, which knows where it was read."""
        scenario = self.model_copy()
        scenario._source = source  # noqa: SLF001 - its own class
        return scenario

    def resolved(self) -> dict[str, Any]:
        """Every setting as plain JSON in the file's keys and units, with defaults, secrets as `***`."""
        tree = self.model_dump(mode="json", by_alias=True, exclude_none=True)
        tree["target"]["body"] = masked(self.target.body)  # exclude_none must not reach into what is sent
        tree["target"]["headers"] = masked(self.target.headers)
        if len(self.workloads) == 1:
            tree["workload"] = tree.pop("workloads")[0]
        return tree

    def hash(self) -> str:
        """SHA-256 (hex) of the resolved scenario, secrets left out and files by name, so that it travels."""
        tree = self.resolved()
        target = tree["target"]
        target.pop("api_key", None)
        target["headers"] = {
            key: value for key, value in target["headers"].items() if not is_secret_name(key)
        }
        for workload in tree.get("workloads", [tree.get("workload")]):
            if "path" in workload:
                workload["path"] = PurePath(workload["path"]).name
        canonical = json.dumps(
            tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()

    def with_target_url(self, url: str) -> Self:
        """The same scenario against another URL (an engine that was just started, say)."""
        target = self.target.model_copy(update={"url": parse_address(url).text, "engine": None})
        return self.model_copy(update={"target": target})


def scenario_from_resolved(resolved: Mapping[str, Any]) -> Scenario:
    """Reads back what `Scenario.resolved` wrote (secrets stay masked); raises `ScenarioError`."""
    try:
        return Scenario.model_validate(dict(resolved), context=FILE_CONTEXT, by_alias=True, by_name=False)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise ScenarioError(f"the recorded scenario does not validate: {problems}") from None


def secrets_of(scenario: Scenario) -> tuple[str, ...]:
    """The raw secrets (API key, secret headers, secret body values), longest first, for `masking.scrub`."""
    target = scenario.target
    found = secrets_in(target.headers) + secrets_in(target.body)
    if target.api_key is not None:
        found.append(target.api_key.get_secret_value())
    return scrub_list(found)
