"""`llmbench models`: what the bundled engine can serve, as the engine itself tells."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from typing import Annotated, Any, Final

import typer

from llmbench.errors import CannotMeasure
from llmbench.fold import WIDTH

GAP: Final = "  "
LONGEST_NAME: Final = 24


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the models of the reference engine.

    Sizes, licences, and whether a model is on this machine or fetched on first use. Nothing is downloaded.
    """
    models = list_models()
    typer.echo(json.dumps(models, indent=2) if as_json else table(models))


def list_models() -> list[dict[str, Any]]:
    """Asks the engine in a process of its own: it is another program."""
    done = subprocess.run(
        [sys.executable, "-m", "reference_engine.listing"], capture_output=True, encoding="utf-8", check=False
    )
    if done.returncode != 0:
        raise CannotMeasure(f"The reference engine cannot list its models:\n{done.stderr.strip()}")
    models: list[dict[str, Any]] = json.loads(done.stdout)
    return models


def table(models: list[dict[str, Any]]) -> str:
    """A row each. A long licence goes on below, and a path that is a name stands alone above its row, so that
    80 columns suffice for the rest.
    """
    rows = [("model", "parameters", "licence", "on this machine")]
    rows += [(m["name"], m["parameters"] or "-", m["licence"] or "-", whereabouts(m)) for m in models]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    widths[0] = max(len(row[0]) for row in rows if len(row[0]) <= LONGEST_NAME)
    widths[2] = min(widths[2], max(12, WIDTH - widths[0] - widths[1] - widths[3] - 3 * len(GAP)))
    return "\n".join(line for row in rows for line in laid_out(row, widths))


def laid_out(row: tuple[str, ...], widths: list[int]) -> Iterator[str]:
    """The lines of a row, each cell wrapped to its column."""
    if len(row[0]) > widths[0]:
        yield row[0]
        row = ("", *row[1:])
    cells = [textwrap.wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
    for parts in zip_longest(*cells, fillvalue=""):
        yield GAP.join(part.ljust(width) for part, width in zip(parts, widths, strict=True)).rstrip()


def whereabouts(model: dict[str, Any]) -> str:
    if not model["is_here"]:
        return f"no; fetched on first use ({model['download_bytes'] / 1e6:.0f} MB)"
    return f"yes ({model['bytes'] / 1e6:.0f} MB{'' if model['download_bytes'] else ', bundled'})"
