"""The same seam on httpx: for HTTP/2, and as a yardstick. Slow at high concurrency: its pool is scanned
for every request (httpx issue 3215), so the stamps say more about the client than about the server there.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable

import httpx

from llmbench.client.deadlines import Deadlines
from llmbench.client.exchange import Breakage, Done, Exchange, Outgoing, Timeouts
from llmbench.client.wire import Destination


class HttpxTransport:
    """One client for the run; a task for each request."""

    name = "httpx"

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
        self._client: httpx.AsyncClient | None = None

    async def open(self, connections: int) -> None:
        """Makes the client; `connections` has no effect."""
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                verify=self._tls if self._tls is not None else True,
                http2=self._tls is not None,
                uds=self._destination.address.unix_socket,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
                retries=0,
            ),
            timeout=httpx.Timeout(None, connect=self._timeouts.connect_s),
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
        """Cancels what is in flight and closes the client."""
        self.abort("the transport was closed")
        self._deadlines.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.aclose()

    async def _carry(self, exchange: Exchange, outgoing: Outgoing, done: Done) -> None:
        try:
            await self._request(exchange, outgoing)
            exchange.end_ns = self._clock()
        except asyncio.CancelledError:
            if exchange.breakage is None:
                exchange.break_off("cancelled", "the run was stopped", self._clock())
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            exchange.break_off("connect", str(error) or type(error).__name__, self._clock())
        except (httpx.ReadError, httpx.WriteError) as error:
            exchange.break_off("reset", str(error) or type(error).__name__, self._clock())
        except httpx.RemoteProtocolError as error:
            closed = "peer closed" in str(error) or "disconnected" in str(error)
            exchange.break_off("closed" if closed else "protocol", str(error), self._clock())
        except httpx.HTTPError as error:
            exchange.break_off("reset", str(error) or type(error).__name__, self._clock())
        finally:
            self._deadlines.remove(exchange)
        done(exchange)

    async def _request(self, exchange: Exchange, outgoing: Outgoing) -> None:
        assert self._client is not None
        headers = [*self._destination.headers, ("X-Request-Id", outgoing.request_id)]
        request = self._client.build_request(
            "POST",
            self._destination.address.url(self._destination.api),
            content=self._stamped(exchange, outgoing.payload),
            headers=[*headers, ("Content-Length", str(len(outgoing.payload)))],
        )
        response = await self._client.send(request, stream=True, follow_redirects=False)
        try:
            exchange.headers_ns = exchange.last_ns = self._clock()
            exchange.status = response.status_code
            exchange.raw_headers = dict(response.headers.raw)
            async for data in response.aiter_raw():
                now = self._clock()
                exchange.last_ns = now
                exchange.chunks.append(data)
                exchange.read_ns.append(now)
                exchange.read_chunks.append(len(exchange.chunks))
        finally:
            await response.aclose()

    async def _stamped(self, exchange: Exchange, payload: bytes) -> AsyncIterator[bytes]:
        """The body as a stream of one piece; the code after the yield runs once it has been written."""
        yield payload
        exchange.sent_ns = exchange.last_ns = self._clock()
