"""What this machine can do at most: memory read and float32 arithmetic, on all its cores.

    python -m tests.benchmarks.engines_roofline

Prints one line of JSON. A program of its own, so that the comparison of engines holds no torch and no
512 MB while it measures. Half a gigabyte is read several times over, and each of its pieces timed: twice
as large as usual caches, gone from them when its turn comes again, and read in milliseconds. The best
counts, as it does of the products: a roof is what can be reached, and company on the cores only lowers it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

READ_BYTES = 512 * 2**20
PIECE_BYTES = 64 * 2**20
READ_TRIES = 12
GEMM_SIZE = 1024
GEMM_TRIES = 60


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes and floating point operations a second."""

    read_per_s: float
    flop_per_s: float

    def better(self, other: Machine) -> Machine:
        """The higher of both, each."""
        return Machine(
            max(self.read_per_s, other.read_per_s),
            max(self.flop_per_s, other.flop_per_s),
        )


@dataclass(frozen=True, slots=True)
class Weights:
    """What one step reads of a model's weights, and the arithmetic of a row.

    `is_float32`: the arithmetic is that of the measured matrix product. Integer kernels may exceed it, so
    that nothing is said of theirs.
    """

    num_bytes: int
    num_layer_weights: int
    num_head_weights: int
    is_float32: bool

    def floor_s(self, machine: Machine) -> float:
        """The shortest step: every weight read once. Keys and values come on top."""
        return self.num_bytes / machine.read_per_s

    def decode_roof(self, machine: Machine, streams: int) -> float:
        """Tokens a second of so many streams, by memory or by arithmetic, whichever ends first."""
        step_s = self.floor_s(machine)
        if self.is_float32:
            flop = 2 * (self.num_layer_weights + self.num_head_weights) * streams
            step_s = max(step_s, flop / machine.flop_per_s)
        return streams / step_s

    def prefill_roof(self, machine: Machine) -> float:
        """Prompt tokens a second by float32 arithmetic; the head is needed for the last token only."""
        return machine.flop_per_s / (2 * self.num_layer_weights)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure() -> Machine:
    """Needs torch, and a few seconds."""
    import torch

    pieces = torch.ones(READ_BYTES // 4).split(PIECE_BYTES // 4)
    read_s = min(_seconds(piece.sum) for _ in range(READ_TRIES) for piece in pieces)
    a, b = torch.randn(GEMM_SIZE, GEMM_SIZE), torch.randn(GEMM_SIZE, GEMM_SIZE)
    gemm_s = min(_seconds(lambda: a @ b) for _ in range(GEMM_TRIES))
    return Machine(PIECE_BYTES / read_s, 2 * GEMM_SIZE**3 / gemm_s)


if __name__ == "__main__":
    found = measure()
    sys.stdout.write(json.dumps({"read_per_s": found.read_per_s, "flop_per_s": found.flop_per_s}) + "\n")
