"""What each technique of the engine does: every effect-*.yaml with its switch on and off.

    python -m tests.benchmarks.effects [--model tiny|smollm2-135m] [--rounds 3] [--json FILE] [SCENARIO ...]

Each side is a whole `llmbench run` with an engine of its own; rounds alternate (on off, off on, ...), so
that a drift of the machine falls on both. Prints, per effect, the median and range of each side over the
rounds, and the ratio off / on, taken within rounds. `--json` writes every figure of every run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmbench.columns import RequestColumns
from llmbench.gaps import TokenGaps, measure_gaps
from llmbench.parquet import read_requests

MEASURED = (0, 97)  # exit codes of a run that could measure; 97 is called INVALID in the table
FEW_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: its summary.json and its requests."""

    summary: dict[str, Any]
    columns: RequestColumns

    @property
    def measured(self) -> NDArray[np.bool_]:
        labels = self.columns.labels
        return labels["phase"].among("measure") & labels["outcome"].among("ok")

    def of_tenant(self, tenant: str) -> NDArray[np.bool_]:
        return self.measured & self.columns.labels["tenant"].among(tenant)


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a table. `of` gives None where a run has no such figure."""

    label: str
    of: Callable[[Run], float | None]
    scale: float = 1.0  # from llmbench's units (seconds, shares) to the label's


@dataclass(frozen=True, slots=True)
class Effect:
    """A scenario, its switch, and what to look at. `larger` is set as well for a model of 135 million."""

    scenario: str
    switch: str
    on: str
    off: str
    figures: tuple[Figure, ...]
    larger: tuple[str, ...]

    def settings(self, value: str, model: str) -> list[str]:
        """What one side of the comparison sets."""
        chosen = [f"{self.switch}={value}"]
        return chosen if model == "tiny" else [*chosen, f"target.engine.model={model}", *self.larger]


# ---------------------------------------------------------------------------------------------- figures


def metric(name: str, stat: str) -> Callable[[Run], float | None]:
    """A statistic of the summary."""
    return lambda run: run.summary["metrics"][name][stat]


def output_rate(run: Run) -> float:
    """Output tokens a second."""
    return float(run.summary["throughput"]["output_tokens_per_s"])


def cached_share(run: Run) -> float:
    """Share of the prompts' tokens that the server found in its cache."""
    return float(run.summary["tokens"]["cached_share"] or 0)


def _gaps_s(run: Run) -> list[NDArray[np.float64]]:
    """Seconds before each token but the first, of each request."""
    columns, found = run.columns, []
    for row in np.flatnonzero(run.measured):
        span = slice(columns.event_offsets[row], columns.event_offsets[row + 1])
        tokens = np.maximum(columns.event_tokens[span][1:], 1)
        found.append(np.repeat(np.diff(columns.event_ns[span]) / tokens, tokens) / 1e9)
    return found


def first_gaps(run: Run) -> float:
    """Median gap between the first tokens of the answers."""
    return float(np.median(np.concatenate([gaps[:FEW_TOKENS] for gaps in _gaps_s(run)])))


def last_gaps(run: Run) -> float:
    """Median gap between the last tokens of the answers."""
    return float(np.median(np.concatenate([gaps[-FEW_TOKENS:] for gaps in _gaps_s(run)])))


def _tenant_gaps(run: Run, tenant: str) -> TokenGaps:
    return measure_gaps(run.columns, run.of_tenant(tenant), token_limit_s=None, stall_limit_s=1.0)


def tenant_itl(tenant: str, percent: float) -> Callable[[Run], float | None]:
    """A percentile of one tenant's inter-token latencies."""

    def of(run: Run) -> float | None:
        itl = _tenant_gaps(run, tenant).itl
        return itl.percentile(percent) / 1e9 if itl.count else None

    return of


def longest_of_a_stream(tenant: str) -> Callable[[Run], float | None]:
    """Each of a tenant's answers has a longest gap: their median."""

    def of(run: Run) -> float | None:
        longest = _tenant_gaps(run, tenant).longest_ns[run.of_tenant(tenant)]
        return float(np.median(longest)) / 1e9 if len(longest) else None

    return of


def tokens_meanwhile(run: Run) -> float | None:
    """How many tokens the chats got while a document was computed, from its sending to its first token.

    The median over documents. A count, so that the speed of the machine does not matter.
    """
    columns, integers = run.columns, run.columns.integers
    is_chat = np.repeat(columns.labels["tenant"].among("chat"), columns.num_events)
    instants = np.sort(columns.event_ns[is_chat])
    documents = run.of_tenant("documents")
    sent = integers["sent_ns"].values[documents]
    first = integers["first_event_ns"].values[documents]
    counts = np.searchsorted(instants, first) - np.searchsorted(instants, sent, side="right")
    return float(np.median(counts)) if len(counts) else None


def _decoding_s(run: Run) -> NDArray[np.float64]:
    """[num answers, 2]: first and last token of every answer, warm-up included, in seconds of the run."""
    columns = run.columns
    rows = np.flatnonzero(columns.num_events > 0)
    ends = np.stack([columns.event_offsets[rows], columns.event_offsets[rows + 1] - 1], axis=1)
    return columns.event_ns[ends] / 1e9


def most_decoding(run: Run) -> float:
    """The most answers that were between their first and their last token at the same time."""
    spans = _decoding_s(run)
    at = np.concatenate([spans[:, 1], spans[:, 0]])  # at the same instant, who ends makes room first
    change = np.repeat([-1, 1], len(spans))
    return float(np.cumsum(change[np.argsort(at, kind="stable")]).max())


def mean_decoding(run: Run) -> float:
    """The same on average over the measured window."""
    window = run.summary["window"]
    spans = np.clip(_decoding_s(run), window["start_s"], window["end_s"])
    return float((spans[:, 1] - spans[:, 0]).sum() / (window["end_s"] - window["start_s"]))


# ---------------------------------------------------------------------------------------------- effects

TTFT_P50 = Figure("TTFT p50, ms", metric("ttft", "p50"), 1e3)
TTFT_P95 = Figure("TTFT p95, ms", metric("ttft", "p95"), 1e3)
TPOT_P50 = Figure("TPOT p50, ms", metric("tpot", "p50"), 1e3)
OUTPUT = Figure("output tokens/s", output_rate)
MEAN_DECODING = Figure("decoding, mean", mean_decoding)

EFFECTS = (
    Effect(
        "effect-kv-cache",
        "target.engine.kv_cache",
        "paged",
        "none",
        (
            Figure("first 32 gaps, ms", first_gaps, 1e3),
            Figure("last 32 gaps, ms", last_gaps, 1e3),
            TPOT_P50,
        ),
        ("load.requests=1", "workload.output_tokens=96"),
    ),
    Effect(
        "effect-batching",
        "target.engine.batching",
        "continuous",
        "static",
        (OUTPUT, MEAN_DECODING, TTFT_P50),
        ("load.duration=60s", "workload.output_tokens.uniform.max=64"),
    ),
    Effect(
        "effect-prefix-caching",
        "target.engine.enable_prefix_caching",
        "true",
        "false",
        (TTFT_P50, Figure("found in cache, %", cached_share, 100), TPOT_P50),
        ("load.requests=10", "load.warmup=10s"),
    ),
    Effect(
        "effect-chunked-prefill",
        "target.engine.enable_chunked_prefill",
        "true",
        "false",
        (
            Figure("chat ITL p95, ms", tenant_itl("chat", 95), 1e3),
            Figure("chat ITL p99, ms", tenant_itl("chat", 99), 1e3),
            Figure("chat ITL max, ms", tenant_itl("chat", 100), 1e3),
            Figure("a chat's worst, ms", longest_of_a_stream("chat"), 1e3),
            Figure("tokens meanwhile", tokens_meanwhile),
            OUTPUT,
        ),
        ("load.duration=90s",),
    ),
    Effect(
        "effect-paging",
        "target.engine.kv_cache",
        "paged",
        "contiguous",
        (Figure("decoding, most", most_decoding), MEAN_DECODING, OUTPUT, TTFT_P95),
        ("target.engine.kv_cache_memory=380MB", "load.duration=60s"),
    ),
)


# ------------------------------------------------------------------------------------------ measurement


def replay(scenario: str, settings: Iterable[str]) -> Run:
    """One `llmbench run`, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "llmbench", "run", scenario, "--out", scratch, "--json", "--quiet"]
        for setting in settings:
            command += ["--set", setting]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
        if done.returncode not in MEASURED:
            raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}\n{done.stderr}")
        (folder,) = Path(scratch).iterdir()
        return Run(json.loads(done.stdout), read_requests(folder / "requests.parquet"))


def measure(effect: Effect, model: str, rounds: int) -> dict[str, Any]:
    """All rounds of an effect: per side the verdicts, and per figure a value a round."""
    sides = (effect.on, effect.off)
    values: dict[str, dict[str, list[float | None]]] = {
        figure.label: {side: [] for side in sides} for figure in effect.figures
    }
    verdicts: dict[str, list[str]] = {side: [] for side in sides}
    for number in range(rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            run = replay(effect.scenario, effect.settings(side, model))
            verdicts[side].append(run.summary["verdict"]["status"])
            for figure in effect.figures:
                value = figure.of(run)
                values[figure.label][side].append(None if value is None else value * figure.scale)
    settings = {side: effect.settings(side, model) for side in sides}
    return {"scenario": effect.scenario, "settings": settings, "verdicts": verdicts, "figures": values}


# ---------------------------------------------------------------------------------------------- tables


def table(effect: Effect, found: dict[str, Any]) -> list[str]:
    """The lines of an effect, within 80 columns."""
    lines = [
        f"{effect.scenario}   {effect.switch}",
        f"{'':<19}{effect.on:>21}{effect.off:>21}{'off / on':>18}",
    ]
    for label, sides in found["figures"].items():
        on, off = sides[effect.on], sides[effect.off]
        ratios = [b / a if a and b else None for a, b in zip(on, off, strict=True)]
        lines.append(f"{label:<19}{spread(on):>21}{spread(off):>21}{spread(ratios):>18}")
    cells = [words(found["verdicts"][side]) for side in (effect.on, effect.off)]
    return [*lines, f"{'verdicts':<19}{cells[0]:>21}{cells[1]:>21}"]


def spread(values: Sequence[float | None]) -> str:
    """Median and range: `4.68 (4.51-4.92)`; a dash where no round has the figure."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    if len(known) == 1:
        return digits(known[0])
    return f"{digits(statistics.median(known))} ({digits(min(known))}-{digits(max(known))})"


def digits(value: float) -> str:
    """About three of them, and no exponent."""
    decimals = 0 if value >= 100 or value == 0 else 1 if value >= 10 else 2
    return f"{value:.{decimals}f}"


def words(verdicts: Sequence[str]) -> str:
    """`3 VALID`, or how many of the rounds are not: `1 SUSPECT`."""
    doubted = Counter(verdict for verdict in verdicts if verdict != "VALID")
    return ", ".join(f"{count} {verdict}" for verdict, count in (doubted or Counter(verdicts)).items())


def main() -> None:
    """Runs the chosen effects and prints each table as soon as it is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [effect.scenario for effect in EFFECTS]
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="all when none is named")
    parser.add_argument("--model", choices=("tiny", "smollm2-135m"), default="tiny")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    if unknown := set(args.scenarios) - set(names):
        parser.error(f"no effect {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    chosen = [effect for effect in EFFECTS if effect.scenario in (args.scenarios or names)]
    found = []
    sys.stdout.write(f"{args.model}, {args.rounds} rounds: median (range)\n")
    for effect in chosen:
        found.append(measure(effect, args.model, args.rounds))
        sys.stdout.write("\n" + "\n".join(table(effect, found[-1])) + "\n")
        sys.stdout.flush()
    if args.json:
        document = {"model": args.model, "rounds": args.rounds, "effects": found}
        args.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
