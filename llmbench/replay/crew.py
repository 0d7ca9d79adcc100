"""Several workers from their parent's side: started, given their shares and one start, watched, ended.

    start all ─▶ hand over shares ─▶ all ready ─▶ go, at one instant ─▶ beats ─▶ done, or a pipe's end

A worker that ends without being done has died: it is named, the others send nothing more and drain. The
parent measures nothing; records and rows of the timeline are in the workers' own journals.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from llmbench.context import LostWorker
from llmbench.errors import CannotMeasure
from llmbench.replay.assignment import Assignment
from llmbench.replay.facts import SessionFacts
from llmbench.replay.identity import RunIdentity
from llmbench.replay.tally import EverySecond, Standing, Tally
from llmbench.replay.worker_process import WorkerProcess
from llmbench.scenario.masking import scrub
from llmbench.scenario.model import secrets_of
from llmbench.workload.data import WorkloadData

LEAD_NS: Final = 50_000_000
"""The start lies so far ahead that every worker has heard of it."""
SILENCE_S: Final = 60
"""A worker that has said nothing for so long hangs, or is stopped: it is ended."""
LEAVE_S: Final = 2.0


class Crew:
    """The workers of one run; a `Sender` as `Sending` is."""

    def __init__(
        self,
        run: RunIdentity,
        data: WorkloadData,
        folder: Path,
        *,
        tell: Callable[[float], None],
        save_text: bool = False,
    ) -> None:
        self.facts = SessionFacts()
        self.tally = Tally(run.plan)
        self._run = run
        self._tell = tell
        self._assignment = Assignment(run=run, data=data, folder=folder.absolute(), save_text=save_text)
        self._hidden = secrets_of(run.scenario)
        self._workers: list[WorkerProcess] = []
        self._epoch_ns: int | None = None

    async def open(self) -> None:
        """Starts every worker and waits until each could send. Raises CannotMeasure where one cannot."""
        try:
            self._start_all()
            await asyncio.gather(*(self._employ(worker) for worker in self._workers))
        except BaseException:
            await self.close()
            raise
        for worker in self._workers:
            if worker.has_ended:
                how = scrub(await worker.obituary(), self._hidden)
                await self.close()
                raise CannotMeasure(f"worker {worker.number} {how}, before the first request was sent")

    def _start_all(self) -> None:
        count = self._run.workers.count
        for number in range(count):
            try:
                self._workers.append(WorkerProcess(number, self._on_word, self._on_end))
            except OSError as error:
                raise CannotMeasure(
                    f"worker {number} of {count} could not be started ({error.strerror});\n"
                    f"ask for fewer: instrument.workers: {max(1, number)}"
                ) from error

    async def _employ(self, worker: WorkerProcess) -> None:
        """Gives a worker its share and waits until it is ready, or gone."""
        await worker.connect()
        plan = self._run.plan.share(worker.number, self._run.workers.count)
        share = replace(self._assignment, run=replace(self._run, plan=plan))
        await asyncio.to_thread(lambda: worker.give(share.encoded()))
        await worker.ready.wait()

    async def run(self) -> None:
        """Starts all at one instant; returns when every worker has ended."""
        self._epoch_ns = time.monotonic_ns() + LEAD_NS
        for worker in self._workers:
            worker.say(f"go {self._epoch_ns}")
        clockwork = EverySecond(self._end_the_silent, self._tell)
        try:
            await asyncio.gather(*(worker.ended.wait() for worker in self._workers))
        finally:
            clockwork.close()
        for worker in self._workers:
            if worker.done is None:
                how = scrub(await worker.obituary(), self._hidden)
                self.facts.lost.append(LostWorker(worker=worker.number, how=how, started=worker.started))
        self.facts.num_sent = self.standing().sent

    async def close(self) -> None:
        """Ends whoever is still there: by the end of their stdin, then by force."""
        await asyncio.gather(*(worker.end(LEAVE_S) for worker in self._workers))

    def stop(self, *, interrupted: bool = False) -> None:
        """Nothing more is sent; what is in flight is awaited."""
        self.facts.interrupted = self.facts.interrupted or interrupted
        for worker in self._workers:
            worker.say("interrupt" if interrupted else "stop")

    def save(self) -> None:
        """Every worker leaves at once, its journals written; within `LEAVE_S`, or it is killed."""
        self.facts.num_sent = self.standing().sent
        for worker in self._workers:
            worker.say("leave")
        until_s = time.monotonic() + LEAVE_S
        for worker in self._workers:
            worker.wait_until(until_s)

    def standing(self) -> Standing:
        """How far they are together, by their last beats."""
        started, sent, done, in_flight = (
            sum(worker.standing[name] for worker in self._workers if worker.standing)
            for name in ("started", "sent", "done", "in_flight")
        )
        return Standing(
            at_ns=0 if self._epoch_ns is None else max(0, time.monotonic_ns() - self._epoch_ns),
            started=started,
            sent=sent,
            done=done,
            in_flight=in_flight,
            is_stopped=all(worker.has_ended or worker.standing.get("is_stopped") for worker in self._workers),
        )

    # ---- what the workers say

    def _on_word(self, worker: WorkerProcess, word: dict[str, Any]) -> None:
        if word["kind"] == "beat":
            self.tally.absorb(word["tally"])
            self.facts.samples += word["rows"]
        elif word["kind"] == "done":
            self.facts.own.update({int(number): own for number, own in word["own"].items()})
            self.facts.interrupted = self.facts.interrupted or word["interrupted"]
        if word.get("disk") is not None and self.facts.disk_error is None:
            self.facts.disk_error = OSError(*word["disk"])
            self.stop()

    def _on_end(self, worker: WorkerProcess) -> None:
        if worker.done is None:
            self.stop()

    def _end_the_silent(self, _: float) -> None:
        """Once a second. What is counted are calls: no time passes while this process itself is stopped."""
        for worker in self._workers:
            worker.seconds_silent += 1
            if worker.seconds_silent > SILENCE_S and not worker.has_ended:
                worker.end_silent(SILENCE_S)
