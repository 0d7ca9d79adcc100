"""The engine in a thread of its own, so that a long step never stalls a stream or a health check.

The event loop puts orders into a queue; the thread carries them out between two steps, steps, and hands
all tokens of a step back to the loop in one call. Nothing else is shared.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from dataclasses import dataclass
from typing import Literal

from reference_engine.engine import Engine
from reference_engine.errors import EngineError
from reference_engine.types import GenerationRequest, TokenEvent

logger = logging.getLogger(__name__)
Inbox = asyncio.Queue[TokenEvent | EngineError]
Order = GenerationRequest | str | Literal[False]  # add | abort that id | False: stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy the engine was after its latest step."""

    num_running: int = 0
    num_waiting: int = 0


class EngineThread:
    """Owned by the event loop: `submit`, `abort`, `stop` are called there."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self.load = Load()
        self.is_alive = True
        self.idle = asyncio.Event()  # set while no request is alive
        self.idle.set()
        self._engine = engine
        self._loop = loop
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._inboxes: dict[str, Inbox] = {}
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def num_requests(self) -> int:
        """Requests that are not finished, in the eyes of the server."""
        return len(self._inboxes)

    def submit(self, request: GenerationRequest) -> Inbox:
        """Start a request. Its events, or the error that ended it, arrive in the inbox."""
        inbox: Inbox = asyncio.Queue()
        self._inboxes[request.request_id] = inbox
        self.idle.clear()
        self._orders.put(request)
        return inbox

    def release(self, request_id: str) -> None:
        """The client is done with a request: finished or gone. An unfinished one is aborted."""
        if self._forget(request_id) is not None:
            self._orders.put(request_id)

    async def stop(self) -> None:
        """End the thread after the step it is in; requests that are still alive end with an error."""
        self._orders.put(False)
        await asyncio.to_thread(self._thread.join)
        self._fail("the server was shut down before this request ended")

    def _run(self) -> None:
        try:
            while self._obey():
                events = self._engine.step()
                self._hand_over(events)
        except Exception:
            logger.exception("the engine failed; no request can be served any more")
            self._loop.call_soon_threadsafe(self._fail, "the engine failed; see its log")

    def _obey(self) -> bool:
        """Carry out all orders; wait for one when there is nothing to compute. False: stop."""
        while True:
            try:
                order = self._orders.get(block=not self._engine.has_work)
            except queue.Empty:
                return True
            if order is False:
                return False
            if isinstance(order, str):
                self._engine.abort(order)
                self._hand_over([])
            else:
                self._add(order)

    def _add(self, request: GenerationRequest) -> None:
        try:
            self._engine.add(request)
        except EngineError as error:
            self._loop.call_soon_threadsafe(self._deliver_error, request.request_id, error)

    def _hand_over(self, events: list[TokenEvent]) -> None:
        stats = self._engine.stats
        load = Load(num_running=stats.num_running, num_waiting=stats.num_waiting)
        self._loop.call_soon_threadsafe(self._deliver, events, load)

    # Below: on the event loop.

    def _deliver(self, events: list[TokenEvent], load: Load) -> None:
        self.load = load
        for event in events:
            inbox = self._inboxes.get(event.request_id)
            if inbox is None:  # released while the step was computed
                continue
            inbox.put_nowait(event)
            if event.finish_reason is not None:
                self._forget(event.request_id)

    def _deliver_error(self, request_id: str, error: EngineError) -> None:
        inbox = self._forget(request_id)
        if inbox is not None:
            inbox.put_nowait(error)

    def _forget(self, request_id: str) -> Inbox | None:
        inbox = self._inboxes.pop(request_id, None)
        if not self._inboxes:
            self.idle.set()
        return inbox

    def _fail(self, message: str) -> None:
        self.is_alive = False
        for request_id in list(self._inboxes):
            self._deliver_error(request_id, EngineError(message))
