"""What the documents say is tried: every command of the README, its scenario, its Python, its reference.

`LLMBENCH_UPDATE_DOCS=1 pytest tests/test_docs.py` writes the command line's reference and the table of
verdicts into the README.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from llmbench.cli import app
from llmbench.scenario.bundled import bundled_scenarios
from llmbench.scenario.load import check_files
from llmbench.trust import rules_table
from tests.programs import LLMBENCH, MEASURED

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
REFERENCE = re.compile(r"(<!-- reference: [^\n]*-->\n).*?(<!-- end of reference -->)", re.DOTALL)
VERDICT = re.compile(r"(<!-- verdict: [^\n]*-->\n).*?(<!-- end of verdict -->)", re.DOTALL)
DOCUMENTED = (None, "run", "check", "report", "definitions")  # the other commands say it all in one line

# A minute's load in a second: the command is what is tried, not the server.
HURRY = ["--set", "load.duration=1s", "--set", "load.warmup=0s"]


def blocks(language: str) -> list[str]:
    text = README.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = "\n".join(blocks("console")).splitlines()
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def help_of(command: str | None) -> str:
    arguments = [command, "--help"] if command else ["--help"]
    result = subprocess.run(
        [*LLMBENCH, *arguments],
        capture_output=True,
        encoding="utf-8",
        check=True,
        env={**os.environ, "COLUMNS": "80", "TERM": "dumb"},
    )
    return result.stdout.rstrip()


def test_the_verdicts_table_in_the_readme_is_that_of_the_code():
    text = README.read_text(encoding="utf-8")
    wanted = VERDICT.sub(lambda found: f"{found[1]}{rules_table()}{found[2]}", text)
    assert wanted.count(rules_table()) == 1
    if os.environ.get("LLMBENCH_UPDATE_DOCS"):
        README.write_text(wanted, encoding="utf-8")
    assert text == wanted or os.environ.get("LLMBENCH_UPDATE_DOCS")


def test_the_reference_in_the_readme_is_the_help_text():
    reference = "\n".join(
        f"```text\n$ llmbench {f'{command} ' if command else ''}--help\n{help_of(command)}\n```\n"
        for command in DOCUMENTED
    )
    text = README.read_text(encoding="utf-8")
    wanted = REFERENCE.sub(lambda found: f"{found[1]}{reference}{found[2]}", text)
    if os.environ.get("LLMBENCH_UPDATE_DOCS"):
        README.write_text(wanted, encoding="utf-8")
    assert text == wanted or os.environ.get("LLMBENCH_UPDATE_DOCS")


@pytest.mark.parametrize("command", [line for line in commands() if line.startswith("make ")])
def test_the_makefile_has_the_readmes_commands(command):
    subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, check=True)


def test_the_readmes_commands_work_in_their_order(bench_on):
    bench = bench_on("--ttft", "5ms", "--itl", "1ms")
    tried = 0
    for command in commands():
        program, *arguments = shlex.split(command.replace("http://127.0.0.1:8000", bench.url))
        if program != "llmbench":
            continue
        result = bench(*arguments, *(HURRY if arguments[0] == "run" else []))
        assert result.returncode in (*MEASURED, 98), f"{command}\n{result.stdout}{result.stderr}"
        tried += 1
    assert tried >= 4


def test_the_readmes_scenario_validates_and_shows_the_defaults_it_claims(tmp_path):
    (scenario,) = blocks("yaml")
    file = tmp_path / "chat.yaml"
    file.write_text(scenario, encoding="utf-8")
    (check,) = check_files([file], env={})
    assert check.message == ""


def run_script(script: str, url: str, folder: Path) -> str:
    """What a script of the README prints, tried on the server at `url`; its warnings are errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script.replace("http://127.0.0.1:8000", url)],
        capture_output=True,
        encoding="utf-8",
        check=True,
        cwd=folder,
    ).stdout


def test_the_readmes_measurement_adds_up(mock_server, tmp_path):
    printed = run_script(blocks("python")[0], mock_server("--ttft", "5ms", "--itl", "1ms"), tmp_path)
    ttft, tpot, tokens, e2e = map(float, printed.split())
    assert ttft + tpot * 31 == pytest.approx(e2e)
    assert tokens > 32


def test_the_readmes_run_in_python_leaves_its_folder(mock_server, tmp_path):
    printed = run_script(blocks("python")[1], mock_server("--ttft", "5ms", "--itl", "1ms"), tmp_path)
    folder, ttft, code = printed.split()
    assert (tmp_path / folder / "requests.parquet").exists()
    assert float(ttft) > 0.005
    assert int(code) in (*MEASURED, 98)  # 98: few requests for its limits


def test_the_readmes_latency_test_passes(mock_server, pytester):
    url = mock_server("--ttft", "5ms", "--itl", "1ms")
    pytester.makepyfile(blocks("python")[2])
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "--llmbench-url", url).assert_outcomes(passed=1)


def test_the_exit_codes_of_the_readme_are_those_of_the_command():
    table = dict(re.findall(r"^\| (\d+) \| (.*) \|$", README.read_text(encoding="utf-8"), re.MULTILINE))
    codes = {app.EXIT_USAGE, app.EXIT_CANNOT_MEASURE, app.EXIT_INTERRUPTED}
    assert codes <= set(map(int, table))


@pytest.mark.parametrize("name", sorted(bundled_scenarios()))
def test_every_bundled_scenario_is_valid_and_says_how_to_run_it(name):
    file = bundled_scenarios()[name]
    (check,) = check_files([file], env={})
    assert check.message == ""
    assert check.warning_message == ""
    assert check.scenario is not None
    assert check.scenario.name == name
    assert check.scenario.description
    assert f"llmbench run {name}" in file.read_text(encoding="utf-8")


def test_quickstart_is_over_within_a_quarter_of_a_minute():
    scenario = yaml.safe_load(bundled_scenarios()["quickstart"].read_text(encoding="utf-8"))
    total_s = sum(float(scenario["load"][key].removesuffix("s")) for key in ("duration", "warmup"))
    assert total_s <= 15
    assert scenario["target"]["engine"]["model"] == "tiny"
