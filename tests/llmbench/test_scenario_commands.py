"""The commands check, schema, init and scenarios, as a shell sees them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmbench.scenario.load import load_scenario


def llmbench(*args: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "llmbench", *map(str, args)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False, cwd=cwd)


def test_check_says_ok_with_what_a_run_would_send() -> None:
    done = llmbench("check", "quickstart", "closed-loop")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "quickstart: ok"
    assert lines[1].startswith("  open loop, Poisson 10/s for 12 s")
    assert lines[3] == "closed-loop: ok"
    assert "synthetic to http://127.0.0.1:8000" in " ".join(line.strip() for line in lines[4:])
    assert all(len(line) <= 80 for line in lines)


def test_check_reports_every_file_and_exits_with_2(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "scenarios" / "chat-steady.yaml").read_text(encoding="utf-8")
    (tmp_path / "a.yaml").write_text(text.replace("rate: 4/s", "rate: 4"), encoding="utf-8")
    (tmp_path / "b.yaml").write_text(text.replace("seed:", "sed:"), encoding="utf-8")
    done = llmbench("check", "a.yaml", "quickstart", "absent.yaml", "b.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout.splitlines()[0] == "quickstart: ok"
    for message in (
        *("a.yaml: 1 mistake\n", "load.rate: 4", "absent.yaml: no such file", "b.yaml: 1 mistake\n"),
        *("unknown key; did you mean seed?",),
    ):
        assert message in done.stderr


def test_check_takes_settings() -> None:
    done = llmbench("check", "quickstart", "--set", "load.rate=8")
    assert done.returncode == 2
    assert "--set    load.rate: 8   no unit; write 8/s" in done.stderr


def test_schema_prints_json_alone() -> None:
    done = llmbench("schema")
    assert done.returncode == 0
    assert "workload" in json.loads(done.stdout)["properties"]


def test_init_writes_a_file_that_validates_and_never_overwrites_unasked(tmp_path: Path) -> None:
    assert llmbench("init", cwd=tmp_path).returncode == 0
    file = tmp_path / "scenario.yaml"
    scenario = load_scenario(file, env={})
    assert scenario.target.url == "http://127.0.0.1:8000"
    file.write_text("mine")
    refused = llmbench("init", "scenario.yaml", cwd=tmp_path)
    assert refused.returncode == 2
    assert "scenario.yaml exists; choose another name, or overwrite it with --force" in refused.stderr
    assert file.read_text() == "mine"
    assert llmbench("init", "scenario.yaml", "--force", cwd=tmp_path).returncode == 0
    assert load_scenario(file, env={}) == scenario
    nowhere = llmbench("init", "no/such/folder/x.yaml", cwd=tmp_path)
    assert nowhere.returncode == 2
    assert "cannot be written" in nowhere.stderr


def test_scenarios_lists_and_shows() -> None:
    listed = llmbench("scenarios")
    assert listed.returncode == 0
    assert all(len(line) <= 80 for line in listed.stdout.splitlines())
    assert any(line.startswith("quickstart ") for line in listed.stdout.splitlines())
    shown = llmbench("scenarios", "--show", "quickstart")
    assert "arrivals: poisson" in shown.stdout
    unknown = llmbench("scenarios", "--show", "quickstrat")
    assert unknown.returncode == 2
    assert "did you mean quickstart?" in unknown.stderr


def test_an_installed_package_finds_the_scenarios_it_brings(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    package = tmp_path / "site" / "llmbench"
    for part in ("__init__.py", "errors.py", "scenario"):
        source = root / "llmbench" / part
        copy = shutil.copytree if source.is_dir() else shutil.copy
        package.mkdir(parents=True, exist_ok=True)
        copy(source, package / part)
    shutil.copytree(root / "scenarios", package / "bundled_scenarios")
    code = (
        "from llmbench.scenario.load import load_scenario\n"
        "print(load_scenario('azure-conversation').workloads[0].path)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True, cwd=package.parent
    )
    assert shown.stdout.startswith(str(package / "bundled_scenarios"))


@pytest.mark.parametrize("module", ["numpy", "pandas", "typer", "asyncio", "aiohttp"])
def test_reading_a_scenario_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, llmbench.scenario.load; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
