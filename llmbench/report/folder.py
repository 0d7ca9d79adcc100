"""The run folder: its name, its files, and how they are written so that no half-written file is ever seen.

    reports/20261130T204512Z-chat-steady/
    ├── run.json           what was run, on what; written at the start and again at the end
    ├── journal/           while running: requests*.jsonl, a line a request; timeline*.jsonl, a line a second
    ├── requests.parquet   a row a planned request
    ├── timeline.parquet   a row a second and source
    ├── summary.json
    └── summary.md

Knows paths and bytes, nothing of what the numbers mean.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from llmbench.errors import UsageError

_STAMP = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def run_json(self) -> Path:
        return self.path / "run.json"

    @property
    def journal(self) -> Path:
        """The directory of the journals; gone once the parquet files are complete."""
        return self.path / "journal"

    @property
    def requests(self) -> Path:
        return self.path / "requests.parquet"

    @property
    def timeline(self) -> Path:
        return self.path / "timeline.parquet"

    @property
    def summary_json(self) -> Path:
        return self.path / "summary.json"

    @property
    def summary_md(self) -> Path:
        return self.path / "summary.md"

    def request_journals(self) -> list[Path]:
        """Journals of requests, one a worker."""
        return [path for path in sorted(self.journal.glob("*.jsonl")) if not path.name.startswith("timeline")]

    def timeline_journals(self) -> list[Path]:
        """Journals of the timeline: one JSON object a line, the rows of `write_timeline`."""
        return sorted(self.journal.glob("timeline*.jsonl"))

    def read_run(self) -> dict[str, Any]:
        """run.json. Raises UsageError where it is missing or is not llmbench's."""
        try:
            found = orjson.loads(self.run_json.read_bytes())
        except OSError as error:
            raise UsageError(
                f"{self.path}: no run folder of llmbench (run.json: {error.strerror})"
            ) from error
        except orjson.JSONDecodeError as error:
            raise UsageError(f"{self.run_json}: not JSON ({error})") from error
        if not isinstance(found, dict):
            raise UsageError(f"{self.run_json}: not llmbench's (an object was expected)")
        return found

    def write_run(self, run: Mapping[str, Any]) -> None:
        """Replace run.json. Secrets must be masked already."""
        write_json(self.run_json, run)

    def remove_if_unused(self) -> None:
        """Leaves nothing behind of a run that ended before it wrote anything."""
        with contextlib.suppress(OSError):  # rmdir removes empty directories only
            self.journal.rmdir()
            self.path.rmdir()

    def remove(self) -> None:
        """The whole folder, of a run that sent nothing."""
        shutil.rmtree(self.path, ignore_errors=True)

    def remove_journal(self) -> None:
        """Only after requests.parquet is complete: until then the journal is all there is."""
        shutil.rmtree(self.journal, ignore_errors=True)


def create(base: Path, name: str, start: datetime) -> RunFolder:
    """A new folder `<base>/<start, UTC>-<name>/` with a journal directory in it; never an existing one.

    Where that name is taken, -2, -3, … follow. Writes and removes a file in it, so that a disk that cannot be
    written to is known before the first request. Raises UsageError.
    """
    stem = f"{start.astimezone(UTC).strftime(_STAMP)}-{_safe_name(name)}"
    try:
        base.mkdir(parents=True, exist_ok=True)
        path = _new_directory(base, stem)
        (path / "journal").mkdir()
        probe = path / f".{uuid.uuid4().hex}"
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"--out {base}: cannot write there ({error.strerror}); name a folder that can be written to"
        ) from error
    return RunFolder(path)


def open_folder(path: Path) -> RunFolder:
    """An existing run folder, or the folder of a file in one. Raises UsageError where there is none."""
    if path.is_file():
        if not RunFolder(path.parent).run_json.is_file():
            raise UsageError(
                f"{path}: a file, and not one of a run folder; name a folder that llmbench run wrote"
            )
        path = path.parent
    if not path.is_dir():
        raise UsageError(f"{path}: no such run folder")
    return RunFolder(path)


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file under another name, bring it to disk, then give it its name: whole or not at all."""
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        write(unfinished)
        _sync(unfinished)
        unfinished.replace(path)
        _sync(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Strict JSON (NaN and infinity become null), indented, whole or not at all."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
    encoded = orjson.dumps(document, option=options)
    replace_file(path, lambda unfinished: _write_bytes(unfinished, encoded))


def write_text(path: Path, text: str) -> None:
    """UTF-8 in every locale, whole or not at all."""
    replace_file(path, lambda unfinished: _write_bytes(unfinished, text.encode()))


def write_bytes(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    replace_file(path, lambda unfinished: _write_bytes(unfinished, content))


def _write_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _safe_name(name: str) -> str:
    """A scenario's name as a file name: letters, digits, dots and dashes."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-")[:80] or "run"


def _new_directory(base: Path, stem: str) -> Path:
    number = 1
    while True:
        path = base / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
