"""The page: one scenario, from what the file says to a finished run folder.

    read files ─▶ plan ─▶ make the folder ─▶ reach the target ─▶ fit the prompts
         ─▶ run: send, stamp, journal ─▶ columns ─▶ summary, verdict, gate ─▶ exit code

Everything that can fail fails before the first request, except the target itself.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orjson

from llmbench import __version__
from llmbench.client.address import parse_address
from llmbench.client.choose import choose, make_transport, proxy_for, tls_context
from llmbench.client.control import Control, ServerInfo
from llmbench.client.exchange import Timeouts, Transport
from llmbench.client.wire import BodyStyle, Destination, render_body, request_headers
from llmbench.context import RunContext, StageWindow
from llmbench.environment import allow_many_sockets, describe_host, quiet_collector
from llmbench.errors import CannotMeasure, UsageError
from llmbench.load.plan import Plan, make_plan
from llmbench.records import RequestRecord, to_journal
from llmbench.report.folder import RunFolder, create
from llmbench.report.rebuild import read_journals, write_results
from llmbench.run.engine_process import EngineProcess, running_engine
from llmbench.run.journal import Journal
from llmbench.run.live import LiveSnapshot, RunObserver
from llmbench.run.runner import Prepared, Runner, RunnerOptions
from llmbench.run.tally import EverySecond, SelfProbe, Tally
from llmbench.scenario.masking import scrub
from llmbench.scenario.model import Scenario, Target, secrets_of
from llmbench.slo import exit_code
from llmbench.workload.data import WorkloadData, load_data
from llmbench.workload.fit import TextFit, fit_text, tokenizer_count
from llmbench.workload.prompts import RequestSource, make_workload, prompt_set_hash

T = TypeVar("T")

_OPEN_LOOP_CONNECTIONS = 4
_FITTED = ("synthetic", "azure")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A finished run: where its files are, its summary, and the code the command exits with."""

    folder: Path
    summary: dict[str, Any]
    exit_code: int


@dataclass(slots=True, kw_only=True)
class _Run:
    """One run's parts, filled as they come into being."""

    scenario: Scenario
    data: WorkloadData
    plan: Plan
    folder: RunFolder
    observer: RunObserver | None
    save_text: bool
    command_line: list[str]
    started: datetime
    salt: str = field(default_factory=lambda: secrets.token_hex(8))
    engine: EngineProcess | None = None
    info: ServerInfo | None = None
    fit: TextFit | None = None
    ignore_eos: bool = False
    transport: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False
    disk_error: OSError | None = None


def run_scenario(
    scenario: Scenario,
    *,
    out: Path,
    scenario_dir: Path | None = None,
    save_text: bool = False,
    observer: RunObserver | None = None,
    command_line: Sequence[str] = (),
) -> RunResult:
    """Runs a scenario and writes its folder under `out`.

    Raises UsageError (exit code 2) before anything is sent, CannotMeasure (3) when the target cannot be
    reached. A run in which every request failed is still a run, with a folder and exit code 3.
    """
    _refuse_what_is_not_there_yet(scenario)
    data = load_data(scenario, scenario_dir)
    plan = make_plan(scenario, data.trace)
    started = datetime.now(UTC)
    run = _Run(
        scenario=scenario,
        data=data,
        plan=plan,
        folder=create(out, scenario.name, started),
        observer=observer,
        save_text=save_text,
        command_line=[scrub(word, secrets_of(scenario)) for word in command_line],
        started=started,
    )
    with _target(run):
        _on_event_loop(partial(_measure, run))
    return _conclude(run)


def _refuse_what_is_not_there_yet(scenario: Scenario) -> None:
    """Keys that validate but that this version cannot honour: better refused than ignored."""
    missing = {
        "matrix": bool(scenario.matrix),
        "cost": scenario.cost is not None,
        "server_metrics": scenario.server_metrics not in ("auto", False),
        "instrument.workers": scenario.instrument.workers not in ("auto", 1),
        "instrument.timestamps": scenario.instrument.timestamps == "kernel",
    }
    asked = [key for key, is_asked in missing.items() if is_asked]
    if asked:
        raise UsageError(f"{scenario.name}: not in this version: {', '.join(asked)}; leave it out")


@contextmanager
def _target(run: _Run) -> Iterator[None]:
    """The endpoint for the run's length: the bundled engine is started and stopped, a URL is left alone."""
    target = run.scenario.target
    if target.engine is None:
        yield
        return
    log = run.folder.path / "engine.log"
    waiting = run.observer.waiting if run.observer is not None else None
    with running_engine(
        target.engine, log=log, ready_timeout_s=target.ready_timeout_s, waiting=waiting
    ) as engine:
        run.engine = engine
        run.scenario = run.scenario.with_target_url(engine.url)
        yield


def _on_event_loop(work: Callable[[], Awaitable[T]]) -> T:
    """Runs the coroutine on uvloop where there is one, else on asyncio's own loop."""

    async def main() -> T:
        return await work()

    try:
        import uvloop
    except ImportError:
        return asyncio.run(main())
    return uvloop.run(main())


# ---- reaching the target


async def _measure(run: _Run) -> None:
    """Everything that needs the event loop: readiness, fitting, the run itself."""
    target = run.scenario.target
    address = parse_address(target.url or "", target.unix_socket)
    destination = Destination(address=address, api=target.api, headers=_headers(target))
    tls = tls_context(address, target.tls_verify)
    run.transport = choose(run.scenario.instrument.transport, address)
    async with Control(destination, tls=tls, timeout_s=target.timeout_s, proxy=proxy_for(address)) as control:
        await _learn(run, control)
    transport = make_transport(run.transport, destination, _timeouts(target), tls)
    await _run(run, transport, destination, _body_style(run))


def _headers(target: Target) -> tuple[tuple[str, str], ...]:
    key = target.api_key.get_secret_value() if target.api_key is not None else None
    return request_headers(
        api_key=key, extra=target.headers, stream=target.stream, agent=f"llmbench/{__version__}"
    )


def _timeouts(target: Target) -> Timeouts:
    return Timeouts(
        connect_s=target.connect_timeout_s,
        total_s=target.timeout_s,
        no_progress_s=target.no_progress_timeout_s,
    )


def _body_style(run: _Run) -> BodyStyle:
    target = run.scenario.target
    return BodyStyle(
        api=target.api,
        model=run.info.model if run.info is not None else target.model,
        stream=target.stream,
        usage=target.usage,
        ignore_eos=run.ignore_eos,
        extra=target.body,
    )


async def _learn(run: _Run, control: Control) -> None:
    """Waits for the target, then asks what it is and how it counts."""
    target, observer = run.scenario.target, run.observer
    told = 0.0

    def waiting(waited_s: float) -> None:
        nonlocal told
        if observer is not None and waited_s - told >= 5:
            told = waited_s
            observer.waiting(f"waiting for {target.url} ({waited_s:.0f} s of {target.ready_timeout_s:g})")

    def alive() -> None:
        if run.engine is not None and run.engine.returncode is not None:
            raise CannotMeasure(run.engine.obituary())

    answer = await control.wait_ready(target.ready_timeout_s, alive=alive, waiting=waiting)
    run.info = await control.describe(answer, target.model)
    style = _body_style(run)
    if target.ignore_eos == "auto":
        asks_lengths = any(one.output_tokens is not None or one.path for one in run.scenario.workloads)
        run.ignore_eos = asks_lengths and await control.accepts_ignore_eos(style)
    else:
        run.ignore_eos = target.ignore_eos is True
    if any(workload.kind in _FITTED for workload in run.scenario.workloads):
        run.fit = await _fit(run, control, style)


async def _fit(run: _Run, control: Control, style: BodyStyle) -> TextFit:
    """What text costs in tokens here, by the server's own counts or a local tokenizer.json."""
    is_chat = style.api != "completions"
    systems = [workload.system for workload in run.scenario.workloads if workload.system]
    if run.scenario.target.tokenizer is not None:
        count = tokenizer_count(Path(run.scenario.target.tokenizer), is_chat=is_chat)
        return await fit_text(count, source="tokenizer", is_chat=is_chat, systems=systems)
    source, by_server = await control.counts(style)
    return await fit_text(by_server, source=source, is_chat=is_chat, systems=systems)


# ---- the run


async def _run(run: _Run, transport: Transport, destination: Destination, style: BodyStyle) -> None:
    """Sends the plan and journals what comes back."""
    source = make_workload(run.scenario, run.data, fit=run.fit, salt=run.salt)
    run.folder.write_run(_document(run))
    allow_many_sockets()
    quiet_collector()
    stop_for_disk: list[Runner] = []

    def on_disk_error(error: OSError) -> None:
        run.disk_error = error
        for one in stop_for_disk:
            one.stop()

    journal = Journal(run.folder.journal / "requests-0.jsonl", on_disk_error)
    timeline = Journal(run.folder.journal / "timeline-0.jsonl", on_disk_error)
    tally = Tally()

    def sink(record: RequestRecord) -> None:
        journal.add(to_journal(record))
        tally.add(record)

    await transport.open(run.plan.concurrency_at(0) or _OPEN_LOOP_CONNECTIONS)
    runner = Runner(
        run.plan,
        partial(_prepare, source, destination, style, f"{run.salt[:8]}"),
        transport,
        sink,
        _runner_options(run),
    )
    stop_for_disk.append(runner)
    if run.observer is not None:
        ends = None if run.plan.last_planned_ns is None else run.plan.last_planned_ns / 1e9
        run.observer.started(_plan_text(run), run.plan.expected_total, ends)
    try:
        with _interrupts(run, runner, (journal, timeline)):
            await _watched(run, runner, tally, timeline)
    finally:
        run.interrupted = runner.interrupted
        await transport.close()
        for one in (journal, timeline):
            try:
                await one.close()
            except OSError as error:
                run.disk_error = error


def _prepare(
    source: RequestSource, destination: Destination, style: BodyStyle, run_id: str, index: int
) -> Prepared:
    """A request's bytes, made before it is due."""
    spec = source.spec(index)
    payload = render_body(
        style, prompt=spec.prompt, messages=spec.messages, max_tokens=spec.output_tokens_asked
    )
    return Prepared(destination.frame(index, f"{run_id}-{index}", payload), spec)


def _runner_options(run: _Run) -> RunnerOptions:
    scenario = run.scenario
    hidden = secrets_of(scenario)
    drain = scenario.load.drain_timeout_s
    return RunnerOptions(
        api=scenario.target.api,
        stream=scenario.target.stream,
        max_in_flight=scenario.load.max_in_flight,
        drain_timeout_s=scenario.target.timeout_s if drain is None else drain,
        save_text=run.save_text,
        scrub=(lambda text: scrub(text, hidden)) if hidden else (lambda text: text),
    )


async def _watched(run: _Run, runner: Runner, tally: Tally, timeline: Journal) -> None:
    """The run, with the instrument watching itself and a person watching both."""
    probe = SelfProbe()

    def sample(second: float) -> None:
        row = {"t_s": second - 1, "source": "client", **probe.second()}
        row["in_flight"] = runner.in_flight
        row["undecoded"] = runner.num_undecoded
        timeline.add(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
        run.samples.append(row)
        if run.engine is not None and run.engine.returncode is not None:
            runner.stop()

    def often(elapsed_s: float) -> None:
        if run.observer is not None:
            run.observer.progress(_snapshot(run, runner, tally, elapsed_s))

    clockwork = EverySecond(sample, often)
    try:
        await runner.run()
    finally:
        clockwork.close()
        probe.close()
        run.facts = {"transport": run.transport, "workers": 1, "timestamps": "loop", **probe.whole()}


def _snapshot(run: _Run, runner: Runner, tally: Tally, elapsed_s: float) -> LiveSnapshot:
    plan = run.plan
    at_ns = runner.now_ns()
    is_over = runner.is_stopped
    return LiveSnapshot(
        elapsed_s=elapsed_s,
        total_s=None if plan.last_planned_ns is None else plan.last_planned_ns / 1e9,
        done=runner.num_ended,
        planned=plan.expected_total,
        in_flight=runner.in_flight,
        rate_asked_per_s=plan.rate_at(at_ns),
        rate_achieved_per_s=runner.num_sent / elapsed_s if elapsed_s > 0 else 0.0,
        ttft_p50_s=tally.ttft(50),
        ttft_p95_s=tally.ttft(95),
        tpot_p50_s=tally.tpot(50),
        tpot_p95_s=tally.tpot(95),
        errors=tally.errors,
        dropped=tally.dropped,
        phase="drain" if is_over else plan.phase_of(0, at_ns),
    )


@contextmanager
def _interrupts(run: _Run, runner: Runner, journals: tuple[Journal, ...]) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) sends nothing more and drains; the second leaves at once."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def on_signal() -> None:
        if not runner.interrupted:
            runner.stop(interrupted=True)
            if run.observer is not None:
                run.observer.waiting(
                    f"interrupted: waiting for {runner.in_flight} in flight; Ctrl-C again leaves at once"
                )
            return
        for journal in journals:
            journal.flush()
        if run.engine is not None:
            run.engine.process.kill()
        if run.observer is not None:
            run.observer.finished()
        sys.stderr.write(f"left at once; what had ended: llmbench report {run.folder.path}\n")
        sys.stderr.flush()
        os._exit(130)

    for number in signals:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


# ---- what is written


def _conclude(run: _Run) -> RunResult:
    """From the journal to every result, and the exit code."""
    context = _context(run)
    if run.disk_error is not None:
        raise CannotMeasure(
            f"{run.folder.path}: the journal could not be written ({run.disk_error.strerror}).\n"
            f"What had been written is there. Free some space, then: llmbench report {run.folder.path}"
        )
    columns, _ = read_journals(run.folder, context)
    context = replace(context, planned=columns.num_rows)
    run.folder.write_run(_document(run, context=context, ended=datetime.now(UTC)))
    summary = write_results(run.folder, columns, context, run.samples)
    if run.engine is not None and not run.interrupted and run.engine.returncode not in (None, 0, -15):
        raise CannotMeasure(
            f"{run.engine.obituary()}\nWhat was measured before: {run.folder.path}/summary.md"
        )
    code = exit_code(
        summary["verdict"]["status"],
        summary["gate"]["status"],
        num_ok=summary["counts"]["ok"],
        interrupted=run.interrupted,
    )
    return RunResult(folder=run.folder.path, summary=summary, exit_code=code)


def _context(run: _Run) -> RunContext:
    scenario, plan, info = run.scenario, run.plan, run.info
    end_ns = plan.end_ns
    return RunContext(
        name=scenario.name,
        open_loop=plan.is_open,
        planned=None if plan.due_ns is None else len(plan.due_ns),
        num_warmup=plan.num_warmup or 0,
        window_ns=None if end_ns is None else (plan.warmup_ns, end_ns),
        interrupted=run.interrupted,
        rate_asked_per_s=_rate_asked(plan),
        max_in_flight=scenario.load.max_in_flight if plan.is_open else None,
        cache_hits_expected=any(
            workload.cache != "cold" or workload.prefix is not None or workload.system
            for workload in scenario.workloads
        ),
        target=f"engine {run.engine.model}" if run.engine is not None else scenario.target.url,
        model=info.model if info is not None else None,
        server=_server_words(info),
        load=plan.headline,
        seed=scenario.seed,
        started=run.started.isoformat(timespec="seconds"),
        slo=scenario.slo.limits,
        tenant_slo={
            workload.tenant: workload.slo.limits
            for workload in scenario.workloads
            if workload.tenant is not None and workload.slo is not None
        },
        stages=tuple(
            StageWindow(
                label=f"stage {number}: {span.start_level:g} to {span.end_level:g}"
                if span.start_level != span.end_level
                else f"stage {number}: {span.start_level:g}",
                start_ns=span.start_ns,
                end_ns=span.end_ns,
            )
            for number, span in enumerate(plan.stages, start=1)
        ),
        instrument=run.facts,
    )


def _rate_asked(plan: Plan) -> float | None:
    """Mean rate of the measured window as planned, requests per second."""
    if plan.due_ns is None or plan.duration_ns is None:
        return None
    measured = int((plan.due_ns >= plan.warmup_ns).sum())
    return measured / (plan.duration_ns / 1e9)


def _server_words(info: ServerInfo | None) -> str | None:
    if info is None:
        return None
    words = [word for word in (info.owned_by, info.version) if word]
    return " ".join(words) or info.server_header


def _plan_text(run: _Run) -> str:
    target = run.scenario.target.url if run.engine is None else f"engine at {run.engine.url}"
    model = run.info.model if run.info is not None else ""
    words = _server_words(run.info)
    title = f"{run.scenario.name}   {target}   {model}" + (f" ({words})" if words else "")
    return f"{title}\n{run.plan.describe()}"


def _document(
    run: _Run, *, context: RunContext | None = None, ended: datetime | None = None
) -> dict[str, Any]:
    """run.json: enough to repeat the run and to rebuild every report. Secrets are masked."""
    fit = run.fit.report if run.fit is not None else None
    document: dict[str, Any] = {
        "schema": "llmbench.run/1",
        "llmbench": __version__,
        "command": run.command_line,
        "started": run.started.isoformat(),
        "ended": ended.isoformat() if ended is not None else None,
        "scenario": run.scenario.resolved(),
        "scenario_hash": run.scenario.hash(),
        "schedule_hash": run.plan.schedule_hash,
        "prompt_set_hash": None,
        "seed": run.scenario.seed,
        "salt": run.salt,
        "host": describe_host(),
        "server": _plain(run.info),
        "engine": None if run.engine is None else {"url": run.engine.url, "model": run.engine.model},
        "ignore_eos": run.ignore_eos,
        "prompt_fit": _plain(fit),
        "measurement": (context or _context(run)).to_json(),
    }
    if ended is not None:
        document["prompt_set_hash"] = prompt_set_hash(run.scenario, run.data, fit=run.fit, num_requests=100)
    return document


def _plain(value: Any) -> Any:
    """A dataclass as plain JSON values."""
    return None if value is None else orjson.loads(orjson.dumps(value))
