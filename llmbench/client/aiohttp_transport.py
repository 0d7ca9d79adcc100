"""The same seam on aiohttp: for HTTP proxies, and as the oracle that the fast transport must agree with.

aiohttp decodes the transfer coding; the content coding is left to `decode`.
"""

from __future__ import annotations

import io
from types import SimpleNamespace

import aiohttp

from llmbench.client.exchange import Breakage, Exchange, Outgoing
from llmbench.client.task_transport import TaskTransport

_DIRECT = 1 << 20
"""Bytes of a body up to which aiohttp takes it in one piece; it warns of larger ones."""


class AiohttpTransport(TaskTransport):
    """One session for the run; a task for each request."""

    name = "aiohttp"
    _errors = (aiohttp.ClientError, OSError)
    _session: aiohttp.ClientSession | None = None

    def _open_client(self) -> None:
        socket_path = self._destination.address.unix_socket
        connector: aiohttp.BaseConnector
        if socket_path is not None:
            connector = aiohttp.UnixConnector(path=socket_path, limit=0)
        else:
            connector = aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeouts.connect_s),
            auto_decompress=False,
            read_bufsize=2**20,
            max_line_size=2**16,
            max_field_size=2**16,
            trace_configs=[self._trace()],
        )

    async def _close_client(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _request(self, exchange: Exchange, outgoing: Outgoing) -> None:
        assert self._session is not None
        payload = outgoing.payload
        async with self._session.post(
            self._destination.address.url(self._destination.api),
            data=payload if len(payload) <= _DIRECT else io.BytesIO(payload),
            headers=self._destination.headers_of(outgoing.request_id),
            allow_redirects=False,
            proxy=self._proxy,
            ssl=self._tls or True,
            trace_request_ctx=exchange,
        ) as response:
            exchange.headers_ns = self._clock()
            exchange.status = response.status
            exchange.raw_headers = dict(response.raw_headers)
            async for data in response.content.iter_any():
                self._book(exchange, data)

    def _breakage_of(self, error: Exception) -> tuple[Breakage, str]:
        match error:
            case aiohttp.ClientConnectorError():
                return "connect", str(error)
            case aiohttp.ServerTimeoutError():
                return (
                    "connect",
                    f"no connection within {self._timeouts.connect_s:g} s (target.connect_timeout)",
                )
            case aiohttp.ClientPayloadError() if "TransferEncoding" in str(error) and "Not enough" not in str(
                error
            ):
                return "protocol", f"not HTTP: {error}"
            case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError():
                # a reset and a clean close differ only in the text of the message
                is_reset = any(name in str(error) for name in ("ConnectionResetError", "Errno", "BrokenPipe"))
                return ("reset" if is_reset else "closed"), str(error)
            case aiohttp.ClientResponseError():
                return "protocol", f"not HTTP: {error.message}"
        return "reset", str(error) or type(error).__name__

    def _trace(self) -> aiohttp.TraceConfig:
        """Stamps the end of sending: aiohttp tells when it has handed a body chunk to the transport."""

        async def sent(
            session: aiohttp.ClientSession,
            context: SimpleNamespace,
            params: aiohttp.TraceRequestChunkSentParams,
        ) -> None:
            exchange: Exchange = context.trace_request_ctx
            exchange.sent_ns = self._clock()

        trace = aiohttp.TraceConfig()
        trace.on_request_chunk_sent.append(sent)
        return trace
