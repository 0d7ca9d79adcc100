"""What a worker is told: its share of the plan and all it takes to send it, through a pipe alone."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from llmbench.client.choose import tls_context
from llmbench.replay.identity import RunIdentity
from llmbench.workload.data import WorkloadData

LENGTH_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """All that a worker must know; the plan of `run` is its share. Holds secrets."""

    run: RunIdentity
    data: WorkloadData
    folder: Path
    save_text: bool

    def encoded(self) -> bytes:
        """For the worker's stdin: eight bytes of length, then a pickle. TLS settings cannot travel: they are
        made again over there. What the command line says of secrets stays here.
        """
        run = replace(self.run, reached=replace(self.run.reached, tls=None), command_line=())
        body = pickle.dumps(replace(self, run=run), protocol=pickle.HIGHEST_PROTOCOL)
        return len(body).to_bytes(LENGTH_BYTES, "big") + body


def read_assignment(descriptor: int) -> Assignment:
    """The assignment at the beginning of a worker's stdin. Raises EOFError when the parent has gone."""
    length = int.from_bytes(_read_exactly(descriptor, LENGTH_BYTES), "big")
    assignment = pickle.loads(_read_exactly(descriptor, length))  # noqa: S301 - from the parent, through a pipe
    assert isinstance(assignment, Assignment)
    reached = assignment.run.reached
    tls = tls_context(reached.destination.address, assignment.run.scenario.target.tls_verify)
    return replace(assignment, run=replace(assignment.run, reached=replace(reached, tls=tls)))


def _read_exactly(descriptor: int, size: int) -> bytearray:
    read = bytearray(size)
    view = memoryview(read)
    while view:
        count = os.readv(descriptor, [view])
        if not count:
            raise EOFError
        view = view[count:]
    return read
