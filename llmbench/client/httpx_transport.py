"""The same seam on httpx: for HTTP/2, and as a yardstick. Slow at high concurrency: its pool is scanned
for every request (httpx issue 3215), so the stamps say more about the client than about the server there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from llmbench.client.choose import NO_TLS
from llmbench.client.exchange import Breakage, Exchange, Outgoing
from llmbench.client.lean_httpx import httpx
from llmbench.client.task_transport import TaskTransport


class HttpxTransport(TaskTransport):
    """One client for the run; a task for each request."""

    name = "httpx"
    _errors = (httpx.HTTPError,)
    _client: httpx.AsyncClient | None = None

    def _open_client(self) -> None:
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                verify=self._tls or NO_TLS,
                http2=self._tls is not None,
                uds=self._destination.address.unix_socket,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
                proxy=self._proxy,
                retries=0,
            ),
            timeout=httpx.Timeout(None, connect=self._timeouts.connect_s),
        )

    async def _close_client(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _request(self, exchange: Exchange, outgoing: Outgoing) -> None:
        assert self._client is not None
        request = self._client.build_request(
            "POST",
            self._destination.address.url(self._destination.api),
            content=self._stamped(exchange, outgoing.payload),
            headers=[
                *self._destination.headers_of(outgoing.request_id),
                ("Content-Length", str(len(outgoing.payload))),
            ],
        )
        response = await self._client.send(request, stream=True, follow_redirects=False)
        try:
            exchange.headers_ns = self._clock()
            exchange.status = response.status_code
            exchange.raw_headers = dict(response.headers.raw)
            async for data in response.aiter_raw():
                self._book(exchange, data)
        finally:
            await response.aclose()

    async def _stamped(self, exchange: Exchange, payload: bytes) -> AsyncIterator[bytes]:
        """The body as a stream of one piece; the code after the yield runs once it has been written."""
        yield payload
        exchange.sent_ns = self._clock()

    def _breakage_of(self, error: Exception) -> tuple[Breakage, str]:
        said = str(error) or type(error).__name__
        match error:
            case httpx.ConnectError():
                return "connect", said
            case httpx.ConnectTimeout():
                return (
                    "connect",
                    f"no connection within {self._timeouts.connect_s:g} s (target.connect_timeout)",
                )
            case httpx.RemoteProtocolError():
                closed = "peer closed" in said or "disconnected" in said
                return ("closed" if closed else "protocol"), said
        return "reset", said
