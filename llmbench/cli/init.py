"""`llmbench init`: a commented scenario to start from."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from llmbench.errors import UsageError


def command(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("scenario.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Write a commented starter scenario.

    It validates as it is; set the URL, then: llmbench run PATH
    """
    write_starter(path, overwrite=force)
    typer.echo(f"wrote {path}\nSet target.url in it, then:\n  llmbench check {path}\n  llmbench run {path}")


def starter() -> str:
    """The text of the starter scenario."""
    return resources.files("llmbench.scenario").joinpath("starter.yaml").read_text(encoding="utf-8")


def write_starter(path: Path, *, overwrite: bool) -> None:
    """Raises `UsageError` where the file exists already or cannot be written."""
    try:
        with path.open("w" if overwrite else "x", encoding="utf-8", newline="\n") as file:
            file.write(starter())
    except FileExistsError:
        raise UsageError(f"{path} exists; choose another name, or overwrite it with --force") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from None
