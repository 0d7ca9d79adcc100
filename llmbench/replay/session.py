"""A run on the event loop: transport, runner, journals, the instrument watching itself, a person watching.

What happens is on disk in the journal; what is returned are only the facts that no request record holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from llmbench.client.kernel_stamps import WallClock
from llmbench.client.wire import BodyStyle, Destination, render_body
from llmbench.environment import allow_many_sockets, quiet_collector
from llmbench.records import RequestRecord, to_journal
from llmbench.replay.engine_process import EngineProcess
from llmbench.replay.identity import RunIdentity
from llmbench.replay.interrupts import Interrupts
from llmbench.replay.journal import Journal
from llmbench.replay.live import LiveSnapshot, RunObserver
from llmbench.replay.runner import Prepared, Runner, RunnerOptions
from llmbench.replay.self_probe import Lags, SelfProbe
from llmbench.replay.tally import EverySecond, Tally
from llmbench.scenario.masking import scrub
from llmbench.scenario.model import Scenario, secrets_of
from llmbench.workload.prompts import RequestSource

_OPEN_LOOP_CONNECTIONS = 4
_DRAIN_SLACK_S = 1.0
"""The drain outlasts the last request's own timeout: that one has timed out then, and was not cancelled."""


@dataclass(slots=True, kw_only=True)
class SessionFacts:
    """What a run was like, beyond its records. `samples` are timeline rows of the client itself."""

    interrupted: bool = False
    num_sent: int = 0
    disk_error: OSError | None = None
    engine_died: bool = False
    instrument: dict[str, Any] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)


class Session:
    """One run: made once everything about it is known, run once."""

    def __init__(
        self,
        run: RunIdentity,
        source: RequestSource,
        folder: Path,
        *,
        interrupts: Interrupts,
        save_text: bool = False,
        observer: RunObserver | None = None,
        engine: EngineProcess | None = None,
    ) -> None:
        reached = run.reached
        self._interrupts = interrupts
        self._plan = run.plan
        self._folder = folder
        self._observer = observer
        self._engine = engine
        self._tally = Tally(run.plan)
        self._reached = reached
        self._wall = WallClock()
        self._transport = reached.transport(self._wall)
        self._lags = Lags()
        self._prepare = partial(prepare, source, reached.destination, reached.style, run.salt[:8])
        url = reached.destination.address.url(reached.destination.api)
        self._options = _runner_options(run.scenario, url, save_text=save_text)
        self.facts = SessionFacts()

    async def run(self) -> SessionFacts:
        """Sends the whole plan; returns when every planned request has its record in the journal."""
        allow_many_sockets()
        quiet_collector()
        await self._transport.open(self._plan.concurrency_at(0) or _OPEN_LOOP_CONNECTIONS)
        journal = Journal(self._folder / "journal" / "requests-0.jsonl", self._on_disk_error)
        timeline = Journal(self._folder / "journal" / "timeline-0.jsonl", self._on_disk_error)

        def sink(record: RequestRecord) -> None:
            journal.add(to_journal(record))
            self._tally.add(record)

        self._journals = (journal, timeline)
        self._runner = Runner(self._plan, self._prepare, self._transport, sink, self._options, self._lags.add)
        with self._interrupts.on_loop(self._drain, self._save):
            try:
                await self._watched(timeline)
            finally:
                await self._transport.close()
                await self._close_journals()
                self.facts.interrupted = self._runner.interrupted or self._interrupts.heard
                self.facts.num_sent = self._runner.num_sent
        return self.facts

    async def _close_journals(self) -> None:
        for one in self._journals:
            try:
                await one.close()
            except OSError as error:
                self.facts.disk_error = error

    def _on_disk_error(self, error: OSError) -> None:
        """A run whose records cannot be kept is not worth going on with."""
        self.facts.disk_error = error
        self._runner.stop()

    # ---- watching

    async def _watched(self, timeline: Journal) -> None:
        probe = SelfProbe(self._wall, self._lags)
        clockwork = EverySecond(partial(self._sample, probe, timeline), self._tell)
        try:
            await self._runner.run()
        finally:
            clockwork.close()
            probe.close()
            self.facts.instrument = {
                "transport": self._transport.name,
                "workers": 1,
                "timestamps": self._reached.stamps,
                "timestamps_note": self._reached.stamps_note,
                **probe.whole(),
            }

    def _sample(self, probe: SelfProbe, timeline: Journal, second: float) -> None:
        """Once a second: a row of the timeline, and whether the engine still lives."""
        row: dict[str, Any] = {"t_s": second - 1, "source": "client", **probe.second()}
        row["in_flight"] = self._runner.in_flight
        row["undecoded"] = self._runner.num_undecoded
        timeline.add(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        self.facts.samples.append(row)
        if self._engine is not None and self._engine.returncode is not None:
            self.facts.engine_died = True
            self._runner.stop()

    def _tell(self, elapsed_s: float) -> None:
        """Four times a second: the live view."""
        if self._observer is not None:
            self._observer.progress(self._snapshot(elapsed_s))

    def _snapshot(self, elapsed_s: float) -> LiveSnapshot:
        plan, runner, tally = self._plan, self._runner, self._tally
        at_ns = runner.now_ns()
        achieved, offered = tally.rates(at_ns)
        return LiveSnapshot(
            elapsed_s=elapsed_s,
            total_s=None if plan.last_planned_ns is None else plan.last_planned_ns / 1e9,
            done=runner.num_ended,
            planned=plan.expected_total,
            in_flight=runner.in_flight,
            rate_asked_per_s=offered,
            rate_achieved_per_s=achieved,
            ttft_p50_s=tally.ttft(50),
            ttft_p95_s=tally.ttft(95),
            tpot_p50_s=tally.tpot(50),
            tpot_p95_s=tally.tpot(95),
            errors=tally.errors,
            dropped=tally.dropped,
            phase="drain" if runner.is_stopped else plan.phase_of(0, at_ns),
        )

    # ---- leaving early

    def _drain(self) -> None:
        """The first Ctrl-C (or SIGTERM) sends nothing more and waits for what is in flight."""
        runner, observer = self._runner, self._observer
        runner.stop(interrupted=True)
        if observer is not None and runner.in_flight:
            observer.waiting(
                f"interrupted: waiting for {runner.in_flight} in flight; Ctrl-C again leaves at once"
            )

    def _save(self) -> None:
        """The second one leaves at once, with everything that has ended in the journal."""
        self.facts.num_sent = self._runner.num_sent
        for journal in self._journals:
            journal.flush()
        if self._engine is not None:
            self._engine.process.kill()


def prepare(
    source: RequestSource, destination: Destination, style: BodyStyle, run_id: str, index: int
) -> Prepared:
    """A request's bytes, made before it is due."""
    spec = source.spec(index)
    payload = render_body(
        style, prompt=spec.prompt, messages=spec.messages, max_tokens=spec.output_tokens_asked
    )
    return Prepared(destination.frame(index, f"{run_id}-{index}", payload), spec)


def _runner_options(scenario: Scenario, url: str, *, save_text: bool) -> RunnerOptions:
    hidden = secrets_of(scenario)
    drain = scenario.load.drain_timeout_s
    return RunnerOptions(
        api=scenario.target.api,
        stream=scenario.target.stream,
        max_in_flight=scenario.load.max_in_flight,
        drain_timeout_s=scenario.target.timeout_s + _DRAIN_SLACK_S if drain is None else drain,
        save_text=save_text,
        url=url,
        scrub=(lambda text: scrub(text, hidden)) if hidden else (lambda text: text),
    )
