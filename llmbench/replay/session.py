"""A run from its first request to its last record: who sends, Ctrl-C, a person watching, the engine's life.

Whether this process sends everything or several workers do is the same from here: a `Sender` is opened, run,
stopped and closed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from llmbench.load.plan import Plan
from llmbench.replay.crew import Crew
from llmbench.replay.engine_process import EngineProcess
from llmbench.replay.facts import SessionFacts
from llmbench.replay.identity import RunIdentity
from llmbench.replay.interrupts import Interrupts
from llmbench.replay.live import LiveSnapshot, RunObserver
from llmbench.replay.sending import Sending
from llmbench.replay.tally import Standing, Tally
from llmbench.workload.data import WorkloadData
from llmbench.workload.prompts import RequestSource


class Sender(Protocol):
    """Who sends a run's requests: `Sending` here, or a `Crew` of workers."""

    facts: SessionFacts
    tally: Tally

    async def open(self) -> None: ...
    async def run(self) -> None: ...
    async def close(self) -> None: ...
    def stop(self, *, interrupted: bool = False) -> None: ...
    def save(self) -> None: ...
    def standing(self) -> Standing: ...


class Session:
    """One run: made once everything about it is known, run once. `data` is what `source` was made from."""

    def __init__(
        self,
        run: RunIdentity,
        source: RequestSource,
        data: WorkloadData,
        folder: Path,
        *,
        interrupts: Interrupts,
        save_text: bool = False,
        observer: RunObserver | None = None,
        engine: EngineProcess | None = None,
    ) -> None:
        self._interrupts = interrupts
        self._plan = run.plan
        self._observer = observer
        self._engine = engine
        self._sender: Sender
        if run.workers.count == 1:
            self._sender = Sending(run, source, folder, tell=self._tell, save_text=save_text)
        else:
            self._sender = Crew(run, data, folder, tell=self._tell, save_text=save_text)
        self.facts = self._sender.facts

    async def run(self) -> SessionFacts:
        """Sends the whole plan; returns when every planned request has its record in the journal."""
        await self._sender.open()
        with self._interrupts.on_loop(self._drain, self._save):
            try:
                await self._sender.run()
            finally:
                await self._sender.close()
                self.facts.interrupted = self.facts.interrupted or self._interrupts.heard
        return self.facts

    # ---- watching

    def _tell(self, elapsed_s: float) -> None:
        """Four times a second: the live view, and whether the engine still lives."""
        if self._observer is not None:
            standing = self._sender.standing()
            self._observer.progress(snapshot(self._plan, self._sender.tally, standing, elapsed_s))
        if self._engine is not None and self._engine.returncode is not None and not self.facts.engine_died:
            self.facts.engine_died = True
            self._sender.stop()

    # ---- leaving early

    def _drain(self) -> None:
        """The first Ctrl-C (or SIGTERM) sends nothing more and waits for what is in flight."""
        self._sender.stop(interrupted=True)
        in_flight = self._sender.standing().in_flight
        if self._observer is not None and in_flight:
            self._observer.waiting(
                f"interrupted: waiting for {in_flight} in flight; Ctrl-C again leaves at once"
            )

    def _save(self) -> None:
        """The second one leaves at once, with everything that has ended in the journal."""
        self._sender.save()
        if self._engine is not None:
            self._engine.process.kill()


def snapshot(plan: Plan, tally: Tally, standing: Standing, elapsed_s: float) -> LiveSnapshot:
    """What a person is shown of a run."""
    achieved, offered = tally.rates(standing.at_ns)
    return LiveSnapshot(
        elapsed_s=elapsed_s,
        total_s=None if plan.last_planned_ns is None else plan.last_planned_ns / 1e9,
        done=standing.done,
        planned=plan.expected_total,
        in_flight=standing.in_flight,
        rate_asked_per_s=offered,
        rate_achieved_per_s=achieved,
        ttft_p50_s=tally.ttft(50),
        ttft_p95_s=tally.ttft(95),
        tpot_p50_s=tally.tpot(50),
        tpot_p95_s=tally.tpot(95),
        errors=tally.errors,
        dropped=tally.dropped,
        phase="drain" if standing.is_stopped else plan.phase_of(0, standing.at_ns),
    )
