"""`llmbench scenarios`: the bundled scenarios."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from llmbench.errors import UsageError
from llmbench.scenario.bundled import bundled_scenarios, find_scenario
from llmbench.scenario.load import check_files

_WIDTH = 80


def command(
    show: Annotated[
        str | None,
        typer.Option("--show", metavar="NAME", help="Print one of them, to read or to start from."),
    ] = None,
) -> None:
    """List the bundled scenarios.

    Run one by its name: llmbench run NAME
    """
    if show is not None:
        typer.echo(find_scenario(show).read_text(encoding="utf-8"), nl=False)
        return
    typer.echo(listing())


def listing() -> str:
    """A line each: name and description."""
    files = bundled_scenarios()
    if not files:
        raise UsageError("this installation brings no scenarios; write one with llmbench init")
    checks = dict(zip(files, check_files(files.values()), strict=True))
    width = max(map(len, files)) + 3
    lines = []
    for name, check in checks.items():
        about = (check.scenario.description if check.scenario is not None else None) or ""
        text = textwrap.wrap(about, _WIDTH - width) or [""]
        lines.append((name.ljust(width) + text[0]).rstrip())
        lines += [" " * width + line for line in text[1:]]
    return "\n".join(lines)
