"""The page: one scenario, from what the file says to a finished run folder.

    read the files ─▶ plan ─▶ make the folder ─▶ start or find the target ─▶ learn how it counts
         ─▶ run: send, stamp, journal ─▶ columns ─▶ summary, verdict, gate ─▶ exit code

Everything that can fail fails before the first request, except the target itself.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from llmbench.environment import usable_cores
from llmbench.errors import CannotMeasure, Interrupted
from llmbench.load.plan import Plan
from llmbench.load.workers import Workers, choose_workers, demand_of
from llmbench.preflight import prepare
from llmbench.replay.engine_process import EngineProcess, running_engine
from llmbench.replay.facts import SessionFacts
from llmbench.replay.identity import RunIdentity
from llmbench.replay.interrupts import Interrupts
from llmbench.replay.live import RunObserver
from llmbench.replay.reach import Reached, reach
from llmbench.replay.session import Session
from llmbench.report.folder import RunFolder, create
from llmbench.report.rebuild import read_journals, write_results
from llmbench.report.run_document import measurement, plan_text, run_document
from llmbench.scenario.model import Scenario
from llmbench.slo import exit_code
from llmbench.workload.data import WorkloadData
from llmbench.workload.prompts import RequestSource, make_workload, prompt_set_hash

T = TypeVar("T")

NUM_LOOKED_AT = 32
NOTHING_SENT = "interrupted before the first request: nothing was sent, and no folder is kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A finished run: where its files are, its summary, and the code the command exits with."""

    folder: Path
    summary: dict[str, Any]
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """What is known of a run before its target is reached."""

    data: WorkloadData
    plan: Plan
    folder: RunFolder
    started: datetime
    save_text: bool
    observer: RunObserver | None
    command_line: Sequence[str]
    interrupts: Interrupts
    begun: _Begun


@dataclass(slots=True, kw_only=True)
class _Begun:
    """What there is of a run so far, for when it is interrupted. A run that sent nothing leaves nothing."""

    observer: RunObserver | None
    folder: RunFolder | None = None
    facts: SessionFacts = field(default_factory=SessionFacts)

    def ended(self, how: str) -> str:
        """Removes an unused folder; what became of the run, in one line."""
        if self.folder is not None and self.facts.num_sent:
            return f"{how}; what had ended: llmbench report {self.folder.path}"
        if self.folder is not None:
            self.folder.remove()
        return NOTHING_SENT

    def leave(self) -> None:
        """The second Ctrl-C: the process ends after it."""
        if self.observer is not None:
            self.observer.finished()
        sys.stderr.write(self.ended("left at once") + "\n")
        sys.stderr.flush()


def run_scenario(
    scenario: Scenario,
    *,
    out: Path = Path("reports"),
    scenario_dir: Path | None = None,
    save_text: bool = False,
    observer: RunObserver | None = None,
    command_line: Sequence[str] = (),
) -> RunResult:
    """Runs a scenario and writes its folder under `out`.

    Raises UsageError (exit code 2) before anything is sent, CannotMeasure (3) when the target cannot be
    reached. A run in which every request failed is still a run, with a folder and exit code 3. So is one that
    was interrupted (130); where nothing had been sent, or no results were written, it raises Interrupted.
    """
    begun = _Begun(observer=observer)
    with Interrupts(begun.leave) as interrupts:
        try:
            ready = prepare(scenario, scenario_dir)
            started = datetime.now(UTC)
            begun.folder = create(Path(out), scenario.name, started)
            prepared = _Prepared(
                data=ready.data,
                plan=ready.plan,
                folder=begun.folder,
                started=started,
                save_text=save_text,
                observer=observer,
                command_line=command_line,
                interrupts=interrupts,
                begun=begun,
            )
            return _run(scenario, prepared)
        except KeyboardInterrupt:
            raise Interrupted(begun.ended("interrupted")) from None


def _run(scenario: Scenario, prepared: _Prepared) -> RunResult:
    try:
        with _target(scenario, prepared) as (reachable, engine):
            run, facts = _on_event_loop(lambda: _measure(reachable, prepared, engine))
            died = engine.obituary() if engine is not None and facts.engine_died else None
    finally:
        prepared.folder.remove_if_unused()
    if facts.interrupted and not facts.num_sent:
        prepared.interrupts.end()
    return _conclude(run, facts, prepared, died)


@contextmanager
def _target(scenario: Scenario, prepared: _Prepared) -> Iterator[tuple[Scenario, EngineProcess | None]]:
    """The endpoint for the run's length: the bundled engine is started and stopped, a URL is left alone."""
    target = scenario.target
    if target.engine is None:
        yield scenario, None
        return
    starting = running_engine(
        target.engine,
        log=prepared.folder.path / "engine.log",
        ready_timeout_s=target.ready_timeout_s,
        waiting=_teller(prepared.observer),
        check=prepared.interrupts.check,
    )
    with ExitStack() as stack:
        with prepared.interrupts.polled():
            engine = stack.enter_context(starting)
        yield scenario.with_target_url(engine.url), engine


async def _measure(
    scenario: Scenario, prepared: _Prepared, engine: EngineProcess | None
) -> tuple[RunIdentity, SessionFacts]:
    """Everything that needs the event loop: reaching the target, and the run itself."""

    def alive() -> None:
        prepared.interrupts.check()
        if engine is not None and engine.returncode is not None:
            raise CannotMeasure(engine.obituary())

    reached = await reach(scenario, alive=alive, tell=_teller(prepared.observer))
    prepared.interrupts.check()
    salt = secrets.token_hex(8)
    source = make_workload(scenario, prepared.data, fit=reached.fit, salt=salt)
    workers = _workers(scenario, prepared.plan, source, is_local=engine is not None or reached.is_local)
    run = _identity(scenario, prepared, reached, engine, salt=salt, workers=workers)
    prepared.folder.write_run(run_document(run, measurement(run)))
    session = Session(
        run,
        source,
        prepared.data,
        prepared.folder.path,
        interrupts=prepared.interrupts,
        save_text=prepared.save_text,
        observer=prepared.observer,
        engine=engine,
    )
    prepared.begun.facts = session.facts
    if prepared.observer is not None:
        end_ns = prepared.plan.last_planned_ns
        prepared.observer.started(
            plan_text(run), prepared.plan.expected_total, None if end_ns is None else end_ns / 1e9
        )
    return run, await session.run()


def _workers(scenario: Scenario, plan: Plan, source: RequestSource, *, is_local: bool) -> Workers:
    """How many processes send, by the lengths of a few requests from all over the plan."""
    num_planned = plan.expected_total or plan.num_requests or NUM_LOOKED_AT
    looked_at = range(0, num_planned, max(1, num_planned // NUM_LOOKED_AT))
    demand = demand_of(
        plan,
        [source.spec(index).output_tokens_asked for index in looked_at],
        max_in_flight=scenario.load.max_in_flight,
        is_streamed=scenario.target.stream,
    )
    return choose_workers(scenario.instrument.workers, demand, cores=usable_cores(), is_local=is_local)


def _identity(
    scenario: Scenario,
    prepared: _Prepared,
    reached: Reached,
    engine: EngineProcess | None,
    *,
    salt: str,
    workers: Workers,
) -> RunIdentity:
    return RunIdentity(
        scenario=scenario,
        plan=prepared.plan,
        reached=reached,
        salt=salt,
        workers=workers,
        started=prepared.started,
        command_line=prepared.command_line,
        engine=engine.model if engine is not None else None,
    )


def _conclude(run: RunIdentity, facts: SessionFacts, prepared: _Prepared, died: str | None) -> RunResult:
    """From the journal to every result, and the exit code."""
    folder = prepared.folder
    if facts.disk_error is not None:
        raise _no_room(folder, "the journal", facts.disk_error)
    context = measurement(
        run, interrupted=facts.interrupted, instrument=facts.instrument(run.workers), lost=facts.lost
    )
    columns, _ = read_journals(folder, context)
    context = replace(context, planned=columns.num_rows)
    prompts = prompt_set_hash(run.scenario, prepared.data, fit=run.reached.fit, num_requests=100)
    try:
        folder.write_run(run_document(run, context, ended=datetime.now(UTC), prompt_set_hash=prompts))
        summary = write_results(folder, columns, context, facts.samples)
    except OSError as error:
        raise _no_room(folder, "the results", error) from error
    if died is not None:
        raise CannotMeasure(f"{died}\nWhat was measured before: {folder.summary_md}")
    code = exit_code(
        summary["verdict"]["status"],
        summary["gate"]["status"],
        num_ok=summary["counts"]["ok"],
        interrupted=facts.interrupted,
    )
    return RunResult(folder=folder.path, summary=summary, exit_code=code)


def _no_room(folder: RunFolder, what: str, error: OSError) -> CannotMeasure:
    return CannotMeasure(
        f"{folder.path}: {what} could not be written ({error.strerror}).\n"
        f"What had been written is there. Free some space, then: llmbench report {folder.path}"
    )


def _teller(observer: RunObserver | None) -> Callable[[str], None]:
    return observer.waiting if observer is not None else lambda _: None


def _on_event_loop(work: Callable[[], Awaitable[T]]) -> T:
    """Runs the coroutine on uvloop where there is one, else on asyncio's own loop."""

    async def main() -> T:
        return await work()

    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    return uvloop.run(main())
