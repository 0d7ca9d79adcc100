"""Whatever `run` would refuse before the first request, `check` refuses with the same words, line by line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llmbench.bench import run_scenario
from llmbench.errors import ScenarioError, UsageError
from llmbench.preflight import checked, prepare, problems_of
from llmbench.scenario.load import check_files, load_scenario, parse_scenario
from llmbench.scenario.not_yet import IMPLEMENTED_WORKLOADS, NOT_YET

GOOD = """\
name: chat
target:
  url: http://127.0.0.1:9
load:
  arrivals: poisson
  rate: 4/s
  duration: 60s
workload:
  kind: inline
  prompts: [Say hi]
"""
JSONL = GOOD.replace("kind: inline\n  prompts: [Say hi]", "kind: jsonl\n  path: p.jsonl")
SYNTHETIC = GOOD.replace(
    "kind: inline\n  prompts: [Say hi]", "kind: synthetic\n  input_tokens: 5\n  output_tokens: 5"
)
MESSAGES = '{"messages": [{"role": "user", "content": "a"}]}\n'


@pytest.fixture
def refused(tmp_path):
    """What check says of a scenario, once it is sure that run says the same and leaves nothing behind."""

    def look(text, **files):
        for name, content in files.items():
            (tmp_path / name.replace("_", ".")).write_text(content, encoding="utf-8")
        file = tmp_path / "chat.yaml"
        file.write_text(text, encoding="utf-8")
        (check,) = map(checked, check_files([file], env={}))
        with pytest.raises(UsageError) as caught:
            run_scenario(load_scenario(file, env={}), out=tmp_path / "reports")
        assert str(caught.value) == check.message
        assert not (tmp_path / "reports").exists()
        return [f"{item.where} | {item.key} | {item.text}" for item in check.mistakes]

    return look


@pytest.mark.parametrize(
    ("right", "wrong", "key", "line"),
    [
        ("name: chat", "matrix: {load.rate: [1/s, 2/s]}", "matrix", 1),
        ("name: chat", "cost: {per_hour: 3 USD}", "cost", 1),
        ("name: chat", "server_metrics: true", "server_metrics: true", 1),
        ("name: chat", "server_metrics: 'yes'", "server_metrics: yes", 1),
        ("name: chat", "server_metrics: http://h/m", "server_metrics: http://h/m", 1),
        ("rate: 4/s", "rate: 4/s\n  until: {ttft.p95: 5%}", "load.until", 7),
        ("kind: inline", "kind: inline\n  slo: {ttft: {p95: 1s}}", "workload.slo", 10),
    ],
)
def test_what_is_not_in_this_version_is_refused_with_its_line(refused, right, wrong, key, line):
    (said,) = refused(GOOD.replace(right, wrong))
    entry = next(entry for entry in NOT_YET if key.startswith(entry.key))
    assert said == f"line {line} | {key} | not in this version; {entry.instead}"


@pytest.mark.parametrize("kind", [entry.value for entry in NOT_YET if entry.key == "workload.kind"])
def test_kinds_to_come_are_refused_with_those_that_are_there(refused, kind):
    text = GOOD.replace("kind: inline\n  prompts: [Say hi]", f"kind: {kind}\n  path: chat.yaml")
    kinds = ", ".join(IMPLEMENTED_WORKLOADS)
    assert refused(text) == [f"line 9 | workload.kind: {kind} | not in this version; write one of {kinds}"]


def test_every_kind_is_there_or_in_the_table():
    assert IMPLEMENTED_WORKLOADS == (
        "synthetic",
        "inline",
        "jsonl",
        "azure",
        "mooncake",
        "bailian",
        "burstgpt",
        "trace",
    )


@pytest.mark.parametrize(
    "part",
    ["server_metrics: auto", "server_metrics: false", "instrument: {workers: 2}", "matrix: {}",
     "instrument: {timestamps: loop}", "cost:"],
)  # fmt: skip
def test_what_asks_for_nothing_is_let_through(tmp_path, part):
    file = tmp_path / "chat.yaml"
    file.write_text(GOOD.replace("name: chat", part), encoding="utf-8")
    (check,) = map(checked, check_files([file], env={}))
    assert check.message == ""
    prepare(load_scenario(file, env={}))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"prompt": "a"}\n{\n{}\n', ["line 2: not JSON", "line 3: needs one of prompt and messages"]),
        ('{"promt": "a"}\n', ["line 1: unknown key 'promt', did you mean prompt?"]),
        ("", [": no prompts; expected a line like"]),
        ("\n\n", [": no prompts; expected a line like"]),
    ],
)
def test_every_broken_line_of_a_file_of_prompts_is_a_mistake_at_its_path(refused, content, expected):
    found = refused(JSONL, p_jsonl=content)
    assert len(found) == len(expected)
    for said, part in zip(found, expected, strict=True):
        assert said.startswith("line 10 | workload.path: p.jsonl | ")
        assert part in said


@pytest.mark.parametrize("content", ["", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "a,b\n1,2\n"])
def test_a_trace_without_a_usable_row_is_a_mistake(refused, content):
    text = JSONL.replace("kind: jsonl", "kind: azure").replace("p.jsonl", "t.csv")
    (said,) = refused(text, t_csv=content)
    assert said.startswith("line 10 | workload.path: t.csv | ")


def test_a_trace_that_is_skipped_whole_is_a_mistake(refused):
    text = JSONL.replace("kind: jsonl", "kind: azure").replace("p.jsonl", "t.csv")
    text = text.replace("poisson\n  rate: 4/s", "trace\n  start: 1h")
    row = "2023-11-16 18:15:46.6805900,374,44\n"
    (said,) = refused(text, t_csv=f"TIMESTAMP,ContextTokens,GeneratedTokens\n{row}")
    assert said.startswith("line 6 | load.start: 1h | 3600s skips all of")


def test_conversations_are_no_prompts_for_the_completions_api(refused):
    text = JSONL.replace("target:\n", "target:\n  api: completions\n")
    (said,) = refused(text, p_jsonl=MESSAGES)
    assert said.startswith("line 11 | workload.path: p.jsonl | has messages, which target.api: completions")
    assert said.endswith("; write api: chat")


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ("duration: 60s", "duration: 1ms", "line 4 | load | not one request is due in the measured time"),
        ("duration: 60s", "duration: 1000d", "load.duration: 1000d | longer than"),
        ("rate: 4/s", "rate: 100000000/s", "line 4 | load | about "),
        (
            "kind: inline\n  prompts: [Say hi]",
            "kind: jsonl\n  path: chat.yaml",
            "workload.path: chat.yaml | ",
        ),
    ],
)
def test_a_plan_that_cannot_be_is_a_mistake(refused, right, wrong, expected):
    assert any(expected in said for said in refused(GOOD.replace(right, wrong)))


def test_a_file_of_certificates_that_is_none_is_a_mistake(refused):
    text = GOOD.replace("  url: http://127.0.0.1:9", "  url: https://127.0.0.1:9\n  tls_verify: ca.pem")
    (said,) = refused(text, ca_pem="nothing")
    assert said.startswith("line 4 | target.tls_verify: ca.pem | ")


def test_a_tokenizer_that_is_none_is_a_mistake(refused):
    pytest.importorskip("tokenizers")
    text = SYNTHETIC.replace("target:\n", "target:\n  tokenizer: t.json\n")
    (said,) = refused(text, t_json="nothing")
    assert said.startswith("line 3 | target.tokenizer: t.json | ")


@pytest.mark.parametrize(
    ("engine", "key", "expected"),
    [
        ("{model: tinny}", "target.engine.model: tinny", "unknown model; did you mean tiny?"),
        ("{model: zzzzzz}", "target.engine.model: zzzzzz", "unknown model; write tiny, tiny-draft, "),
        ("{modle: tiny}", "target.engine.modle: tiny", "unknown option of the engine; did you mean model?"),
        ("{model: tiny, threads: many}", "target.engine.threads: many", "invalid int value: 'many'"),
    ],
)
def test_the_engine_is_asked_for_its_models_and_options(refused, engine, key, expected):
    (said,) = refused(GOOD.replace("url: http://127.0.0.1:9", f"engine: {engine}"))
    assert said.startswith(f"line 3 | {key} | {expected}")


def test_all_mistakes_are_told_together_also_beside_those_of_the_text(tmp_path):
    (tmp_path / "p.jsonl").write_text("{\n", encoding="utf-8")
    file = tmp_path / "chat.yaml"
    text = JSONL.replace("rate: 4/s", "rate: 4").replace("name: chat", "cost: {per_hour: 3 USD}")
    file.write_text(text.replace("url: http://127.0.0.1:9", "engine: {model: tinny}"), encoding="utf-8")
    (check,) = map(checked, check_files([file], env={}))
    keys = [mistake.key for mistake in check.mistakes]
    assert sorted(keys) == [
        "cost", "load.rate: 4", "target.engine.model: tinny", "workload.path: p.jsonl",
    ]  # fmt: skip
    assert check.message.startswith(f"{file}: 4 mistakes\n  line 1 ")


def test_of_several_workloads_the_wrong_one_is_named(refused):
    text = JSONL.replace("workload:\n  kind", "workloads:\n- {kind: inline, prompts: [a]}\n- kind")
    (said,) = refused(text, p_jsonl="{\n")
    assert said.startswith("line 11 | workloads.1.path: p.jsonl | ")


def test_a_list_of_one_workload_is_named_as_it_was_written(refused):
    (said,) = refused(JSONL.replace("workload:\n  kind", "workloads:\n- kind"), p_jsonl="{\n")
    assert said.startswith("line 10 | workloads.0.path: p.jsonl | ")


def test_a_scenario_made_in_python_is_refused_without_lines(tmp_path):
    made = parse_scenario(
        {
            "name": "mine",
            "target": {"url": "http://h:1"},
            "load": {"arrivals": "closed", "concurrency": 1, "requests": 1},
            "workload": {"kind": "jsonl", "path": str(tmp_path)},
            "cost": {"per_hour": "3 USD"},
        }
    )
    with pytest.raises(ScenarioError) as caught:
        prepare(made)
    first, *rest = str(caught.value).splitlines()
    assert first == "mine: 2 mistakes"
    assert rest[0] == "  cost            not in this version; remove it"
    assert "is a folder" in " ".join(rest[1:])


def test_an_error_without_a_key_is_told_all_the_same():
    assert problems_of(UsageError("all is wrong")) == [((), "all is wrong")]
    assert problems_of(UsageError("load.rate: too high\n  by far\nseed: odd")) == [
        (("load", "rate"), "too high by far"),
        (("seed",), "odd"),
    ]


def test_the_command_says_it_in_80_columns_with_code_2(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"promt": "a"}\n', encoding="utf-8")
    (tmp_path / "chat.yaml").write_text(JSONL, encoding="utf-8")
    said = [
        subprocess.run(
            [sys.executable, "-m", "llmbench", command, "chat.yaml"],
            capture_output=True, encoding="utf-8", check=False, cwd=tmp_path,
        )
        for command in ("check", "run")
    ]  # fmt: skip
    assert [done.returncode for done in said] == [2, 2]
    assert said[0].stderr == said[1].stderr
    assert "line 10    workload.path: p.jsonl   p.jsonl line 1: unknown key" in said[0].stderr
    assert all(len(line) <= 80 for line in said[0].stderr.splitlines())
