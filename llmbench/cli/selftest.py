"""`llmbench selftest`: is the instrument good on this machine, and how much can it measure here."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from llmbench.cli.console import print_json, say
from llmbench.errors import UsageError

EXIT_UNTRUSTED = 97


def command(
    only: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Some cases only: schedule, tokens, times, corpus, stall, proxy, ceilings, overload; as in "
            "schedule,tokens.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, and nothing else on stdout.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> None:
    """Prove the instrument on this machine, in less than a minute.

    Runs against servers of its own whose schedule, tokens and times are known, and prints a table of expected
    against measured, then what this machine can measure at most. Exit codes: 0 all as expected; 97 the
    instrument is not good on this machine, as it is now.
    """
    from llmbench.selftest.check import document, table
    from llmbench.selftest.suite import CASES, run_suite

    names = [name.strip() for name in (only or "").split(",") if name.strip()]
    if unknown := [name for name in names if name not in CASES]:
        raise UsageError(f"--only: no case '{unknown[0]}'; there are {', '.join(CASES)}")
    outcome = run_suite(names, (lambda _: None) if quiet else (lambda line: say(f"  {line}")))
    if as_json:
        print_json(document(outcome.checks, outcome.ceilings, outcome.took_s))
    else:
        sys.stdout.write(table(outcome.checks, outcome.ceilings))
    raise typer.Exit(0 if outcome.passed else EXIT_UNTRUSTED)
