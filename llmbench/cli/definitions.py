"""`llmbench definitions`: a run's figures by the formulas of another tool, in that tool's JSON."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Tool(StrEnum):
    """Whose formulas: the keys of `llmbench.definitions.TOOLS`, spelled out so that help is quick."""

    VLLM = "vllm"
    AIPERF = "aiperf"
    GUIDELLM = "guidellm"
    INFERENCE_PERF = "inference-perf"
    SGLANG = "sglang"


def command(
    run: Annotated[Path, typer.Argument(help="The run folder (also of a run that was killed).")],
    tool: Annotated[Tool, typer.Option("--as", help="Whose formulas and JSON.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the JSON there, and a table here.")
    ] = None,
) -> None:
    """Compute a run's figures by the formulas of another tool.

    The same records, as that tool would have counted them, in the JSON that it writes: two reports of one
    server can then be compared. Without --out the JSON goes to stdout. With it, a table says what that tool
    calls TTFT, TPOT, ITL and end-to-end latency, and how far its figures are from llmbench's.
    """
    from llmbench.cli.console import print_json, say
    from llmbench.definitions import TOOLS
    from llmbench.definitions.table import compare
    from llmbench.definitions.view import View
    from llmbench.report.folder import write_json
    from llmbench.report.rebuild import read_run

    view = View.of(*read_run(run))
    document = TOOLS[tool](view)
    if out is None:
        print_json(document)
        return
    write_json(out, document)
    print(compare(view, tool, document))
    say(f"{out}: the figures of {tool}")
