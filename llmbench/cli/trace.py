"""`llmbench trace`: what a trace of real traffic holds, and any known format as llmbench's own."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


class Action(StrEnum):
    """What to do with the file."""

    SHOW = "show"
    CONVERT = "convert"


class Kind(StrEnum):
    """The formats that can be named; spelled out so that help is quick."""

    AZURE = "azure"
    BURSTGPT = "burstgpt"
    MOONCAKE = "mooncake"
    BAILIAN = "bailian"
    TRACE = "trace"


def command(
    action: Annotated[Action, typer.Argument(help="What to do.")],
    file: Annotated[Path, typer.Argument(help="A trace file, gzip or not.")],
    kind: Annotated[
        Kind | None, typer.Option("--as", help="Its format, where it is not to be found out.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="convert: where to write; else stdout.")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option("--picture", metavar="FILE", help="show: a PNG of it as well."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="show: print JSON instead.")] = False,
) -> None:
    """Show what a trace holds, or convert it to llmbench's own format.

    show prints rate, burstiness, lengths and what prompts share; convert writes a JSON object a line, in
    seconds and tokens, which a scenario replays with kind: trace. Formats are found by header or keys: Azure
    LLM 2023, 2024, 2025 and BurstGPT (CSV), Mooncake, Qwen-Bailian and llmbench's own (JSON lines). Broken
    rows are told by their lines, and end it with 2.
    """
    from llmbench.cli.console import print_json, say
    from llmbench.report.folder import write_bytes
    from llmbench.workload.traces import load_trace
    from llmbench.workload.traces.canonical import to_lines
    from llmbench.workload.traces.detect import kind_of
    from llmbench.workload.traces.facts import facts_of

    found = kind.value if kind is not None else kind_of(file)
    trace = load_trace(found, file)
    if action is Action.CONVERT:
        lines = to_lines(trace)
        if out is None:
            print(lines.decode(), end="")
            return
        write_bytes(out, lines)
        say(f"{out}: {len(trace):,} requests; replay them with workload: {{kind: trace, path: {out}}}")
        return
    facts = facts_of(trace)
    if as_json:
        print_json({"kind": found, **facts})
    else:
        print(shown(found, facts), end="")
    if picture is not None:
        draw(facts, trace.input_tokens, trace.output_tokens, picture)
        say(f"{picture}: rate over time and lengths")


def shown(kind: str, facts: Mapping[str, Any]) -> str:
    """The facts as a table of some lines, 80 columns at most."""
    from llmbench.report.text import percent, significant
    from llmbench.stats import sparkline

    def number(value: float | None) -> str:
        return "-" if value is None else significant(value)

    line = sparkline([round(rate * 1e3) for rate in facts["rate_over_time"]])
    peaks = ", ".join(f"{number(rate)}/s in {window}" for window, rate in facts["peak_per_s"].items())
    spread = ", ".join(
        f"{number(value)} in {window}" for window, value in facts["dispersion"].items() if value is not None
    )
    lines = [
        f"{facts['path']}   {kind}",
        f"{facts['requests']:,} requests in {number(facts['duration_s'])} s",
        "",
        f"  rate        {number(facts['requests_per_s'])}/s on average",
        *([f"              at most {peaks}"] if peaks else []),
        f"              {line}",
        f"  burstiness  gaps vary by {number(facts['burstiness'])} of their mean (Poisson: 1)",
        *([f"              counts vary {spread} (Poisson: 1)"] if spread else []),
        "",
        f"  {'tokens':<10}{'mean':>9}{'p50':>9}{'p90':>9}{'p99':>9}{'max':>9}{'a second':>12}",
    ]
    for name in ("input", "output"):
        stats = facts[f"{name}_tokens"]
        cells = "".join(f"{number(stats[key]):>9}" for key in ("mean", "p50", "p90", "p99", "max"))
        lines.append(f"  {name:<10}{cells}{number(facts['tokens_per_s'][name]):>12}")
    if facts["prefix_share"] is not None:
        share = percent(facts["prefix_share"])
        lines += ["", f"  prefixes    {share} of the input was in a prompt before it (an endless cache)"]
    return "\n".join([*lines, *(f"  - {note}" for note in facts["notes"])]) + "\n"


def draw(facts: Mapping[str, Any], inputs: Any, outputs: Any, path: Path) -> None:
    """Rate over time above, the lengths below, as a PNG."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1)
    rates = facts["rate_over_time"]
    edges = np.linspace(0, facts["duration_s"], len(rates) + 1)
    above.stairs(rates, edges, fill=True)
    above.set(
        xlabel="s", ylabel="requests per second", title=f"{facts['path']}: {facts['requests']:,} requests"
    )
    most = max(int(inputs.max()), int(outputs.max()), 2)
    bins = np.geomspace(1, most, 60)
    below.hist(inputs, bins, histtype="step", label="input tokens")
    below.hist(outputs, bins, histtype="step", label="output tokens")
    below.set(xscale="log", xlabel="tokens", ylabel="requests")
    below.legend()
    figure.savefig(path, dpi=120)
