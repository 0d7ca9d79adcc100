"""Sends what the plan says when the plan says it, and turns every exchange into a record.

    plan (due times) ─▶ alarm ─▶ transport.send ─▶ Exchange ─▶ slices: decode ─▶ RequestRecord ─▶ sink

Open loop: every request has an absolute due time; a late wake-up sends at once whatever has become due and
never shifts the rest. Above `max_in_flight` an arrival is recorded as dropped. Closed loop: a request ends
and, after its think time, its slot sends the next. Every planned request ends as exactly one record.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from llmbench.client.decode import decode_steps
from llmbench.client.exchange import Exchange, Outgoing, Transport
from llmbench.client.to_record import fill_record
from llmbench.client.wire import Api
from llmbench.load.arrivals import Burst, bursts
from llmbench.load.plan import Plan
from llmbench.records import Outcome, RequestRecord
from llmbench.replay.alarm import Alarm
from llmbench.replay.slices import Slices

READY_AHEAD = 256
"""Requests rendered to bytes before they are due."""
UNANSWERED_REST_NS = 100_000_000
"""How long a closed loop's slot rests when no answer came: a dead server would be asked without end."""
SENDS_PER_TURN = 16
"""Sends between two looks at the sockets, where many are due at once: some 0.2 ms of work."""
WARM_LEAD_NS, WARM_EACH_NS, WARM_LEAD_MOST_NS = 200_000_000, 3_000_000, 2_500_000_000
_PAUSE_EVERY = 64


def _lead_ns(burst: Burst) -> int:
    """How long before a burst its connections are made: some milliseconds each, on a machine that is busy."""
    return min(WARM_LEAD_NS + burst.size * WARM_EACH_NS, WARM_LEAD_MOST_NS)


class Spec(Protocol):
    """What a record keeps of the request that was planned."""

    @property
    def index(self) -> int: ...
    @property
    def tenant(self) -> str | None: ...
    @property
    def session(self) -> str | None: ...
    @property
    def turn(self) -> int | None: ...
    @property
    def input_tokens_asked(self) -> int | None: ...
    @property
    def output_tokens_asked(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request ready to be sent, with what was planned for it."""

    outgoing: Outgoing
    spec: Spec


@dataclass(slots=True, kw_only=True)
class RunnerOptions:
    """How the runner behaves. `scrub` takes secrets out of any text that came from the server; `url` is where
    requests go, for messages.
    """

    api: Api
    stream: bool
    max_in_flight: int
    drain_timeout_s: float
    save_text: bool = False
    url: str | None = None
    scrub: Callable[[str], str] = field(default=lambda text: text)


class Runner:
    """One plan, or one share of it, over one transport, on one event loop."""

    def __init__(
        self,
        plan: Plan,
        prepare: Callable[[int], Prepared],
        transport: Transport,
        sink: Callable[[RequestRecord], None],
        options: RunnerOptions,
        book_lags: Callable[[list[int]], None] = lambda _: None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._plan = plan
        self._prepare = prepare
        self._transport = transport
        self._sink = sink
        self._options = options
        self._book_lags = book_lags
        self._clock = clock
        self._ready: deque[Prepared] = deque()
        self._num_rendered = 0
        self._next = 0  # the next request of this share to be sent
        self._due: Sequence[int] = ()
        self._measured = 0  # closed loop: measured requests started
        self._waiting = 0  # closed loop: slots in their think time
        self._stopped = False
        self._refilling = False
        self._filling = False
        self._warming: set[asyncio.Task[None]] = set()
        self._finished = asyncio.Event()
        self._problem: BaseException | None = None
        self.epoch_ns = 0
        self.in_flight = 0
        self.num_sent = 0
        self.num_ended = 0
        self.interrupted = False
        self._cut_short = False  # interrupted while there was still something to send

    # ---- the run

    async def run(self, start: Callable[[], Awaitable[int]] | None = None) -> None:
        """Runs to the end: every planned request has been handed to the sink as a record.

        `start` is called when all is ready and gives the instant that the plan counts from; else it is now.
        """
        loop = asyncio.get_running_loop()
        usual = loop.get_exception_handler()
        loop.set_exception_handler(self._on_loop_problem)
        try:
            await self._run(start)
        finally:
            loop.set_exception_handler(usual)

    async def _run(self, start: Callable[[], Awaitable[int]] | None) -> None:
        self._slices = Slices()
        for _ in self._refill():
            pass
        self._alarm = Alarm(self._on_alarm)
        ahead = self._bursts()
        while ahead and ahead[0].due_ns <= _lead_ns(ahead[0]):
            await self._warm(ahead.popleft())
        if self._plan.due_ns is not None:
            # as a view: a million instants would take a million objects
            self._due = np.ascontiguousarray(self._plan.due_ns).data
        self.epoch_ns = self._clock() if start is None else await start()
        self._warm_next(ahead)
        self._on_alarm()
        await self._finished.wait()
        self._alarm.close()
        for task in self._warming:
            task.cancel()
        if self._problem is not None:
            raise self._problem
        self._slices.finish()
        await self._account_for_the_rest()

    def _on_loop_problem(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback of ours that raised ends the run with its exception: without it, nothing might ever
        wake the run again. What else the loop reports (a task nobody waited for) goes its usual way.
        """
        problem = context.get("exception")
        if problem is None or "handle" not in context:
            loop.default_exception_handler(context)
        elif self._problem is None:
            self._problem = problem
            self._stopped = True
            self._finished.set()

    def stop(self, *, interrupted: bool = False) -> None:
        """Sends nothing more; what is in flight may still end, within the drain timeout.

        A run that drains already can still be interrupted: it drains on, and is known as interrupted.
        """
        self.interrupted = self.interrupted or interrupted
        if self._stopped:
            return
        self._stopped = True
        self._cut_short = interrupted
        self._start_drain()

    def now_ns(self) -> int:
        """Nanoseconds since the run's start."""
        return self._clock() - self.epoch_ns

    @property
    def num_started(self) -> int:
        """Requests that have had their turn: sent, or dropped."""
        return self._next

    @property
    def is_stopped(self) -> bool:
        """Whether nothing more will be sent: the plan is through, or the run was stopped."""
        return self._stopped

    @property
    def num_undecoded(self) -> int:
        """Jobs waiting for a slice: the decoder's backlog."""
        return len(self._slices)

    # ---- when to send

    def _on_alarm(self) -> None:
        if self._stopped:
            return
        if self._plan.due_ns is not None:
            self._pace()
        else:
            self._step_closed()

    def _pace(self) -> None:
        """Open loop: sends everything that is due, then sleeps until the next."""
        due, num_due = self._due, len(self._due)
        last = self._next + SENDS_PER_TURN
        while self._next < num_due:
            due_ns = due[self._next]
            if due_ns > self.now_ns() or self._next == last:
                self._alarm.set(self.epoch_ns + due_ns)
                return
            self._launch(due_ns)
        self._stopped = True
        self._start_drain()

    def _step_closed(self) -> None:
        """Closed loop: at the start, and whenever the number of slots changes or the time is up."""
        now = self.now_ns()
        if now < 0:  # the start lies a little ahead
            self._alarm.set(self.epoch_ns)
            return
        self._fill_slots()
        instants = (self._plan.end_ns, self._plan.next_concurrency_step_ns(now))
        ahead = [instant for instant in instants if instant is not None and instant > now]
        if not self._stopped and ahead:
            self._alarm.set(self.epoch_ns + min(ahead))

    def _fill_soon(self) -> None:
        """Closed loop: fills freed slots when every socket that is ready now has been read.

        A send takes as long as a read: when many streams end together, the stamps of those read last would
        wait for the sends of those read first.
        """
        if not self._filling:
            self._filling = True
            asyncio.get_running_loop().call_soon(self._fill_freed)

    def _fill_freed(self) -> None:
        self._filling = False
        self._fill_slots()

    def _fill_slots(self) -> None:
        """Closed loop: starts requests until as many run (or think) as the plan has slots now."""
        last = self._next + SENDS_PER_TURN
        while not self._stopped:
            now = self.now_ns()
            if not self._plan.admits(self._measured, now):
                self._stopped = True
                self._start_drain()
            elif self.in_flight + self._waiting >= self._plan.concurrency_at(now):
                return
            elif self._next == last:
                self._fill_soon()
                return
            else:
                self._launch(None)

    def _launch(self, due_ns: int | None) -> None:
        index = self._plan.index_of(self._next)
        self._next += 1
        prepared = self._take(index)
        phase = self._plan.phase_of(index, self.now_ns() if due_ns is None else due_ns)
        if phase == "measure":
            self._measured += 1
        if due_ns is not None and self.in_flight >= self._options.max_in_flight:
            record = self._record(prepared.spec, phase, due_ns, Outcome.DROPPED)
            record.error = f"max_in_flight of {self._options.max_in_flight} was reached"
            if self._plan.workers > 1:
                record.error += ", this worker's part"
            self._emit(record)
            return
        self.in_flight += 1
        self.num_sent += 1
        self._transport.send(
            prepared.outgoing, lambda exchange: self._on_end(exchange, prepared.spec, phase, due_ns)
        )

    # ---- connections, made before a burst is due

    def _bursts(self) -> deque[Burst]:
        return deque(() if self._plan.due_ns is None else bursts(self._plan.due_ns))

    async def _warm(self, burst: Burst) -> None:
        await self._transport.warm(min(burst.size, self._options.max_in_flight))

    def _warm_next(self, ahead: deque[Burst]) -> None:
        """Connects shortly before each burst: to connect takes as long as some ten sends, and would make the
        burst late by all of its connections.
        """
        while ahead and not self._stopped:
            wait_ns = ahead[0].due_ns - _lead_ns(ahead[0]) - self.now_ns()
            if wait_ns > 0:
                asyncio.get_running_loop().call_later(wait_ns / 1e9, self._warm_next, ahead)
                return
            task = asyncio.get_running_loop().create_task(self._warm(ahead.popleft()))
            self._warming.add(task)
            task.add_done_callback(self._warming.discard)

    # ---- bodies, rendered before they are due

    def _take(self, index: int) -> Prepared:
        prepared = self._ready.popleft() if self._ready else self._render_next()
        assert prepared.spec.index == index, "requests are rendered in the order they are sent"
        if len(self._ready) < READY_AHEAD // 2 and not self._refilling:
            self._refilling = True
            self._slices.add(self._refill())
        return prepared

    def _refill(self) -> Iterator[None]:
        limit = self._plan_size()
        while len(self._ready) < READY_AHEAD and (limit is None or self._num_rendered < limit):
            self._ready.append(self._render_next())
            yield
        self._refilling = False

    def _render_next(self) -> Prepared:
        prepared = self._prepare(self._plan.index_of(self._num_rendered))
        self._num_rendered += 1
        return prepared

    def _plan_size(self) -> int | None:
        return None if self._plan.due_ns is None else len(self._plan.due_ns)

    # ---- what came back

    def _on_end(self, exchange: Exchange, spec: Spec, phase: str, due_ns: int | None) -> None:
        self.in_flight -= 1
        self._slices.add(self._digest(exchange, spec, phase, due_ns))
        if self._stopped:
            self._settle_if_drained()
        elif due_ns is None:
            self._next_in_slot(spec.index, UNANSWERED_REST_NS if exchange.status is None else 0)

    def _next_in_slot(self, index: int, rest_ns: int) -> None:
        think_ns = max(self._plan.think_time_ns(index), rest_ns)
        if think_ns <= 0:
            self._fill_soon()
            return
        self._waiting += 1
        asyncio.get_running_loop().call_later(think_ns / 1e9, self._think_no_more)

    def _think_no_more(self) -> None:
        self._waiting -= 1
        self._fill_soon()

    def _digest(self, exchange: Exchange, spec: Spec, phase: str, due_ns: int | None) -> Iterator[None]:
        """A job for the slices: decodes an exchange, then hands its record on."""
        answer = yield from decode_steps(
            exchange, self._options.api, stream=self._options.stream, keep_text=self._options.save_text
        )
        yield
        self._book_lags(exchange.lags_ns)
        record = self._record(spec, phase, due_ns, Outcome.OK)
        fill_record(
            record,
            exchange,
            answer,
            epoch_ns=self.epoch_ns,
            scrub=self._options.scrub,
            save_text=self._options.save_text,
        )
        if exchange.status in (404, 405) and record.error and self._options.url:
            record.error += f" (POST {self._options.url})"
        self._emit(record)

    def _record(self, spec: Spec, phase: str, due_ns: int | None, outcome: Outcome) -> RequestRecord:
        return RequestRecord(
            index=spec.index,
            phase=phase,
            outcome=outcome,
            tenant=spec.tenant,
            session=spec.session,
            turn=spec.turn,
            due_ns=due_ns,
            input_tokens_asked=spec.input_tokens_asked,
            output_tokens_asked=spec.output_tokens_asked,
            worker=self._plan.worker,
        )

    def _emit(self, record: RequestRecord) -> None:
        self.num_ended += 1
        self._sink(record)

    # ---- the end

    def _start_drain(self) -> None:
        if not self._settle_if_drained():
            asyncio.get_running_loop().call_later(self._options.drain_timeout_s, self._end_drain)

    def _end_drain(self) -> None:
        if self.in_flight:
            self._transport.abort(f"had not ended {self._options.drain_timeout_s:g} s after the last send")

    def _settle_if_drained(self) -> bool:
        if self.in_flight == 0:
            self._finished.set()
        return self.in_flight == 0

    async def _account_for_the_rest(self) -> None:
        """Planned requests that were never sent, because the run was stopped early, are records too."""
        if self._plan.due_ns is not None:
            num_planned = len(self._plan.due_ns)
        elif self._cut_short and self._plan.num_requests is not None:
            num_planned = self._next + self._plan.num_requests - self._measured
        else:
            return
        for nth in range(self._next, num_planned):
            if nth % _PAUSE_EVERY == 0:
                await asyncio.sleep(0)  # there may be very many, and a second Ctrl-C must be heard
            index, due_ns = self._plan.index_of(nth), self._due[nth] if self._plan.is_open else None
            spec = self._prepare(index).spec
            phase = "measure" if due_ns is None else self._plan.phase_of(index, due_ns)
            record = self._record(spec, phase, due_ns, Outcome.CANCELLED)
            record.error_kind = "cancelled"
            record.error = "the run was stopped before this request was sent"
            self._emit(record)
