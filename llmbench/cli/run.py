"""`llmbench run`: one scenario, from the file to the exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmbench.cli.console import output_of_kept_results, print_json, print_summary, same_place, say
from llmbench.errors import Interrupted
from llmbench.replay.interrupts import EXIT_INTERRUPTED, leaving_once_interrupted
from llmbench.replay.live import RunObserver, observer_for

if TYPE_CHECKING:
    from llmbench.bench import RunResult


def command(
    scenario: Annotated[
        str, typer.Argument(help="A scenario file, or the name of a bundled one (llmbench scenarios).")
    ],
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change one value of the scenario, as in load.rate=8/s. May be given again.",
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="The endpoint, instead of the scenario's target.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the run's folder is made; never overwrites one.")
    ] = Path("reports"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, and nothing else on stdout.")
    ] = False,
    save_text: Annotated[
        bool, typer.Option("--save-text", help="Keep the generated texts in requests.parquet.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress on stderr, only problems.")
    ] = False,
    no_live: Annotated[
        bool, typer.Option("--no-live", help="Plain progress lines in a terminal too.")
    ] = False,
) -> None:
    """Replay a scenario against an endpoint, print the summary, write the run folder.

    stdout carries the summary, stderr the progress. Ctrl-C ends the run early and reports what was measured;
    a second Ctrl-C leaves at once. Exit codes: 0 measured, and every limit held; 2 wrong usage or scenario;
    3 nothing could be measured; 97 the measurement cannot be trusted; 98 too few samples to decide; 99 a
    limit was broken; 130 interrupted.
    """
    observer: RunObserver | None = None
    if not quiet:
        header_follows = not as_json and same_place(sys.stdout, sys.stderr)
        observer = observer_for(sys.stderr, is_live=not no_live, header_follows=header_follows)
    result = replay(scenario, sets or (), url, out=out, save_text=save_text, observer=observer)
    with output_of_kept_results(result.folder / "summary.md"):
        if as_json:
            print_json(result.summary)
        else:
            print_summary(result.summary, report_path=result.folder / "summary.md")
    if result.exit_code == EXIT_INTERRUPTED:
        say(f"interrupted; what was measured: llmbench report {result.folder}")
    raise typer.Exit(result.exit_code)


def replay(
    scenario: str,
    sets: Sequence[str],
    url: str | None,
    *,
    out: Path,
    save_text: bool,
    observer: RunObserver | None,
) -> RunResult:
    """Reads the scenario and runs it; however early it is interrupted, it is said what became of it."""
    try:
        from llmbench.bench import run_scenario
        from llmbench.scenario.load import read_scenario

        loaded = read_scenario(scenario, sets, url=url)
    except KeyboardInterrupt:
        raise Interrupted("interrupted before the first request: nothing was sent") from None
    if loaded.warnings:
        say(loaded.warnings)
    try:
        with leaving_once_interrupted():
            return run_scenario(
                loaded.scenario, out=out, save_text=save_text, observer=observer, command_line=sys.argv
            )
    finally:
        if observer is not None:
            observer.finished()
