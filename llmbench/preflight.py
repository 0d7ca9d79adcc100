"""Everything that can be known to be wrong before the first request, found once for `run` and `check`.

    what this version cannot do ─▶ the workloads' files ─▶ the plan ─▶ how to connect ─▶ the bundled engine

`run` refuses with it, `check` reports it; nothing is sent. An error of another part that begins with a key
of the scenario (`load.rate: …`) is a problem at that key; with the file that the scenario was read from it
becomes a line there.
"""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from llmbench.client.choose import choose, choose_stamps, tls_context
from llmbench.errors import UsageError
from llmbench.load.plan import Plan, make_plan
from llmbench.replay.engine_process import engine_arguments
from llmbench.scenario.address import Address, parse_address
from llmbench.scenario.keys import is_known_path
from llmbench.scenario.load import FileCheck, refusal
from llmbench.scenario.model import Scenario
from llmbench.scenario.not_yet import asked_too_early
from llmbench.scenario.rules import Broken, value_at, workloads
from llmbench.workload.data import WorkloadData, load_data, read_file
from llmbench.workload.fit import tokenizer_count
from llmbench.workload.traces import TRACE_KINDS

EXIT_USAGE: Final = 2
ASK_ENGINE_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a run needs before it reaches its target."""

    data: WorkloadData
    plan: Plan


def prepare(scenario: Scenario, scenario_dir: Path | None = None) -> Prepared:
    """The data and the plan of a run; raises ScenarioError with everything that stands in its way."""
    if not isinstance(scenario, Scenario):
        raise TypeError(
            f"a Scenario is run, not {type(scenario).__name__}; "
            "load_scenario(path_or_name) reads one, parse_scenario(mapping) makes one"
        )
    prepared, problems = _look_at(scenario, scenario_dir)
    if prepared is None or problems:
        raise refusal(scenario, problems)
    return prepared


def checked(check: FileCheck) -> FileCheck:
    """A file's check, with what `run` would find beyond the file's own text."""
    if check.scenario is not None:
        return check.with_problems(_look_at(check.scenario, None)[1])
    tree = check.source.document.tree if check.source is not None else None
    return check.with_problems(_look_at_parts(tree)) if isinstance(tree, Mapping) else check


def _look_at(scenario: Scenario, scenario_dir: Path | None) -> tuple[Prepared | None, list[Broken]]:
    """What a run needs, where nothing hinders it, and every problem."""
    problems: list[Broken] = asked_too_early(scenario.resolved())
    plan = data = None
    try:
        data = load_data(scenario, scenario_dir)
    except UsageError as error:
        problems += problems_of(error)
    if data is not None or scenario.load.arrivals != "trace":
        try:
            plan = make_plan(scenario, data.trace if data is not None else None)
        except UsageError as error:
            problems += problems_of(error)
    problems += _connection_problems(scenario)
    problems += _engine_problems(scenario.target.engine)
    prepared = None if data is None or plan is None else Prepared(data=data, plan=plan)
    return prepared, _each_key_once(problems)


def _look_at_parts(tree: Mapping[str, Any]) -> list[Broken]:
    """The files and the engine of a scenario that does not validate: its other mistakes are known."""
    problems: list[Broken] = []
    for root, item in workloads(tree):
        kind, path = value_at(item, ("kind",)), value_at(item, ("path",))
        if kind in ("jsonl", *TRACE_KINDS) and isinstance(path, str) and Path(path).is_file():
            try:
                read_file(kind, path, root=".".join(map(str, root)))
            except UsageError as error:
                problems += problems_of(error)
    engine = value_at(tree, ("target", "engine"))
    if isinstance(engine, Mapping) and all(isinstance(item, str | int | float) for item in engine.values()):
        problems += _engine_problems(engine)
    return problems


def problems_of(error: UsageError) -> list[Broken]:
    """Each line of an error at the key it begins with; a line without a key goes on with the one before."""
    problems: list[Broken] = []
    for line in str(error).splitlines():
        key, colon, text = line.partition(": ")
        path = tuple(int(part) if part.isdecimal() else part for part in key.split("."))
        if colon and is_known_path(path):
            problems.append((path, text))
        elif problems:
            problems[-1] = (problems[-1][0], f"{problems[-1][1]} {line.strip()}")
        else:
            problems.append(((), line))
    return problems


def _each_key_once(problems: Iterable[Broken]) -> list[Broken]:
    """Without what two parts say of one key in different words, and with all that one part says of it."""
    kept: list[Broken] = []
    early = {path for path, text in problems if text.startswith("not in this version")}
    for path, text in problems:
        if (path, text) not in kept and (path not in early or text.startswith("not in this version")):
            kept.append((path, text))
    return kept


def _connection_problems(scenario: Scenario) -> list[Broken]:
    """Settings of the connection that cannot be honoured here: certificates, a proxy, a tokenizer's file."""
    target = scenario.target
    problems: list[Broken] = []
    if target.url is not None:
        address = parse_address(target.url, target.unix_socket)
        problems += _told(lambda: tls_context(address, target.tls_verify))
        problems += _told(lambda: _choices(scenario, address))
    if target.tokenizer is not None:
        tokenizer = Path(target.tokenizer)
        problems += _told(lambda: tokenizer_count(tokenizer))
    return problems


def _choices(scenario: Scenario, address: Address) -> None:
    asked = scenario.instrument
    choose_stamps(asked.timestamps, choose(asked.transport, address), address)


def _told(work: Callable[[], object]) -> list[Broken]:
    try:
        work()
    except UsageError as error:
        return problems_of(error)
    return []


def _engine_problems(options: Mapping[str, Any] | None) -> list[Broken]:
    """What the engine would say to its options; nothing where it is not installed or cannot tell.

    It is another program: it is asked for its models and, with the options, for its help. Both take a tenth
    of a second, at the same time, and load no model.
    """
    if options is None or find_spec("reference_engine") is None:
        return []
    asked_models = _ask_engine("reference_engine.listing") if "model" in options else None
    asked_help = _ask_engine("reference_engine", *engine_arguments(options), "--help")
    problems: list[Broken] = []
    if asked_models is not None:
        problems += _unknown_model(str(options["model"]), *_answer(asked_models))
    return problems + _unknown_options(options, *_answer(asked_help))


def _unknown_model(model: str, code: int, listed: str, _: str) -> list[Broken]:
    if code != 0 or Path(model).expanduser().exists():
        return []
    known = [str(entry["name"]) for entry in json.loads(listed)]
    if model in known:
        return []
    close = difflib.get_close_matches(model, known, n=1, cutoff=0.5)
    remedy = f"did you mean {close[0]}?" if close else f"write {', '.join(known)} or a model's folder"
    return [(("target", "engine", "model"), f"unknown model; {remedy}")]


def _unknown_options(options: Mapping[str, Any], code: int, shown: str, complaint: str) -> list[Broken]:
    """Values that the engine's own command line refuses, and options that its help does not name."""
    if code == EXIT_USAGE:
        said = complaint.strip().splitlines()[-1].partition("error: ")[2]
        argument, _, text = said.removeprefix("argument --").partition(": ")
        name = argument.replace("-", "_")
        return [(("target", "engine", name), text)] if name in options else [(("target", "engine"), said)]
    if code != 0:
        return []
    words = {word.strip("[],.=():").removeprefix("--") for word in shown.split() if "--" in word}
    known = sorted({word.removeprefix("no-").replace("-", "_") for word in words})
    problems: list[Broken] = []
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(option, known, n=1, cutoff=0.6)
            remedy = f"did you mean {close[0]}?" if close else "see llmbench serve --help"
            problems.append((("target", "engine", option), f"unknown option of the engine; {remedy}"))
    return problems


def _ask_engine(module: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )


def _answer(asked: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Its exit code (1 when it does not end), stdout and stderr."""
    try:
        stdout, stderr = asked.communicate(timeout=ASK_ENGINE_S)
    except subprocess.TimeoutExpired:
        asked.kill()
        asked.communicate()
        return 1, "", ""
    return asked.returncode, stdout, stderr
