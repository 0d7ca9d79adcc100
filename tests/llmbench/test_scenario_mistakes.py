"""Wrong scenarios: every mistake of every file, with line, key, value and remedy, without secrets."""

# ruff: noqa: E501  (messages stay on one line, as they are compared)

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmbench.errors import ScenarioError
from llmbench.scenario import not_yet
from llmbench.scenario.load import check_files, load_scenario, parse_scenario, read_scenario

GOOD = """\
name: chat
target:
  url: http://127.0.0.1:8000
load:
  arrivals: poisson
  rate: 4/s
  duration: 60s
workload:
  kind: synthetic
  input_tokens: 512
  output_tokens: 128
slo:
  ttft: {p95: 500ms}
"""


def write(folder: Path, text: str, name: str = "chat.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def mistakes(folder: Path, text: str, sets: tuple[str, ...] = (), **env: str) -> list[str]:
    """The mistakes as `where | key | text`, or `ok`."""
    (check,) = check_files([write(folder, text)], sets, env)
    return [f"{item.where} | {item.key} | {item.text}" for item in check.mistakes] or ["ok"]


def test_the_message_is_one_aligned_row_a_mistake_in_80_columns(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        GOOD.replace("rate: 4/s", "rate: 4").replace("duration", "duraton").replace("500ms", "500"),
    )
    with pytest.raises(ScenarioError) as caught:
        load_scenario(file, env={})
    assert str(caught.value) == (
        f"{file}: 3 mistakes\n"
        "  line 6     load.rate: 4        no unit; write 4/s (requests per second)\n"
        "  line 7     load.duraton: 60s   unknown key; did you mean duration?\n"
        "  line 13    slo.ttft.p95: 500   no unit; write 500ms or 0.5s"
    )


# What is replaced in the good file, by what, and the mistakes that makes.
SLIPS: list[tuple[str, str, list[str]]] = [
    ("rate: 4/s", "rate: 8 rps", ["line 6 | load.rate: 8 rps | not a rate; write 8/s"]),
    ("rate: 4/s", "rate: 0/s", ["line 6 | load.rate: 0/s | must be more than 0; write 4/s"]),
    ("rate: 4/s", "", ["line 4 | load | poisson needs rate; write rate: 4/s"]),
    ("rate: 4/s", "rate:", ["line 4 | load | poisson needs rate; write rate: 4/s"]),
    ("  rate: 4/s\n", "", ["line 4 | load | poisson needs rate; write rate: 4/s"]),
    (
        "  duration: 60s\n",
        "",
        ["line 4 | load | nothing ends the run; write duration: 60s or requests: 500"],
    ),
    ("arrivals: poisson", "arrivals: posson", ["line 5 | load.arrivals: posson | unknown; did you mean poisson?"]),
    ("arrivals: poisson", "arrivals: Poisson", ["line 5 | load.arrivals: Poisson | write poisson (lower case)"]),
    (
        "arrivals: poisson",
        "arrivals: xyzzy",
        [
            "line 5 | load.arrivals: xyzzy | unknown; write one of closed, constant, poisson, gamma, burst, trace"
        ],
    ),
    (
        "  arrivals: poisson\n",
        "",
        ["line 4 | load.arrivals | missing; write arrivals: poisson, or closed, constant, gamma, burst, trace"],
    ),
    (
        "arrivals: poisson",
        "arrivals: closed",
        [
            "line 6 | load.rate: 4/s | a closed loop has no rate; write concurrency: 16, or arrivals: poisson",
            "line 4 | load | closed needs concurrency; write concurrency: 16",
        ],
    ),
    (
        "arrivals: poisson",
        "concurrency: 4\n  arrivals: poisson",
        [
            "line 5 | load.concurrency: 4 | belongs to arrivals: closed; an open loop is capped by max_in_flight"
        ],
    ),
    (
        "arrivals: poisson",
        "arrivals: trace",
        [
            "line 6 | load.rate: 4/s | the trace sets the rate; write speed: 0.5 for half",
            "line 5 | load.arrivals: trace | trace needs a workload with times, not synthetic; write kind: azure",
        ],
    ),
    (
        "arrivals: poisson",
        "arrivals: burst",
        [
            "line 6 | load.rate: 4/s | write burst: {size: 8, every: 1s} instead",
            "line 4 | load | all at once needs requests: N, or write burst: {size: 8, every: 1s}",
        ],
    ),
    ("rate: 4/s", "rate: 4/s\n  burstiness: 0.5", ["line 7 | load.burstiness: 0.5 | belongs to arrivals: gamma"]),
    ("rate: 4/s", "rate: 4/s\n  think_time: 1s", ["line 7 | load.think_time: 1s | belongs to arrivals: closed"]),
    ("rate: 4/s", "rate: 4/s\n  speed: 0.5", ["line 7 | load.speed: 0.5 | belongs to arrivals: trace"]),
    (
        "  rate: 4/s\n  duration: 60s",
        "  stages: [{rate: 4, for: 3s}, {ramp_to: 9, for: 1}, {for: 2s}]",
        [
            "line 6 | load.stages.0.rate: 4 | no unit; write 4/s (requests per second)",
            "line 6 | load.stages.1.for: 1 | no unit; write 1s",
            "line 6 | load.stages.1.ramp_to: 9 | no unit; write 9/s (requests per second)",
            "line 6 | load.stages.2 | needs one of rate, concurrency, ramp_to; has none",
        ],
    ),
    (
        "  rate: 4/s",
        "  stages: [{ramp_to: 4/s, for: 3s}]",
        ["line 7 | load.duration: 60s | the stages say how long; remove it"],
    ),
    ("rate: 4/s", "rate: 4/s\n  max_in_flight: 0", ["line 7 | load.max_in_flight: 0 | must be 1 or more"]),
    ("rate: 4/s", "rate: 4/s\n  requests: 1.5", ["line 7 | load.requests: 1.5 | not a whole number; write 2"]),
    ("rate: 4/s", "rate: 4/s\n  requests: true", ["line 7 | load.requests: true | not a whole number"]),
    ("rate: 4/s", "rate: 4/s\n  requests: 1e30", ["line 7 | load.requests: 1e30 | too large"]),
    ("rate: 4/s", "rate: 4/s\n  warmup: 10", ["line 7 | load.warmup: 10 | no unit; write 10s"]),
    ("name: chat", "rate: 4/s", ["line 1 | rate: 4/s | unknown key here; rate belongs under load"]),
    ("name: chat", "qps: 4", ["line 1 | qps: 4 | unknown key; write load.rate"]),
    ("name: chat", "temperature: 0", ["line 1 | temperature: 0 | unknown key; write target.body.temperature"]),
    ("name: chat", "warm_up: 4s", ["line 1 | warm_up: 4s | unknown key; did you mean load.warmup?"]),
    ("name: chat", "load.seed: 4", ['line 1 | "load.seed": 4 | unknown key; write seed below load:']),
    ("name: chat", "Seed: 4", ["line 1 | Seed: 4 | unknown key; did you mean seed?"]),
    (
        "name: chat",
        "zzz: 4",
        [
            ("line 1 | zzz: 4 | unknown key; known are name, description, target, load, workloads, slo, "
            "server_metrics, cost, instrument, seed, matrix, workload")
        ],
    ),
    ("rate: 4/s", "rate: 4/s\n  seed: 3", ["line 7 | load.seed: 3 | unknown key here; seed belongs at the top level"]),
    ("rate: 4/s", "rate_per_s: 4/s", ["line 6 | load.rate_per_s: 4/s | unknown key; write rate"]),
    ("name: chat", "name: a/b", ["line 1 | name: a/b | write letters, digits, blanks and . _ + - (at most 100; it names the run folder)"]),
    ("name: chat", "seed: -1", ["line 1 | seed: -1 | must be 0 or more"]),
    ("name: chat", "workloads: [{kind: inline, prompts: [a]}]", ["line 1 | workloads | workload and workloads exclude each other; keep one"]),
    ("name: chat", "instrument: {transport: curl}", ["line 1 | instrument.transport: curl | unknown; write one of auto, fast, aiohttp, httpx"]),
    ("name: chat", "instrument: {workers: 0}", ["line 1 | instrument.workers: 0 | write auto or 1 to 1024"]),
    ("name: chat", "server_metrics: maybe", ["line 1 | server_metrics: maybe | write auto, true, false or the URL of a metrics page"]),
    ("kind: synthetic", "kind: syntetic", ["line 9 | workload.kind: syntetic | unknown; did you mean synthetic?"]),
    ("kind: synthetic", "kind: [a]", ["line 9 | workload.kind | unknown; write one of synthetic, jsonl, inline, azure, mooncake, bailian, burstgpt, trace"]),
    ("  output_tokens: 128\n", "", ["line 8 | workload | synthetic needs output_tokens; write output_tokens: 128"]),
    ("kind: synthetic", "kind: inline", ["line 8 | workload | inline needs prompts; write prompts: [Say hi]", "line 10 | workload.input_tokens: 512 | inline brings its own prompts; remove it"]),
    ("kind: synthetic", "kind: synthetic\n  prompts: [a]", ["line 10 | workload.prompts | belongs to kind: inline"]),
    ("kind: synthetic", "kind: synthetic\n  weight: 0", ["line 10 | workload.weight: 0 | must be more than 0"]),
    ("kind: synthetic", "kind: synthetic\n  prefix: 256", ["line 10 | workload.prefix: 256 | must be a mapping, with keys such as tokens, groups"]),
    ("input_tokens: 512", "input_tokens: many", ["line 10 | workload.input_tokens: many | not a whole number"]),
    ("input_tokens: 512", "input_tokens: -3", ["line 10 | workload.input_tokens: -3 | must be 0 or more"]),
    ("input_tokens: 512", "input_tokens: {}", ["line 10 | workload.input_tokens | needs one shape, has none; write a number or one of uniform, normal, lognormal"]),
    ("input_tokens: 512", "input_tokens: {uniform: {min: 9, max: 3}}", ["line 10 | workload.input_tokens.uniform.min: 9 | is above max; swap them"]),
    ("input_tokens: 512", "input_tokens: {fixed: 5, min: 9, max: 3}", ["line 10 | workload.input_tokens.min: 9 | is above max; swap them"]),
    ("input_tokens: 512", "input_tokens: {normal: {mean: 3}}", ["line 10 | workload.input_tokens.normal.std | missing; write std: 100"]),
    ("input_tokens: 512", "input_tokens: {gaussian: {mean: 3}}", [
        "line 10 | workload.input_tokens.gaussian | unknown key; known are fixed, uniform, normal, lognormal, empirical, min, max",
        "line 10 | workload.input_tokens | needs one shape, has none; write a number or one of uniform, normal, lognormal",
    ]),
    ("input_tokens: 512", "input_tokens: {empirical: [1, x]}", ["line 10 | workload.input_tokens.empirical.1: x | not a whole number"]),
    ("input_tokens: 512", "input_tokens: {empirical: []}", ["line 10 | workload.input_tokens.empirical | is empty; give at least one"]),
    ("input_tokens: 512", "input_tokens: {empirical: {values: [1], weights: [1, 2]}}", ["line 10 | workload.input_tokens.empirical.weights | 2 weights for 1 values"]),
    ("ttft: {p95: 500ms}", "ttft: 500ms", ["line 13 | slo.ttft: 500ms | needs a statistic; write {p95: 500ms}"]),
    ("ttft: {p95: 500ms}", "e2e: 5s", ["line 13 | slo.e2e: 5s | needs a statistic; write {p95: 5s}"]),
    ("ttft: {p95: 500ms}", "e2e: 5", ["line 13 | slo.e2e: 5 | needs a statistic and a unit; write {p95: 5s} or {p95: 5ms}"]),
    ("ttft: {p95: 500ms}", "e2e: fast", ["line 13 | slo.e2e: fast | needs a statistic; write {p95: 500ms}"]),
    ("ttft: {p95: 500ms}", "output_tokens: 50/s", ["line 13 | slo.output_tokens: 50/s | unknown key; did you mean output_tokens_per_s?"]),
    ("ttft: {p95: 500ms}", "requests: 5/s", ["line 13 | slo.requests: 5/s | unknown key; did you mean requests_per_s?"]),
    ("url: http://127.0.0.1:8000", "url: http://h\n  stream: false", ["line 14 | slo.ttft | is never measured with target.stream: false; remove one of the two"]),
    ("kind: synthetic\n  input_tokens: 512\n", "kind: jsonl\n", ["line 8 | workload | jsonl needs path; write path: prompts.jsonl"]),
    ("kind: synthetic\n  input_tokens: 512\n", "kind: jsonl\n  path: .\n", ["line 10 | workload.path: . | is a folder; name one file in it"]),
    ("output_tokens: 128", "output_tokens: 128 tokens", ["line 11 | workload.output_tokens: 128 tokens | not a whole number; write 128"]),
    ("output_tokens: 128", "output_tokens: {min: 3, max: 9}", ["line 11 | workload.output_tokens | needs one shape, has none; write {uniform: {min: 3, max: 9}}"]),
    ("output_tokens: 128", "output_tokens: {mean: 9}", ["line 11 | workload.output_tokens.mean: 9 | unknown key here; write {lognormal: {mean: 512, sigma: 0.6}}"]),
    ("output_tokens: 128", "output_tokens: [3, 9]", ["line 11 | workload.output_tokens | a list of lengths; write {empirical: [16, 64, 256]}"]),
    ("output_tokens: 128", "output_tokens: lognormal", ["line 11 | workload.output_tokens: lognormal | a shape needs its numbers; write {lognormal: {mean: 512, sigma: 0.6}}"]),
    ("ttft: {p95: 500ms}", "tttft: {p95: 500ms}", ["line 13 | slo.tttft | unknown key; did you mean ttft?"]),
    ("p95: 500ms", "p9x: 500ms", ["line 13 | slo.ttft.p9x: 500ms | unknown statistic; write p50, p90, p95, p99, p999, mean or max"]),
    ("p95: 500ms", "p00: 500ms", ["line 13 | slo.ttft.p00: 500ms | unknown statistic; write p50, p90, p95, p99, p999, mean or max"]),
    ("p95: 500ms", "p95: 0s", ["line 13 | slo.ttft.p95: 0s | must be more than 0; write 500ms"]),
    ("ttft: {p95: 500ms}", "errors: 101%", ["line 13 | slo.errors: 101% | a share is at most 100%"]),
    ("ttft: {p95: 500ms}", "goodput: 0.95", ["line 13 | slo.goodput: 0.95 | no unit; write 95%"]),
    ("ttft: {p95: 500ms}", "output_tokens_per_s: 500", ["line 13 | slo.output_tokens_per_s: 500 | no unit; write 500/s (tokens per second)"]),
    ("  url: http://127.0.0.1:8000", "  model: x", ["line 2 | target | needs url or engine; write url: http://127.0.0.1:8000"]),
    ("url: http", "engine: {model: tiny}\n  url: http", ["line 3 | target.engine | url and engine exclude each other; keep one"]),
    ("url: http://127.0.0.1:8000", "engine: {kv-cache: paged}", ["line 3 | target.engine.kv-cache: paged | options are spelled with _; write kv_cache"]),
    ("url: http://127.0.0.1:8000", "engine: {batching: on}", ["line 3 | target.engine.batching: on | is text in YAML 1.2 and a truth value in 1.1; write true"]),
    ("url: http://127.0.0.1:8000", "engine: {a: [1]}", ["line 3 | target.engine.a | must be text, a number, true or false"]),
    ("url: http", "body: {stream: true, x: .inf, y: no}\n  url: http", [
        "line 3 | target.body.stream: true | is set by target.stream, not here",
        "line 3 | target.body.x: .inf | holds what JSON cannot say (a non-finite number, a date, half a character)",
        "line 3 | target.body.y: no | is text in YAML 1.2 and a truth value in 1.1; write false",
    ]),
    ("url: http", "headers: {Host: a, b c: d, X-A: 1, x-a: 2}\n  url: http", [
        "line 3 | target.headers.Host: a | is set for each request; remove it",
        "line 3 | target.headers.b c: d | a header's name holds letters, digits and -, nothing else",
        "line 3 | target.headers.x-a: 2 | is given twice (names of headers ignore case)",
    ]),
    ("url: http", 'headers: {X-A: "a\\nb"}\n  url: http', ["line 3 | target.headers.X-A: a b | holds a line end or a character that no header can carry"]),
    ("url: http", "timeout: 0s\n  url: http", ["line 3 | target.timeout: 0s | must be more than 0; write 30s"]),
    ("url: http", "ignore_eos: maybe\n  url: http", ["line 3 | target.ignore_eos: maybe | write auto, true or false"]),
    ("url: http", "stream: maybe\n  url: http", ["line 3 | target.stream: maybe | write true or false"]),
    ("target:\n  url: http://127.0.0.1:8000\n", "", ["line 1 | target | missing; write target: {url: http://127.0.0.1:8000}"]),
    ("target:\n  url: http://127.0.0.1:8000\n", "target: http://h\n", ["line 2 | target: http://h | must be a mapping; write target: {url: http://127.0.0.1:8000}"]),
]  # fmt: skip


@pytest.mark.parametrize(("right", "wrong", "expected"), SLIPS)
def test_a_slip_is_named_with_its_remedy(tmp_path: Path, right: str, wrong: str, expected: list[str]) -> None:
    assert right in GOOD
    assert mistakes(tmp_path, GOOD.replace(right, wrong, 1)) == expected


# Of keys that this version refuses as a whole: what is said of them once they are there.
LATER: list[tuple[str, str, list[str]]] = [
    (
        "rate: 4/s",
        "rate: 4/s\n  until: {tfft.p95: 5%, at_most: 10}",
        [
            'line 7 | load.until."tfft.p95": 5% | write at_most, or a metric and a statistic, as in ttft.p95',
            "line 7 | load.until.at_most: 10 | no unit; write 10s",
        ],
    ),
    ("name: chat", "cost: {per_hour: 3.5}", ["line 1 | cost.per_hour: 3.5 | no currency; write 3.5 USD"]),
    ("name: chat", "cost: 3.5 USD", ["line 1 | cost: 3.5 USD | must be a mapping, with keys such as per_hour"]),
    ("name: chat", "matrix: {load.rat: [1]}", ['line 1 | matrix."load.rat" | unknown path; did you mean rate?']),
    ("name: chat", "matrix: {load.rate: 1/s}", ['line 1 | matrix."load.rate": 1/s | needs a list of values, as in [1, 8, 64]']),
    ("kind: synthetic\n  input_tokens: 512\n", "kind: sharegpt\n", ["line 8 | workload | sharegpt needs path; write path: conversations.json"]),
]  # fmt: skip


@pytest.mark.parametrize(("right", "wrong", "expected"), LATER)
def test_a_slip_in_what_a_later_version_does_is_named_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str, expected: list[str]
) -> None:
    assert any("not in this version" in line for line in mistakes(tmp_path, GOOD.replace(right, wrong, 1)))
    monkeypatch.setattr(not_yet, "NOT_YET", ())
    assert mistakes(tmp_path, GOOD.replace(right, wrong, 1)) == expected


def test_limits_that_a_closed_loop_never_measures_are_refused(tmp_path: Path) -> None:
    """Nothing is due in a closed loop: a gate on these could pass or fail for no reason."""
    closed = GOOD.replace("poisson\n  rate: 4/s", "closed\n  concurrency: 4").replace(
        "ttft: {p95: 500ms}", "{ttft_due: {p95: 1s}, send_lag: {p95: 1s}, ttft: {p95: 1s}, e2e_due: {}}"
    )
    assert mistakes(tmp_path, closed) == [
        "line 13 | slo.ttft_due | a closed loop has no due times to count from; write ttft",
        "line 13 | slo.send_lag | a closed loop has no due times to count from; remove it",
    ]


URLS: list[tuple[str, str]] = [
    ("example.org/v1", "no scheme; write https://example.org/v1, or http://example.org/v1"),
    ("/foo", "no host; write http://127.0.0.1:8000"),
    ("ws://host", "the scheme must be http or https"),
    ("http://", "no host; write http://127.0.0.1:8000"),
    ("http://host:port", "the port must be a number from 1 to 65535, as in http://127.0.0.1:8000"),
    ("http://host:99999", "the port must be a number from 1 to 65535, as in http://127.0.0.1:8000"),
    ("http://host:0", "port 0 cannot be reached; write 1 to 65535"),
    ("http://ho st", "a URL holds no blanks; write http://127.0.0.1:8000"),
    ("http://host#x", "a #fragment has no meaning here; remove it"),
    ("::1", "an IPv6 address needs a scheme and brackets; write http://[::1]:8000"),
    ("http://::1", "an IPv6 address needs brackets; write http://[::1]:8000"),
    ("http://::1:8378/v1", "an IPv6 address needs brackets; write http://[::1]:8378"),
    ("https://fe80::2:1", "an IPv6 address needs brackets; write https://[fe80::2:1]:8000"),
    ("http://[::1", "not an IPv6 address in brackets; write http://[::1]:8000"),
    ("http://h?api-key=abcd", "keep the secret api-key out of the URL; use target.api_key or target.headers"),
]


@pytest.mark.parametrize(("url", "remedy"), URLS)
def test_a_wrong_url_is_refused_with_the_right_one(tmp_path: Path, url: str, remedy: str) -> None:
    (mistake,) = mistakes(tmp_path, GOOD.replace("url: http://127.0.0.1:8000", f"url: '{url}'"))
    assert mistake.endswith(f"| {remedy}")


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://h:8000", "http://h:8000"),
        ("h:8000", "http://h:8000"),
        ("localhost:8000/v1", "http://localhost:8000/v1"),
        ("http://h:8000/", "http://h:8000"),
        ("http://h:8000/v1", "http://h:8000/v1"),
        ("http://h:8000/v1/", "http://h:8000/v1"),
        ("HTTP://h/v1/chat/completions", "http://h/v1"),
        ("http://h/v1/completions/", "http://h/v1"),
        ("http://h/v1/responses", "http://h/v1"),
        ("http://h/q/B59/v1/models", "http://h/q/B59/v1"),
        ("http://[::1]:8378/q/B00/v1", "http://[::1]:8378/q/B00/v1"),
        ("https://h/deployments/x/chat/completions?api-version=2", "https://h/deployments/x?api-version=2"),
    ],
)
def test_a_pasted_url_is_trimmed_to_its_base(tmp_path: Path, given: str, used: str) -> None:
    text = GOOD.replace("http://127.0.0.1:8000", given)
    assert load_scenario(write(tmp_path, text), env={}).target.url == used
    assert load_scenario(write(tmp_path, GOOD), env={}, url=given).target.url == used


def test_no_mistake_repeats_a_secret(tmp_path: Path) -> None:
    text = """\
target:
  url: http://user:hunter22@ho st/v1
  api_kee: sk-0123456789
  api_key: sk-abcdef012345 sk-abcdef012345
  headers: {X-Api-Key: "line1\\nline2hush", Cookie: [sid-hush]}
  model: sk-0123456789-misplaced
  unknown: Bearer tok-hush
load: sk-abcdef012345
"""
    file = write(tmp_path, text)
    (check,) = check_files([file], ["target.api_key.x=sk-inset-01234", "target.apikey=sk-inset-56789"], {})
    shown = check.message + check.warning_message
    for secret in ("hunter22", "sk-0", "sk-a", "hush", "sk-inset"):
        assert secret not in shown
    assert "target.api_kee: ***" in shown
    assert len(check.mistakes) > 6


def test_a_literal_secret_is_allowed_with_a_warning_and_a_variable_without(tmp_path: Path) -> None:
    literal = GOOD.replace("  url:", "  api_key: sk-0123456789\n  headers: {x-api-key: abcdef}\n  url:")
    loaded = read_scenario(write(tmp_path, literal), env={})
    assert "target.api_key: ***" in loaded.warnings
    assert "a key written into the file" in loaded.warnings
    assert "target.headers.x-api-key: ***" in loaded.warnings
    assert "sk-0123456789" not in loaded.warnings
    expanded = GOOD.replace("  url:", "  api_key: ${KEY}\n  url:")
    loaded = read_scenario(write(tmp_path, expanded), env={"KEY": "sk-0123456789"})
    assert loaded.warnings == ""
    assert loaded.scenario.target.api_key is not None
    assert loaded.scenario.target.api_key.get_secret_value() == "sk-0123456789"


def test_a_url_of_another_api_is_a_warning(tmp_path: Path) -> None:
    text = GOOD.replace(":8000", ":8000/v1/completions")
    assert "is the URL of api: completions, but api: chat" in " ".join(
        read_scenario(write(tmp_path, text), env={}).warnings.split()
    )
    assert read_scenario(write(tmp_path, text), ["target.api=completions"], {}).warnings == ""


def test_the_mistakes_of_all_files_are_found_in_one_go(tmp_path: Path) -> None:
    files = [
        write(tmp_path, GOOD.replace("4/s", "4"), "a.yaml"),
        write(tmp_path, GOOD, "b.yaml"),
        tmp_path / "absent.yaml",
        write(tmp_path, GOOD.replace("60s", "60"), "c.yaml"),
        tmp_path,
    ]
    a, b, absent, c, folder = check_files(files, env={})
    assert [len(check.mistakes) for check in (a, b, c)] == [1, 0, 1]
    assert b.scenario is not None
    assert absent.message.startswith(f"{tmp_path}/absent.yaml: no such file")
    assert "is a folder" in folder.message


def test_a_missing_file_of_prompts_is_a_mistake_and_a_found_one_becomes_absolute(tmp_path: Path) -> None:
    text = GOOD.replace("arrivals: poisson\n  rate: 4/s", "arrivals: trace").replace(
        "kind: synthetic\n  input_tokens: 512\n  output_tokens: 128", "kind: azure\n  path: trace.csv"
    )
    (mistake,) = mistakes(tmp_path, text)
    assert mistake == f"line 9 | workload.path: trace.csv | no such file (looked in {tmp_path})"
    (tmp_path / "trace.csv").write_text("x")
    scenario = load_scenario(tmp_path / "chat.yaml", env={})
    assert scenario.workloads[0].path == str(tmp_path / "trace.csv")


def test_every_line_of_a_message_fits_80_columns(tmp_path: Path) -> None:
    for right, wrong, _ in SLIPS:
        (check,) = check_files([write(tmp_path, GOOD.replace(right, wrong, 1))], env={})
        assert max(len(line) for line in check.message.splitlines()[1:]) <= 80


@pytest.mark.parametrize("name", ["", "  "])
def test_no_name_is_no_scenario(name: str) -> None:
    (check,) = check_files([name], env={})
    assert check.message == "no scenario named; write a file, or a name that llmbench scenarios lists"


def test_a_tree_from_python_is_held_to_the_same_rules() -> None:
    with pytest.raises(ScenarioError, match=r"load\.rate\s+no unit; write 4/s"):
        parse_scenario(
            {
                "target": {"url": "http://h"},
                "load": {"arrivals": "poisson", "rate": 4, "duration": "1s"},
                "workload": {"kind": "inline", "prompts": ["a"]},
            }
        )


LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["4/s", "1s", "95%", "poisson", "closed", "trace", "synthetic", "azure", "${A}", "http://h"]),
)  # fmt: skip
KEYS = st.sampled_from(
    ["name", "target", "url", "engine", "headers", "body", "load", "arrivals", "rate", "stages", "for", "ramp_to",
     "requests", "workload", "workloads", "kind", "input_tokens", "uniform", "min", "max", "empirical", "values",
     "slo", "ttft", "p95", "matrix", "until", "path", "prompts", "think_time", "seed", "zzz", "a.b", "api_key"]
)  # fmt: skip
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=6)),
    max_leaves=25,
)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=150)
@given(st.dictionaries(KEYS, TREES, max_size=6))
def test_whatever_the_tree_nothing_but_a_scenario_error_is_raised(tree: dict[str, object]) -> None:
    with contextlib.suppress(ScenarioError):
        parse_scenario(tree)


FRAGMENTS = st.lists(
    st.sampled_from(
        ["target:", "load:", "\n", "\n  ", " ", "- ", "{", "}", "[", "]", ": ", ",", "&a ", "*a", "!!int ", "<<: ", "'",
         '"', "|", "#", "${A}", "${", "$${", "\t", "rate: 4", "kind", "---", "? ", "%", "@", "\u2028", "\x07", "é", "0"]
    ),
    max_size=30,
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], max_examples=300)
@given(st.one_of(FRAGMENTS.map("".join).map(str.encode), st.binary(max_size=60)), st.text(max_size=20))
def test_whatever_the_file_nothing_but_a_scenario_error_is_raised(
    tmp_path: Path, content: bytes, setting: str
) -> None:
    file = tmp_path / "any.yaml"
    file.write_bytes(content)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(file, [setting, f"load.{setting}=3"], env={"A": "x: {"})
    assert re.match(rf"{re.escape(str(file))}: \d+ mistakes?\n  ", str(caught.value))
