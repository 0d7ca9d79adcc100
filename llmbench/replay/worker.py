"""A worker: `python -m llmbench.replay.worker`, a process that sends one share of a run's plan.

    stdin    its assignment (eight bytes of length, a pickle), then a command a line:
             go NS        the plan counts from this instant of CLOCK_MONOTONIC, which all processes share
             interrupt    send nothing more, drain: the person has interrupted the run
             stop         send nothing more, drain: the run ends for another reason
             leave        leave at once; so does the end of stdin, which is the end of the parent
    stdout   a JSON line each for: ready, a beat four times a second, done
    stderr   what the parent quotes should the worker die

Nothing secret is in its arguments or its environment: whatever it must know came through stdin.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import orjson

from llmbench.replay.assignment import Assignment, read_assignment
from llmbench.replay.facts import SessionFacts
from llmbench.replay.lines import Lines
from llmbench.replay.sending import Sending
from llmbench.workload.prompts import make_workload

STDIN, STDOUT, STDERR = 0, 1, 2


class Answers(asyncio.BaseProtocol):
    """The way to the parent; `closed` once all is written, or the parent has gone."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing can be said any more."""
        self.closed.set()


class Worker:
    """The share on this process's event loop, and the parent at the other end of the pipes."""

    def __init__(self, assignment: Assignment) -> None:
        run = assignment.run
        source = make_workload(run.scenario, assignment.data, fit=run.reached.fit, salt=run.salt)
        self._loop = asyncio.get_running_loop()
        self._go: asyncio.Future[int] = self._loop.create_future()
        self._num_rows = 0
        self._sending = Sending(
            run, source, assignment.folder, tell=self._beat, save_text=assignment.save_text
        )

    async def run(self, commands: int, answers: int) -> None:
        """Sends the share; `commands` and `answers` are the descriptors to and from the parent."""
        self._answers, told = await self._loop.connect_write_pipe(Answers, os.fdopen(answers, "wb", 0))
        await self._loop.connect_read_pipe(
            lambda: Lines(self._on_command, self._leave), os.fdopen(commands, "rb", 0)
        )
        sending = self._sending
        await sending.open()
        try:
            await sending.run(self._wait_for_start)
        finally:
            await sending.close()
        self._beat(0.0)
        facts = sending.facts
        self._say(
            "done", num_sent=facts.num_sent, interrupted=facts.interrupted, own=facts.own, disk=_disk(facts)
        )
        self._answers.close()
        await told.closed.wait()

    async def _wait_for_start(self) -> int:
        self._say("ready")
        return await self._go

    def _on_command(self, line: bytes) -> None:
        command, _, instant = line.decode("ascii").partition(" ")
        if command == "go":
            self._start(int(instant))
        elif command == "leave":
            self._leave()
        else:
            self._sending.stop(interrupted=command == "interrupt")
            self._start(time.monotonic_ns())

    def _start(self, epoch_ns: int) -> None:
        if not self._go.done():
            self._go.set_result(epoch_ns)

    def _leave(self) -> None:
        try:
            self._sending.save()
        finally:
            os._exit(0)

    def _beat(self, _: float) -> None:
        """Four times a second: what is new, for the live view and the timeline."""
        now, facts = self._sending.standing(), self._sending.facts
        rows, self._num_rows = facts.samples[self._num_rows :], len(facts.samples)
        self._say("beat", standing=now, tally=self._sending.tally.drain(), rows=rows, disk=_disk(facts))

    def _say(self, kind: str, **what: Any) -> None:
        options = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
        self._answers.write(orjson.dumps({"kind": kind, **what}, option=options))


def _disk(facts: SessionFacts) -> tuple[int | None, str | None] | None:
    error = facts.disk_error
    return None if error is None else (error.errno, error.strerror)


def main() -> None:
    """One worker, from its assignment to its last record."""
    answers = os.dup(STDOUT)
    os.dup2(STDERR, STDOUT)  # what a library prints must not be taken for an answer
    try:
        assignment = read_assignment(STDIN)
    except EOFError:
        return

    async def work() -> None:
        await Worker(assignment).run(STDIN, answers)

    try:
        import uvloop
    except ImportError:
        asyncio.run(work())
    else:
        uvloop.run(work())


if __name__ == "__main__":
    main()
