"""`llmbench schema`: the JSON Schema of the scenario file."""

from __future__ import annotations

import json

import typer

from llmbench.scenario.schema import json_schema


def command() -> None:
    """Print the JSON Schema of the scenario file.

    Editors complete and check with it: llmbench schema > scenario.schema.json, then put this line at the top
    of a scenario: # yaml-language-server: $schema=scenario.schema.json
    """
    typer.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
