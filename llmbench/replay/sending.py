"""A plan, or a worker's share of it, on this process's event loop: transport, runner, journals, the
instrument watching itself.

The same code runs where one process sends everything and in each of several workers. What happens is on disk
in the journal; `facts` are only what no request record holds.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from llmbench.client.kernel_stamps import WallClock
from llmbench.client.wire import BodyStyle, Destination, render_body
from llmbench.environment import allow_many_sockets, quiet_collector
from llmbench.load.plan import Plan, part_of
from llmbench.records import RequestRecord, to_journal
from llmbench.replay.facts import SessionFacts
from llmbench.replay.identity import RunIdentity
from llmbench.replay.journal import Journal
from llmbench.replay.runner import Prepared, Runner, RunnerOptions
from llmbench.replay.self_probe import Lags, SelfProbe
from llmbench.replay.tally import EverySecond, Standing, Tally
from llmbench.scenario.masking import scrub
from llmbench.scenario.model import Scenario, secrets_of
from llmbench.workload.prompts import RequestSource

_OPEN_LOOP_CONNECTIONS = 4
_DRAIN_SLACK_S = 1.0
"""The drain outlasts the last request's own timeout: that one has timed out then, and was not cancelled."""


class Sending:
    """One share, made on the event loop once everything about it is known; opened, run and closed once.

    `tell` is called four times a second with the seconds since the start.
    """

    def __init__(
        self,
        run: RunIdentity,
        source: RequestSource,
        folder: Path,
        *,
        tell: Callable[[float], None],
        save_text: bool = False,
    ) -> None:
        reached = run.reached
        self.facts = SessionFacts()
        self.tally = Tally(run.plan)
        self._plan = run.plan
        self._folder = folder
        self._tell = tell
        self._reached = reached
        self._wall, self._lags = WallClock(), Lags()
        self._transport = reached.transport(self._wall)
        url = reached.destination.address.url(reached.destination.api)
        self._runner = Runner(
            run.plan,
            partial(prepare, source, reached.destination, reached.style, run.salt[:8]),
            self._transport,
            self._sink,
            _runner_options(run.scenario, run.plan, url, save_text=save_text),
            self._lags.add,
            source.outline,
        )
        self._journals: list[Journal] = []
        self._probe: SelfProbe | None = None
        self._clockwork: EverySecond | None = None

    async def open(self) -> None:
        """Connects and opens the journals."""
        allow_many_sockets()
        quiet_collector()
        await self._transport.open(self._plan.concurrency_at(0) or _OPEN_LOOP_CONNECTIONS)
        for kind in ("requests", "timeline"):
            path = self._folder / "journal" / f"{kind}-{self._plan.worker}.jsonl"
            self._journals.append(Journal(path, self._on_disk_error))

    async def run(self, start: Callable[[], Awaitable[int]] | None = None) -> None:
        """Sends the whole share; returns when every planned request has its record. `start`: see `Runner`."""
        try:
            await self._runner.run(partial(self._begin, start), self._note_own)
        finally:
            if self._clockwork is not None:
                self._clockwork.close()

    async def _begin(self, start: Callable[[], Awaitable[int]] | None) -> int:
        """The instant from which the plan counts; so do the seconds of the timeline."""
        epoch_ns = time.monotonic_ns() if start is None else await start()
        self._probe = SelfProbe(self._wall, self._lags)
        self._clockwork = EverySecond(self._sample, self._tell)
        return epoch_ns

    async def close(self) -> None:
        """Closes connections and journals."""
        if self._probe is not None:
            self._probe.close()
        await self._transport.close()
        for one in self._journals:
            try:
                await one.close()
            except OSError as error:
                self.facts.disk_error = error
        self.facts.interrupted = self._runner.interrupted
        self.facts.num_sent = self._runner.num_sent

    def _note_own(self) -> None:
        """The instrument's figures of the time in which it measured: what comes after delays no stamp."""
        assert self._probe is not None
        self.facts.own[self._plan.worker] = {
            "transport": self._transport.name,
            "timestamps": self._reached.stamps,
            "timestamps_note": self._reached.stamps_note,
            **self._probe.whole(),
        }

    def stop(self, *, interrupted: bool = False) -> None:
        """Sends nothing more and waits for what is in flight."""
        self._runner.stop(interrupted=interrupted)

    def save(self) -> None:
        """Everything that has ended into the journal, now: for leaving at once."""
        self.facts.num_sent = self._runner.num_sent
        for journal in self._journals:
            journal.flush()

    def standing(self) -> Standing:
        """How far it is."""
        runner = self._runner
        return Standing(
            at_ns=runner.now_ns() if runner.epoch_ns else 0,
            started=runner.num_started,
            sent=runner.num_sent,
            done=runner.num_ended,
            in_flight=runner.in_flight,
            is_stopped=runner.is_stopped,
        )

    def _sink(self, record: RequestRecord) -> None:
        self._journals[0].add(to_journal(record))
        self.tally.add(record)

    def _on_disk_error(self, error: OSError) -> None:
        """A run whose records cannot be kept is not worth going on with."""
        self.facts.disk_error = error
        self._runner.stop()

    def _sample(self, second: float) -> None:
        """Once a second: a row of the timeline."""
        assert self._probe is not None
        source = "client" if self._plan.workers == 1 else f"worker {self._plan.worker}"
        row: dict[str, Any] = {"t_s": second - 1, "source": source, **self._probe.second()}
        row["in_flight"] = self._runner.in_flight
        row["undecoded"] = self._runner.num_undecoded
        self._journals[1].add(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        self.facts.samples.append(row)


def prepare(
    source: RequestSource, destination: Destination, style: BodyStyle, run_id: str, index: int
) -> Prepared:
    """A request's bytes, made before it is due."""
    spec = source.spec(index)
    payload = render_body(
        style,
        prompt=spec.prompt,
        messages=spec.messages,
        max_tokens=spec.output_tokens_asked,
        own=spec.body,
    )
    return Prepared(destination.frame(index, f"{run_id}-{index}", payload), spec)


def _runner_options(scenario: Scenario, plan: Plan, url: str, *, save_text: bool) -> RunnerOptions:
    hidden = secrets_of(scenario)
    drain = scenario.load.drain_timeout_s
    return RunnerOptions(
        api=scenario.target.api,
        stream=scenario.target.stream,
        max_in_flight=part_of(scenario.load.max_in_flight, plan.worker, plan.workers),
        drain_timeout_s=scenario.target.timeout_s + _DRAIN_SLACK_S if drain is None else drain,
        save_text=save_text,
        url=url,
        scrub=(lambda text: scrub(text, hidden)) if hidden else (lambda text: text),
    )
