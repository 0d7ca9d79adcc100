"""`llmbench check`: validates scenarios without sending anything."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from llmbench.load.describe import headline
from llmbench.scenario.load import FileCheck, check_files
from llmbench.scenario.model import Scenario


def command(
    scenarios: Annotated[
        list[str], typer.Argument(metavar="SCENARIO…", help="Scenario files, or names of bundled scenarios.")
    ],
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="PATH=VALUE", help="Change a value of every file, as for llmbench run."
        ),
    ] = None,
) -> None:
    """Validate scenario files without sending anything: every mistake at once.

    Each mistake comes with file, line, key, value and remedy. Exit code 0 when every file is right, else 2.
    """
    from llmbench.preflight import checked

    checks = [checked(check) for check in check_files(scenarios, sets or ())]
    for check in checks:
        report(check)
    if any(check.scenario is None for check in checks):
        raise typer.Exit(2)


def report(check: FileCheck) -> None:
    """What is right goes to stdout, mistakes and warnings to stderr."""
    if check.warning_message:
        typer.echo(check.warning_message, err=True)
    if check.scenario is None:
        typer.echo(check.message, err=True)
    else:
        lines = textwrap.wrap(outline(check.scenario), 78, break_long_words=False, break_on_hyphens=False)
        typer.echo("\n  ".join([f"{check.label}: ok", *lines]))


def outline(scenario: Scenario) -> str:
    """What a run would send, in a few words."""
    load, target = scenario.load, scenario.target
    workload = scenario.workloads[0]
    line = headline(load, seed=scenario.seed, num_requests=load.requests, trace_path=workload.path)
    kinds = " + ".join(item.kind for item in scenario.workloads)
    where = "the bundled engine" if target.engine is not None else target.unix_socket or target.url
    return f"{line.replace('   ', ', ')}; {kinds} to {where}"
