"""The same seam on aiohttp: for HTTP proxies, and as the oracle that the fast transport must agree with.

A stamp is taken when the reading task wakes, not at the socket read, so it is later under load; nothing
else differs. aiohttp decodes the transfer coding; the content coding is left to `decode`.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from types import SimpleNamespace

import aiohttp

from llmbench.client.deadlines import Deadlines
from llmbench.client.exchange import Breakage, Done, Exchange, Outgoing, Timeouts
from llmbench.client.wire import Destination


class AiohttpTransport:
    """One session for the run; a task for each request."""

    name = "aiohttp"

    def __init__(
        self,
        destination: Destination,
        timeouts: Timeouts,
        *,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._destination = destination
        self._timeouts = timeouts
        self._tls = tls
        self._clock = clock
        self._deadlines = Deadlines(timeouts, clock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None

    async def open(self, connections: int) -> None:
        """Makes the session; aiohttp connects when a request needs it, so `connections` has no effect."""
        socket_path = self._destination.address.unix_socket
        connector: aiohttp.BaseConnector
        if socket_path is not None:
            connector = aiohttp.UnixConnector(path=socket_path, limit=0)
        else:
            connector = aiohttp.TCPConnector(limit=0, ssl=self._tls or True)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeouts.connect_s),
            auto_decompress=False,
            trust_env=True,
            read_bufsize=2**20,
            trace_configs=[self._trace()],
        )
        self._deadlines.start()

    def send(self, outgoing: Outgoing, done: Done) -> None:
        """Starts a task for the request."""
        exchange = Exchange(outgoing.index, outgoing.request_id, self._clock())
        task = asyncio.get_running_loop().create_task(self._carry(exchange, outgoing, done))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def expire(breakage: Breakage, detail: str) -> None:
            self._deadlines.remove(exchange)
            exchange.break_off(breakage, detail, self._clock())
            task.cancel()

        self._deadlines.add(exchange, expire)

    def abort(self, detail: str) -> None:
        """Ends every exchange in flight as cancelled."""
        self._deadlines.expire_all("cancelled", detail)

    async def close(self) -> None:
        """Cancels what is in flight and closes the session."""
        self.abort("the transport was closed")
        self._deadlines.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _carry(self, exchange: Exchange, outgoing: Outgoing, done: Done) -> None:
        try:
            await self._request(exchange, outgoing)
            exchange.end_ns = self._clock()
        except asyncio.CancelledError:
            if exchange.breakage is None:
                exchange.break_off("cancelled", "the run was stopped", self._clock())
        except aiohttp.ClientConnectorError as error:
            exchange.break_off("connect", str(error), self._clock())
        except aiohttp.ServerTimeoutError:
            detail = f"no connection within {self._timeouts.connect_s:g} s (target.connect_timeout)"
            exchange.break_off("connect", detail, self._clock())
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError) as error:
            exchange.break_off(_breakage_of(error), str(error), self._clock())
        except aiohttp.ClientResponseError as error:
            exchange.break_off("protocol", f"not HTTP: {error.message}", self._clock())
        except (aiohttp.ClientError, OSError) as error:
            exchange.break_off("reset", str(error) or type(error).__name__, self._clock())
        finally:
            self._deadlines.remove(exchange)
        done(exchange)

    async def _request(self, exchange: Exchange, outgoing: Outgoing) -> None:
        assert self._session is not None
        headers = [*self._destination.headers, ("X-Request-Id", outgoing.request_id)]
        address = self._destination.address
        async with self._session.post(
            address.url(self._destination.api),
            data=outgoing.payload,
            headers=headers,
            allow_redirects=False,
            trace_request_ctx=exchange,
        ) as response:
            exchange.headers_ns = exchange.last_ns = self._clock()
            exchange.status = response.status
            exchange.raw_headers = dict(response.raw_headers)
            async for data in response.content.iter_any():
                now = self._clock()
                exchange.last_ns = now
                exchange.chunks.append(data)
                exchange.read_ns.append(now)
                exchange.read_chunks.append(len(exchange.chunks))

    def _trace(self) -> aiohttp.TraceConfig:
        """Stamps the end of sending: aiohttp tells when it has handed a body chunk to the transport."""

        async def sent(
            session: aiohttp.ClientSession,
            context: SimpleNamespace,
            params: aiohttp.TraceRequestChunkSentParams,
        ) -> None:
            exchange: Exchange = context.trace_request_ctx
            exchange.sent_ns = exchange.last_ns = self._clock()

        trace = aiohttp.TraceConfig()
        trace.on_request_chunk_sent.append(sent)
        return trace


def _breakage_of(error: Exception) -> Breakage:
    """Reset or clean close: aiohttp tells the two apart only in the text of its message."""
    return (
        "reset"
        if any(name in str(error) for name in ("ConnectionResetError", "Errno", "BrokenPipe"))
        else "closed"
    )
