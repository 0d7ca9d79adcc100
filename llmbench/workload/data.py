"""The files a scenario's workloads name: found, read and checked before the first request.

A prompt file (jsonl) holds one JSON object a line, UTF-8, blank lines allowed:

    {"prompt": "Say hi."}                                        a user's message, or the prompt as it stands
    {"messages": [{"role": "user", "content": "Say hi."}]}       a conversation; not for api: completions
    {"prompt": "Say hi.", "max_tokens": 32}                      its own limit, also spelled output_tokens
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import orjson

from llmbench.errors import UsageError
from llmbench.scenario.model import Scenario, Workload
from llmbench.workload.traces import TRACE_KINDS, load_trace
from llmbench.workload.traces.rows import MAX_NAMED_ROWS
from llmbench.workload.traces.trace import Trace

_LINE_KEYS = ("prompt", "messages", "max_tokens", "output_tokens")
_MOST_SHOWN_KEYS = 3
_ROLES = ("system", "developer", "user", "assistant", "tool")
CHAT_ONLY = "has messages, which target.api: completions cannot send; write api: chat"
Message: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow:
    """A given prompt: `prompt` or `messages`; `max_tokens` where the row limits its answer."""

    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    max_tokens: int | None = None


Rows: TypeAlias = Trace | tuple[PromptRow, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadData:
    """What was read for each workload of a scenario, in its order; None for one that needs no file."""

    rows: tuple[Rows, ...]

    @property
    def trace(self) -> Trace | None:
        """The trace of a scenario that has a single workload, and that one a trace."""
        first = self.rows[0]
        return first if len(self.rows) == 1 and isinstance(first, Trace) else None


def load_data(scenario: Scenario, scenario_dir: Path | None = None) -> WorkloadData:
    """Read every workload's file; paths are resolved as `resolve_data_path` says.

    Raises UsageError with the mistakes of all files together, each line with the key it belongs to
    (`workload.path: p.jsonl line 3: …`), and for a kind that is not in this version.
    """
    rows: list[Rows] = []
    mistakes: list[str] = []
    for position, workload in enumerate(scenario.workloads):
        root = "workload" if len(scenario.workloads) == 1 else f"workloads.{position}"
        try:
            rows.append(_load_rows(scenario, workload, scenario_dir, root))
        except UsageError as error:
            mistakes.append(str(error))
    if mistakes:
        raise UsageError("\n".join(mistakes))
    return WorkloadData(rows=tuple(rows))


def _load_rows(scenario: Scenario, workload: Workload, scenario_dir: Path | None, root: str) -> Rows:
    if workload.kind == "synthetic":
        return None
    if workload.kind == "inline":
        return tuple(PromptRow(prompt=prompt) for prompt in workload.prompts or ())
    rows = read_file(workload.kind, workload.path or "", scenario_dir, root)
    if isinstance(rows, Trace):
        return rows.prepared(
            start_s=scenario.load.start_s,
            input_scale=workload.input_scale,
            output_scale=workload.output_scale,
            max_input=workload.max_input,
            max_output=workload.max_output,
        )
    if scenario.target.api == "completions" and any(row.messages is not None for row in rows):
        raise UsageError(f"{root}.path: {CHAT_ONLY}")
    return rows


def read_file(
    kind: str, path: str, scenario_dir: Path | None = None, root: str = "workload"
) -> Trace | tuple[PromptRow, ...]:
    """What a workload's file holds; raises UsageError, each line beginning with `<root>.path: `."""
    if kind not in ("jsonl", *TRACE_KINDS):
        kinds = ", ".join(("jsonl", *TRACE_KINDS))
        raise UsageError(f"{root}.kind: {kind} reads no file in this version; write one of {kinds}")
    try:
        file = resolve_data_path(path, scenario_dir)
        return load_prompts(file) if kind == "jsonl" else load_trace(kind, file)
    except UsageError as error:
        said = str(error).replace(f"{Path.cwd()}/", "")  # shorter, and still a path that an editor opens
        raise UsageError("\n".join(f"{root}.path: {line}" for line in said.split("\n"))) from None


def resolve_data_path(path: str, scenario_dir: Path | None = None) -> Path:
    """The file meant by `path`: as it stands if absolute, else the first that exists of: beside the scenario
    file, in the working directory (where `--set workload.path=…` is typed), among the bundled data.
    """
    given = Path(path).expanduser()
    if given.is_absolute():
        places = [given]
    else:
        places = [directory / given for directory in (scenario_dir, Path.cwd()) if directory is not None]
        for bundled in _bundled_directories():
            places += [bundled / given, bundled / "data" / given]
    for place in places:
        if place.is_file():
            return place
    if any(place.is_dir() for place in places):
        raise UsageError(f"{path}: is a folder; name one file in it")
    tried = ", ".join(dict.fromkeys(str(place.parent) for place in places[:2]))
    raise UsageError(f"{path}: no such file (looked in {tried} and the bundled data)")


def _bundled_directories() -> Iterator[Path]:
    """Where the bundled scenarios lie: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    yield package / "bundled_scenarios"
    yield package.parent / "scenarios"


def load_prompts(path: Path) -> tuple[PromptRow, ...]:
    """Prompts of a JSONL file, in order. Blank lines and a byte order mark are passed over.

    UsageError names the file and every broken line (ten at most) by number, and the offset of a byte that is
    not UTF-8.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    return parse_prompts(content, str(path))


def parse_prompts(content: bytes, path: str) -> tuple[PromptRow, ...]:
    """The prompts in `content`; `path` names it in errors."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{path} line {line}: byte {error.start} is not UTF-8; save the file as UTF-8"
        ) from None
    rows: list[PromptRow] = []
    broken: list[str] = []
    for number, raw in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not raw.strip():
            continue
        try:
            rows.append(_parse_prompt(raw))
        except ValueError as error:
            broken.append(f"{path} line {number}: {error}")
    if broken:
        named = broken[:MAX_NAMED_ROWS]
        if len(broken) > len(named):
            named.append(f"and {len(broken) - len(named):,} more broken lines")
        raise UsageError("\n".join(named))
    if not rows:
        raise UsageError(f'{path}: no prompts; expected a line like {{"prompt": "Say hi"}}')
    return tuple(rows)


def _parse_prompt(line: bytes) -> PromptRow:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} (column {error.colno})") from None
    if not isinstance(row, dict):
        raise ValueError('not a JSON object; expected like {"prompt": "Say hi"}')  # noqa: TRY004 - a line's mistake
    unknown = [key for key in row if key not in _LINE_KEYS]
    if unknown:
        raise ValueError(_unknown_keys(unknown))
    given = [key for key in ("prompt", "messages") if row.get(key) is not None]
    if len(given) != 1:
        raise ValueError(f"needs one of prompt and messages; has {' and '.join(given) or 'none'}")
    max_tokens = _max_tokens(row)
    if given == ["messages"]:
        return PromptRow(messages=_messages(row["messages"]), max_tokens=max_tokens)
    if not isinstance(row["prompt"], str) or not row["prompt"]:
        raise ValueError("prompt must be text, and not empty")
    return PromptRow(prompt=row["prompt"], max_tokens=max_tokens)


def _unknown_keys(keys: list[str]) -> str:
    """What unknown keys of a line were probably meant to be: passing them over would change what is asked."""
    told = []
    for key in keys[:_MOST_SHOWN_KEYS]:
        close = difflib.get_close_matches(key.lower().replace("-", "_"), _LINE_KEYS, n=1, cutoff=0.6)
        told.append(f"{key!r:.40}, did you mean {close[0]}?" if close else f"{key!r:.40}")
    more = f" and {len(keys) - len(told)} more" if len(keys) > len(told) else ""
    return f"unknown key {'; '.join(told)}{more} (known: {', '.join(_LINE_KEYS)})"


def _max_tokens(row: Mapping[str, Any]) -> int | None:
    given = {key: row[key] for key in ("max_tokens", "output_tokens") if row.get(key) is not None}
    if not given:
        return None
    key, value = next(iter(given.items()))
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{key} must be a whole number of 1 or more")
    if len(set(given.values())) > 1:
        raise ValueError("max_tokens and output_tokens differ; keep one")
    return value


def _messages(value: object) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("messages must be a list of at least one message")
    for number, message in enumerate(value, start=1):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise ValueError(f"message {number} needs a role: {', '.join(_ROLES)}")
        if "content" not in message and "tool_calls" not in message:
            raise ValueError(f"message {number} has no content")
    return tuple(value)
