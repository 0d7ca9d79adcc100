"""The scenarios that come with llmbench.

In a checkout they lie in the folder `scenarios/`, in an installed wheel in a folder of the package.
"""

from __future__ import annotations

import difflib
from importlib import resources
from pathlib import Path

import llmbench
from llmbench.errors import ScenarioError

_SUFFIXES = (".yaml", ".yml")


def bundled_folder() -> Path | None:
    """Where the bundled scenarios lie; None when they were left out of the installation."""
    installed = resources.files(llmbench) / "bundled_scenarios"
    if isinstance(installed, Path) and installed.is_dir():
        return installed
    checkout = Path(llmbench.__file__).resolve().parent.parent
    folder = checkout / "scenarios"
    return folder if folder.is_dir() and (checkout / "pyproject.toml").is_file() else None


def bundled_scenarios() -> dict[str, Path]:
    """Names and files of the bundled scenarios, sorted by name."""
    folder = bundled_folder()
    files = sorted(folder.iterdir()) if folder is not None else []
    return {file.stem: file for file in files if file.suffix in _SUFFIXES}


def find_scenario(path_or_name: str | Path) -> Path:
    """The file of a path, or of a bundled scenario's name; raises `ScenarioError` with what to do instead."""
    text = str(path_or_name)
    if not text.strip():
        raise ScenarioError("no scenario named; write a file, or a name that llmbench scenarios lists")
    path = Path(text).expanduser()
    if path.is_dir():
        raise ScenarioError(f"{text} is a folder; name one scenario file in it")
    if path.exists():
        return path
    bundled = bundled_scenarios()
    looks_like_path = (
        isinstance(path_or_name, Path) or "/" in text or "\\" in text or path.suffix in _SUFFIXES
    )
    if not looks_like_path and text in bundled:
        return bundled[text]
    close = difflib.get_close_matches(path.stem, bundled, n=1, cutoff=0.6)
    meant = f"; did you mean {close[0]}?" if close else ""
    if looks_like_path:
        raise ScenarioError(f"{text}: no such file{meant}\nWrite one with: llmbench init {text}")
    known = f"\nBundled: {', '.join(bundled)}" if bundled else ""
    raise ScenarioError(f"no file and no bundled scenario is named {text!r}{meant}{known}")
