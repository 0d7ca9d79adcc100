"""`llmbench report`: every result of a run folder made again from its raw records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run: Annotated[Path, typer.Argument(help="The run folder (also of a run that was killed).")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print summary.json instead of the summary.")
    ] = False,
) -> None:
    """Rebuild the reports of a run folder from its raw records.

    Reads requests.parquet, or the journal of a run that was killed; writes requests.parquet,
    timeline.parquet, summary.json and summary.md again, and prints the summary, verdict first. Exit code 0
    says that it could, whatever the verdict: an INVALID run and one in which nothing succeeded are reported
    like any other. 2 when there is nothing to report.
    """
    from llmbench.cli.console import output_of_kept_results, print_json, print_summary, say
    from llmbench.report.rebuild import rebuild

    rebuilt = rebuild(run)
    if rebuilt.damaged:
        shown = ", ".join(rebuilt.damaged[:5]) + (", …" if len(rebuilt.damaged) > 5 else "")
        count = len(rebuilt.damaged)
        say(f"{count} journal lines are no whole records and were left out: {shown}")
    with output_of_kept_results(rebuilt.folder.summary_md):
        if as_json:
            print_json(rebuilt.summary)
        else:
            print_summary(rebuilt.summary, report_path=rebuilt.folder.summary_md)
