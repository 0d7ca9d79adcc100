"""The comparison as text, within 80 columns: figures beside their roofs, ratios beside what was asked."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.benchmarks.engines_load import Answered
from tests.benchmarks.engines_roofline import Machine, Weights

MB = 1e6

# What is asked of the median ratio ours / other, at a number of streams (None: at any).
DECODE_ASKED = {
    ("vllm", 1): 1.0,
    ("vllm", 16): 1.0,
    ("transformers", 1): 1.0,
    ("transformers", 16): 1.0,
    ("llamacpp", 1): 0.15,
    ("llamacpp", 16): 0.45,
    ("llamacpp", 32): 0.8,
}
PREFILL_ASKED = {"vllm": 1.3}
# A quarter of what transformers' continuous batching took on this machine.
MEMORY_ASKED_BYTES = 10.4e9 / 4


@dataclass(frozen=True, slots=True)
class Cell:
    """One engine under one load in one round."""

    engine: str
    streams: int
    round: int
    answered: Answered
    memory_bytes: int


def chosen(cells: Sequence[Cell], engine: str, streams: int) -> list[Cell]:
    """Of one engine and number of streams, by round."""
    found = [cell for cell in cells if (cell.engine, cell.streams) == (engine, streams)]
    return sorted(found, key=lambda cell: cell.round)


def machine_lines(machine: Machine, weights: dict[str, Weights]) -> list[str]:
    """What bounds each engine."""
    read, products = machine.read_per_s / 1e9, machine.flop_per_s / 1e9
    lines = [
        f"memory read {read:.1f} GB/s, float32 products {products:.0f} GFLOP/s (best of all rounds)",
        f"{'':<16}{'weights MB':>12}{'floor ms a step':>18}{'ceiling tok/s, 1 stream':>26}",
    ]
    for name, kind in weights.items():
        floor_s = kind.floor_s(machine)
        lines.append(f"{name:<16}{kind.num_bytes / MB:>12.1f}{floor_s * 1e3:>18.1f}{1 / floor_s:>26.1f}")
    return lines


def load_lines(
    cells: Sequence[Cell], streams: int, machine: Machine, weights: dict[str, Weights]
) -> list[str]:
    """All engines at one number of streams."""
    lines = [
        f"{streams} stream{'s' if streams > 1 else ''}",
        f"{'':<16}{'decode tok/s':>24}{'roof':>8}{'share':>8}{'TPOT p50 ms':>22}",
    ]
    for name, kind in weights.items():
        found = [cell.answered for cell in chosen(cells, name, streams)]
        rates, roof = [one.decode_per_s for one in found], kind.decode_roof(machine, streams)
        tpots = spread([one.tpot_s * 1e3 for one in found])
        share = statistics.median(rates) / roof
        lines.append(f"{name:<16}{spread(rates):>24}{roof:>8.0f}{share:>8.0%}{tpots:>22}")
    lines.append(f"{'':<16}{'prefill tok/s':>24}{'roof':>8}{'share':>8}{'TTFT p50 s':>22}")
    for name, kind in weights.items():
        found = [cell.answered for cell in chosen(cells, name, streams)]
        rates, roof = [one.prefill_per_s for one in found], kind.prefill_roof(machine)
        ttfts = spread([one.ttft_s for one in found])
        share = statistics.median(rates) / roof
        lines.append(f"{name:<16}{spread(rates):>24}{roof:>8.0f}{share:>8.0%}{ttfts:>22}")
    return lines


def ratio_lines(cells: Sequence[Cell], names: Sequence[str], streams: Sequence[int]) -> list[str]:
    """The first of the engines against each other one, within rounds."""
    ours, *others = names
    if not others:
        return []
    lines = [f"{ours} / other, within a round", f"{'':<16}{'':>7}{'decode':>20}{'':<16}{'prefill':>20}"]
    for other in others:
        for count in streams:
            pairs = list(zip(chosen(cells, ours, count), chosen(cells, other, count), strict=True))
            decode = [a.answered.decode_per_s / b.answered.decode_per_s for a, b in pairs]
            prefill = [a.answered.prefill_per_s / b.answered.prefill_per_s for a, b in pairs]
            first = asked_cell(decode, DECODE_ASKED.get((other, count)) if ours == "ours" else None)
            second = asked_cell(prefill, PREFILL_ASKED.get(other) if ours == "ours" else None)
            lines.append(f"{other:<16}{count:>7}{first}{second}".rstrip())
    return lines


def asked_cell(ratios: Sequence[float], asked: float | None) -> str:
    """Ratios, and whether their median is what was asked."""
    if asked is None:
        return f"{spread(ratios):>20}{'':<8}"
    kept = statistics.median(ratios) >= asked
    return f"{spread(ratios):>20} {'>=' if kept else '<'}{asked:.2f}".ljust(28)


def memory_lines(cells: Sequence[Cell], names: Sequence[str]) -> list[str]:
    """The most that each took under any load."""
    lines = ["memory, proportional set size of all processes, the most under any load"]
    for name in names:
        most = max(cell.memory_bytes for cell in cells if cell.engine == name)
        asked = ""
        if name == "ours":
            kept = "at most" if most <= MEMORY_ASKED_BYTES else "more than"
            asked = f"   {kept} the {MEMORY_ASKED_BYTES / MB:.0f} that are a quarter of 10.4 GB"
        lines.append(f"{name:<16}{most / MB:>8.0f} MB{asked}")
    return lines


def spread(values: Sequence[float]) -> str:
    """Median and range: `4.68 (4.51-4.92)`."""
    if len(values) == 1:
        return digits(values[0])
    return f"{digits(statistics.median(values))} ({digits(min(values))}-{digits(max(values))})"


def digits(value: float) -> str:
    """About three of them, and no exponent."""
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{decimals}f}"
