"""The engine in a thread of its own, so that a long step never stalls a stream or a health check.

The event loop puts orders into a queue; the thread carries them out between two steps, steps, and hands
all tokens of a step back to the loop in one call. Nothing else is shared.

The thread loads the engine too, and no other may compute with torch in this process: libgomp keeps a team
of threads for each thread that does, counts all teams against the cores, and with more threads than cores
lets those that wait sleep at once. Steps took 1.2 to 1.6 times as long where another thread had loaded.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from reference_engine.engine import Engine
from reference_engine.errors import EngineError
from reference_engine.metrics import Metrics
from reference_engine.types import EngineStats, GenerationRequest, TokenEvent

logger = logging.getLogger(__name__)


class Inbox:
    """The events of the choices of one HTTP request, until it takes them.

    Whoever streams is woken by each step; whoever wants the whole is woken once, at the end.
    """

    def __init__(self, request_ids: Sequence[str], *, is_streamed: bool) -> None:
        self.request_ids = tuple(request_ids)
        self.num_unfinished = len(request_ids)
        self._is_streamed = is_streamed
        self._events: list[TokenEvent] = []
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def take(self) -> list[TokenEvent]:
        """What has come since the last call, in order; at least one. Raises the EngineError that came."""
        if self._error is None and self.num_unfinished and not (self._is_streamed and self._events):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._error is not None:
            raise self._error
        events, self._events = self._events, []
        return events

    def put(self, event: TokenEvent) -> None:
        self._events.append(event)
        if event.finish_reason is not None:
            self.num_unfinished -= 1
        if self._waiter is not None and (self._is_streamed or not self.num_unfinished):
            self._wake()

    def fail(self, error: EngineError) -> None:
        self._error = error
        if self._waiter is not None:
            self._wake()

    def _wake(self) -> None:
        # The waiting task runs after the whole step has been delivered, and takes all of it.
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():  # done: cancelled, its client has left
            waiter.set_result(None)


@dataclass(slots=True)
class _Place:
    """A request that has not ended, in the eyes of the server."""

    inbox: Inbox
    num_prompt_tokens: int
    came_s: float
    latest_s: float | None = None  # its latest token


class EngineThread:
    """Loads at once; `attach`, then `submit`, `release`, `stop` are called on the event loop it serves."""

    def __init__(self, load: Callable[[], Engine]) -> None:
        self.stats = EngineStats()  # as of the latest step
        self.is_alive = True
        self.idle = asyncio.Event()  # set while no request is alive
        self.idle.set()
        self._loading: Future[Engine] = Future()
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()  # None: stop
        self._places: dict[str, _Place] = {}
        self._thread = threading.Thread(target=self._run, args=(load,), name="engine", daemon=True)
        self._thread.start()

    @property
    def engine(self) -> Engine:
        """Waits until it is loaded. Raises what loading raised."""
        return self._loading.result()

    def attach(self, loop: asyncio.AbstractEventLoop, metrics: Metrics) -> None:
        """Say who is served. Before the first request."""
        self._loop = loop
        self._metrics = metrics

    @property
    def num_requests(self) -> int:
        """Requests that are not finished, in the eyes of the server."""
        return len(self._places)

    def submit(self, requests: Sequence[GenerationRequest], *, is_streamed: bool) -> Inbox:
        """Start the choices of one HTTP request. Their events, or an error, arrive in the inbox."""
        inbox = Inbox([request.request_id for request in requests], is_streamed=is_streamed)
        now_s = time.perf_counter()
        for request in requests:
            self._places[request.request_id] = _Place(inbox, len(request.prompt_token_ids), now_s)
        self.idle.clear()
        self._orders.put(partial(self._add, requests))
        return inbox

    def release(self, inbox: Inbox) -> None:
        """The client is done, or gone. What has not ended is aborted."""
        alive = [request_id for request_id in inbox.request_ids if self._forget(request_id) is not None]
        if alive:
            self._metrics.on_abort(len(alive))
            self._orders.put(partial(self._abort, alive))

    async def stop(self) -> None:
        """End the thread after the step it is in; requests that are still alive end with an error."""
        self._orders.put(None)
        await asyncio.to_thread(self._thread.join)
        self._fail("the server was shut down before this request ended")

    # In the engine's thread.

    def _run(self, load: Callable[[], Engine]) -> None:
        try:
            engine = load()
        except BaseException as error:  # noqa: BLE001 - raised where `engine` is asked for
            self._loading.set_exception(error)
            return
        self._loading.set_result(engine)
        try:
            while self._obey():
                events = engine.step()
                self.stats = engine.stats
                if events:
                    self._call(self._deliver, events, self.stats, time.perf_counter())
        except Exception:
            logger.exception("the engine failed; no request can be served any more")
            self._call(self._fail, "the engine failed; see its log")

    def _obey(self) -> bool:
        """Carry out all orders; wait for one when there is nothing to compute. False: stop."""
        while True:
            try:
                order = self._orders.get(block=not self.engine.has_work)
            except queue.Empty:
                return True
            if order is None:
                return False
            order()
            self.stats = self.engine.stats

    def _add(self, requests: Sequence[GenerationRequest]) -> None:
        for at, request in enumerate(requests):
            try:
                self.engine.add(request)
            except EngineError as error:
                self._abort([earlier.request_id for earlier in requests[:at]])
                self._call(self._refuse, request.request_id, error)
                return

    def _abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self.engine.abort(request_id)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        """Have the event loop call it, unless the loop is gone."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    # On the event loop.

    def _deliver(self, events: list[TokenEvent], stats: EngineStats, now_s: float) -> None:
        metrics = self._metrics
        metrics.on_step(stats)
        for event in events:
            place = self._places.get(event.request_id)
            if place is None:  # released while the step was computed
                continue
            metrics.on_token(now_s - (place.came_s if place.latest_s is None else place.latest_s), event)
            place.latest_s = now_s
            place.inbox.put(event)
            if event.finish_reason is not None:
                metrics.on_end(now_s - place.came_s, place.num_prompt_tokens, event)
                self._forget(event.request_id)

    def _refuse(self, request_id: str, error: EngineError) -> None:
        """End a whole HTTP request with an error."""
        place = self._places.get(request_id)
        if place is not None:
            for sibling in place.inbox.request_ids:
                self._forget(sibling)
            place.inbox.fail(error)

    def _forget(self, request_id: str) -> _Place | None:
        place = self._places.pop(request_id, None)
        if not self._places:
            self.idle.set()
        return place

    def _fail(self, message: str) -> None:
        self.is_alive = False
        while self._places:
            self._refuse(next(iter(self._places)), EngineError(message))
