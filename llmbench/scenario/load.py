"""From a file, or a bundled scenario's name, to a checked `Scenario`; every mistake is reported together."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any, Self

from pydantic import ValidationError

from llmbench.errors import ScenarioError
from llmbench.scenario import rules
from llmbench.scenario.address import parse_address
from llmbench.scenario.bundled import find_scenario
from llmbench.scenario.environment import has_reference
from llmbench.scenario.fields import FILE_CONTEXT, parse_flag
from llmbench.scenario.keys import guess, is_known_path
from llmbench.scenario.masking import is_secret_name, scrub, scrub_list, secrets_in
from llmbench.scenario.mistakes import Mistake, at, from_flaw, from_validation, layout
from llmbench.scenario.model import Scenario, scenario_from_resolved, secrets_of
from llmbench.scenario.not_yet import asked_too_early
from llmbench.scenario.options import normalized_name
from llmbench.scenario.rules import Broken, Path, value_at
from llmbench.scenario.source import Document, Flaw, Place, Source, decode, override, read_yaml

__all__ = [
    "FileCheck",
    "LoadedScenario",
    "check_files",
    "load_scenario",
    "parse_scenario",
    "read_scenario",
    "scenario_from_resolved",
    "secrets_of",
]

_MAX_BYTES = 4 * 2**20
_PLACEHOLDER_KEYS = ("empty", "none", "dummy", "test", "na", "n/a")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCheck:
    """What reading one file found: the scenario when there is no mistake, and warnings either way."""

    label: str
    scenario: Scenario | None
    mistakes: tuple[Mistake, ...] = ()
    warnings: tuple[Mistake, ...] = ()
    problem: str | None = None  # instead of mistakes, when there is no file to find them in
    source: Source | None = None  # what was read, also where no scenario came of it

    @property
    def message(self) -> str:
        """The mistakes as text for the terminal; empty when there are none."""
        return self.problem or (layout(self.label, self.mistakes) if self.mistakes else "")

    @property
    def warning_message(self) -> str:
        """The warnings as text for the terminal; empty when there are none."""
        return layout(self.label, self.warnings, "warning") if self.warnings else ""

    def with_problems(self, problems: Iterable[Broken]) -> Self:
        """The same check with what was found out later, in its place in the file."""
        if self.source is None:
            return self
        known = {(mistake.path, mistake.text) for mistake in self.mistakes}
        later = [item for item in _located(self.source, problems) if (item.path, item.text) not in known]
        mistakes = (*self.mistakes, *later)
        return replace(self, mistakes=mistakes, scenario=None if mistakes else self.scenario)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedScenario:
    """A scenario, and as text what deserves a word though it is allowed (empty when nothing does)."""

    scenario: Scenario
    warnings: str


def load_scenario(
    path_or_name: str | FilePath,
    sets: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    url: str | None = None,
) -> Scenario:
    """Reads a scenario file or a bundled scenario; raises `ScenarioError` listing every mistake.

    `sets` are `path=value` overrides, `env` (default: the process's) expands `${VAR}`, and `url` replaces the
    target, be it a URL or an engine.
    """
    return read_scenario(path_or_name, sets, env, url).scenario


def read_scenario(
    path_or_name: str | FilePath,
    sets: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    url: str | None = None,
) -> LoadedScenario:
    """As `load_scenario`, with the warnings."""
    check = _check_file(path_or_name, sets, os.environ if env is None else env, url)
    if check.scenario is None:
        raise ScenarioError(check.message)
    return LoadedScenario(scenario=check.scenario, warnings=check.warning_message)


def check_files(
    paths_or_names: Iterable[str | FilePath], sets: Sequence[str] = (), env: Mapping[str, str] | None = None
) -> tuple[FileCheck, ...]:
    """Reads every file to its end and never raises for what they say."""
    return tuple(_check_file(item, sets, os.environ if env is None else env, None) for item in paths_or_names)


def parse_scenario(tree: Mapping[str, Any]) -> Scenario:
    """A scenario from a tree in the file's own words, `{"load": {"rate": "4/s"}}`; raises `ScenarioError`."""
    document = Document(tree=copy.deepcopy(dict(tree)))
    scenario, mistakes = _validate(document)
    if scenario is None or mistakes:
        raise ScenarioError(layout("scenario", mistakes))
    return scenario


def refusal(scenario: Scenario, problems: Iterable[Broken]) -> ScenarioError:
    """What is wrong with a scenario that validates, as `llmbench check` tells it: file, line, key, value."""
    source = scenario.source or Source(label=scenario.name, document=Document(tree=scenario.resolved()))
    return ScenarioError(layout(source.label, _located(source, problems)))


def _located(source: Source, problems: Iterable[Broken]) -> list[Mistake]:
    document = source.document
    found = [at(document, _as_written(path, document.tree), text) for path, text in problems]
    return _scrubbed(found, document.tree)


def _as_written(path: Path, tree: Any) -> Path:
    """A path of a resolved scenario, which has one workload below `workload`, as the file's own."""
    is_list = isinstance(tree, Mapping) and tree.get("workload") is None
    return ("workloads", 0, *path[1:]) if path[:1] == ("workload",) and is_list else path


def _check_file(
    path_or_name: str | FilePath, sets: Sequence[str], env: Mapping[str, str], url: str | None
) -> FileCheck:
    label = str(path_or_name)
    try:
        file = find_scenario(path_or_name)
        content = _read_bytes(file)
    except ScenarioError as error:
        return FileCheck(label=label, scenario=None, problem=str(error))
    text, flaw = decode(content)
    document = read_yaml(text, env) if flaw is None else Document(flaws=[flaw])
    if document.tree is None and not document.flaws:
        found = "holds comments only" if text.strip() else "is empty"
        remedy = f"the file {found}; llmbench init {label} --force writes one to start from"
        document.flaws.append(Flaw(path=(), place=Place(line=1), text=remedy))
    return _check_document(document, label, file, sets, env, url)


def _check_document(
    document: Document,
    label: str,
    file: FilePath,
    sets: Sequence[str],
    env: Mapping[str, str],
    url: str | None,
) -> FileCheck:
    unreadable = document.tree is None and bool(document.flaws)
    if not isinstance(document.tree, dict | None):
        text = "a scenario is a mapping of keys (name, target, load, workload)"
        document.flaws.append(Flaw(path=(), place=Place(line=1), text=text))
    else:
        for setting in sets:
            override(document, setting, env)
        if url is not None:
            _use_url(document, url, env)
    mistakes = [from_flaw(flaw) for flaw in document.flaws]
    warnings: list[Mistake] = []
    scenario = None
    if isinstance(document.tree, dict) and not unreadable:
        document.tree.setdefault("name", normalized_name(file.stem))
        mistakes += _resolve_files(document, file.resolve().parent)
        warnings = _warnings(document)
        scenario, found = _validate(document)
        found = _with_too_early(found, document)
        flawed = {mistake.path for mistake in mistakes}
        mistakes += [mistake for mistake in found if mistake.path not in flawed]
    mistakes = _scrubbed(mistakes, document.tree)
    source = Source(label=label, document=document)
    checked = scenario.read_from(source) if scenario is not None and not mistakes else None
    return FileCheck(
        label=label, scenario=checked, mistakes=tuple(mistakes), warnings=tuple(warnings), source=source
    )


def _with_too_early(mistakes: list[Mistake], document: Document) -> list[Mistake]:
    """What this version cannot do takes the place of every mistake below it, which need not be mended."""
    early = [at(document, path, text) for path, text in asked_too_early(document.tree)]
    paths = [mistake.path for mistake in early]
    kept = [item for item in mistakes if not any(item.path[: len(path)] == path for path in paths)]
    return kept + early


def _read_bytes(file: FilePath) -> bytes:
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ScenarioError(f"{file}: cannot be read: {error.strerror or error}") from None
    if len(content) > _MAX_BYTES:
        raise ScenarioError(f"{file}: larger than {_MAX_BYTES // 2**20} MiB; a scenario is a short YAML file")
    return content


def _use_url(document: Document, url: str, env: Mapping[str, str]) -> None:
    target = document.tree.get("target") if isinstance(document.tree, dict) else None
    if isinstance(target, dict):
        target.pop("engine", None)
        target.pop("unix_socket", None)
    override(document, f"target.url={url}", env, origin="--url")


def _validate(document: Document) -> tuple[Scenario | None, list[Mistake]]:
    """The scenario, or every mistake of types, keys and rules."""
    tree = document.tree
    scenario, mistakes = None, []
    try:
        scenario = Scenario.model_validate(tree, context=FILE_CONTEXT, by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        mistakes = [mistake for detail in details for mistake in from_validation(detail, document)]
    meant, explained = _as_meant(
        tree, [detail for detail in mistakes if detail.text.startswith("unknown key")]
    )
    mistakes = [item for item in mistakes if not (item.text.startswith("missing") and item.path in explained)]
    wrong = {mistake.path for mistake in mistakes}
    broken = rules.scenario(meant)
    mistakes += [at(document, path, text) for path, text in broken if path not in wrong]
    mistakes += _matrix_mistakes(document)
    return (scenario if not mistakes else None), mistakes


def _as_meant(tree: dict[str, Any], unknown: Sequence[Mistake]) -> tuple[dict[str, Any], set[Path]]:
    """The tree with misspelt keys where they belong, so that one slip is not reported twice."""
    if not unknown:
        return tree, set()
    meant = copy.deepcopy(tree)
    explained: set[Path] = set()
    for mistake in unknown:
        found = guess(str(mistake.path[-1]), mistake.path[:-1])
        parent = value_at(meant, mistake.path[:-1])
        if found.path is None or not isinstance(parent, dict):
            continue
        value = parent.pop(mistake.path[-1], None)
        explained.add(found.path)
        below: Any = meant
        for part in found.path[:-1]:
            if isinstance(below, dict):
                below = below.setdefault(str(part), {})
            elif isinstance(below, list) and isinstance(part, int):
                below = below[part]
        if isinstance(below, dict):
            below.setdefault(str(found.path[-1]), value)
    return meant, explained


def _matrix_mistakes(document: Document) -> list[Mistake]:
    matrix = document.tree.get("matrix")
    mistakes = []
    for key in matrix if isinstance(matrix, dict) else ():
        path = tuple(int(part) if part.isdecimal() else part for part in str(key).split("."))
        if not is_known_path(path):
            remedy = guess(str(path[-1]), path[:-1]).remedy.replace("unknown key", "unknown path")
            mistakes.append(at(document, ("matrix", key), remedy))
    return mistakes


def _file_paths(tree: Mapping[str, Any]) -> list[Path]:
    several = tree.get("workloads")
    num_workloads = len(several) if isinstance(several, list) else 0
    workloads: list[Path] = [("workload",), *(("workloads", index) for index in range(num_workloads))]
    return [("target", "tokenizer"), ("target", "tls_verify"), *((*path, "path") for path in workloads)]


def _resolve_files(document: Document, folder: FilePath) -> list[Mistake]:
    """Makes the paths in the tree absolute (relative to the scenario's folder, else to the current one)."""
    mistakes = []
    for path in _file_paths(document.tree):
        value = value_at(document.tree, path)
        if not isinstance(value, str) or not value.strip() or _is_flag(path, value):
            continue
        given = FilePath(value).expanduser()
        candidates = [FilePath.cwd() / given]
        if document.place(path).origin == "file":
            candidates.insert(0, folder / given)
        try:
            found = next((file for file in candidates if file.is_file()), None)
            folder_there = any(file.is_dir() for file in candidates)
        except (OSError, ValueError):
            found, folder_there = None, False
        if found is None:
            text = f"no such file (looked in {candidates[0].parent})"
            mistakes.append(at(document, path, "is a folder; name one file in it" if folder_there else text))
        else:
            parent: Any = value_at(document.tree, path[:-1])
            parent[path[-1]] = str(found)
    return mistakes


def _is_flag(path: Path, value: str) -> bool:
    if path[-1] != "tls_verify":
        return False
    try:
        parse_flag(value)
    except ValueError:
        return False
    return True


def _warnings(document: Document) -> list[Mistake]:
    """What is allowed and yet deserves a word."""
    target = document.tree.get("target")
    if not isinstance(target, dict):
        return []
    warnings = []
    key = target.get("api_key")
    if key and str(key).lower() not in _PLACEHOLDER_KEYS and _is_literal(document, ("target", "api_key")):
        text = "a key written into the file; write ${OPENAI_API_KEY}"
        warnings.append(at(document, ("target", "api_key"), text))
    headers = target.get("headers")
    for name, value in headers.items() if isinstance(headers, dict) else ():
        path: Path = ("target", "headers", name)
        if is_secret_name(str(name)) and value and _is_literal(document, path):
            warnings.append(at(document, path, "a secret written into the file; take it from ${A_VARIABLE}"))
    return warnings + _url_warnings(document, target)


def _url_warnings(document: Document, target: dict[str, Any]) -> list[Mistake]:
    path = ("target", "url")
    try:
        address = parse_address(target.get("url"))
    except ValueError:
        return []
    warnings = []
    if address.authorization is not None and _is_literal(document, path):
        warnings.append(at(document, path, "a password written into the file; take it from ${A_VARIABLE}"))
    api = target.get("api", "chat")
    if address.pasted_api is not None and address.pasted_api != api:
        warnings.append(
            at(document, path, f"is the URL of api: {address.pasted_api}, but api: {api} will be called")
        )
    return warnings


def _is_literal(document: Document, path: Path) -> bool:
    return document.place(path).origin == "file" and not document.is_from_environment(path)


def _scrubbed(mistakes: list[Mistake], tree: Any) -> list[Mistake]:
    """The mistakes with every secret of the file masked, wherever a message may repeat it."""
    target = tree.get("target") if isinstance(tree, dict) else None
    found = secrets_in(target) if isinstance(target, dict) else []
    secrets = scrub_list(secret for secret in found if not has_reference(secret))
    return [
        Mistake(
            path=item.path,
            place=item.place,
            key=scrub(item.key, secrets) if secrets else item.key,
            text=scrub(item.text, secrets) if secrets else item.text,
        )
        for item in mistakes
    ]
