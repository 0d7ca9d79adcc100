"""Listening: the mock on a TCP port or a Unix socket, in the caller's event loop or in a thread of its
own.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ssl
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from llmbench.mock.clock import Clock
from llmbench.mock.connection import Connection
from llmbench.mock.options import MockOptions
from llmbench.mock.service import MockService
from llmbench.mock.stamped import StampedReads, can_stamp
from llmbench.mock.truth import TruthLog

_BACKLOG = 4096


class MockServer:
    """The mock in the running event loop: `async with MockServer(MockOptions(…)) as server: server.url`."""

    def __init__(self, options: MockOptions | None = None) -> None:
        self.options = options or MockOptions()
        self.url = ""
        self._listener: asyncio.Server | None = None
        self._clock: Clock | None = None
        self._service: MockService | None = None
        self._log: TruthLog | None = None
        self._stamped: StampedReads | None = None

    async def start(self) -> None:
        """Listen; afterwards `url` and `port` are known. Raises OSError where the address cannot be had."""
        loop = asyncio.get_running_loop()
        options = self.options
        tls = _tls_context(options)
        self._log = TruthLog(path=options.log, limit=options.log_limit)
        self._clock = Clock(loop)
        service = self._service = MockService(options, self._clock, self._log)
        if options.unix is not None:
            self._listener = await loop.create_unix_server(
                lambda: Connection(service), options.unix, ssl=tls, backlog=_BACKLOG
            )
            self.url = "https://localhost" if tls else "http://localhost"
            return
        if options.arrivals == "kernel" and tls is None and can_stamp():
            self._stamped = StampedReads()
        stamped = self._stamped
        self._listener = await loop.create_server(
            lambda: Connection(service, stamped), options.host, options.port, ssl=tls, backlog=_BACKLOG
        )
        if stamped is not None:
            for one in self._listener.sockets:
                stamped.ask(one.fileno())
        host = f"[{options.host}]" if ":" in options.host else options.host
        self.url = f"{'https' if tls else 'http'}://{host}:{self.port}"

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._listener is not None
        return int(self._listener.sockets[0].getsockname()[1])

    def log(self) -> list[dict[str, Any]]:
        """The newest requests that have ended, as GET /log shows them."""
        assert self._log is not None
        return [served.to_dict() for served in list(self._log.requests)]

    def summary(self) -> dict[str, Any]:
        """Totals and the server's own lateness so far."""
        assert self._log is not None
        return self._log.summary()

    def reset(self) -> None:
        """As POST /reset: the next request is the first again."""
        assert self._service is not None
        self._service.reset()

    async def stop(self) -> None:
        """Close all connections, whatever they are doing, and write the log's summary."""
        if self._listener is not None:
            self._listener.close()
        if self._service is not None:
            for connection in list(self._service.connections):
                connection.abort()
            # Let the connections hear of it: they log what they could not finish.
            for _ in range(100):
                if not self._service.connections:
                    break
                await asyncio.sleep(0)
        if self._stamped is not None:
            self._stamped.close()
        if self._clock is not None:
            self._clock.close()
        if self._log is not None:
            self._log.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def _tls_context(options: MockOptions) -> ssl.SSLContext | None:
    if options.tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*options.tls)
    return context


def new_loop(kind: str) -> asyncio.AbstractEventLoop:
    """An event loop: uvloop (`uvloop`, or `auto` where it is installed) or asyncio's own."""
    if kind != "asyncio":
        try:
            import uvloop
        except ImportError:
            if kind == "uvloop":
                raise
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()


class ThreadedMock:
    """A mock in a thread of its own, for tests that are not async: see `serve_in_thread`."""

    def __init__(self, options: MockOptions | None = None) -> None:
        self._server = MockServer(options)
        self._loop = new_loop(self._server.options.loop)
        self._stop: asyncio.Event | None = None
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="llmbench-mock", daemon=True)
        self._thread.start()
        self._ready.result()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        try:
            await self._server.start()
        except Exception as error:  # noqa: BLE001 -- raised in the caller's thread
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        await self._stop.wait()
        await self._server.stop()

    def _call(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._server.url

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._server.port

    def log(self) -> list[dict[str, Any]]:
        """The newest requests that have ended, as GET /log shows them."""
        entries: list[dict[str, Any]] = self._call(self._server.log)
        return entries

    def summary(self) -> dict[str, Any]:
        """Totals and the server's own lateness so far."""
        totals: dict[str, Any] = self._call(self._server.summary)
        return totals

    def reset(self) -> None:
        """As POST /reset: the next request is the first again."""
        self._call(self._server.reset)

    def stop(self) -> None:
        """Stop serving and wait for the thread."""
        if self._thread.is_alive() and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def serve_in_thread(options: MockOptions | None = None) -> ThreadedMock:
    """A mock in a thread of its own, already listening; a context that stops it.

    The thread shares the interpreter with its caller; where microseconds count, run the mock as a process.
    """
    return ThreadedMock(options)
