"""A server that says exactly the bytes a test gives it, and the client side of one exchange."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct

import uvloop

from llmbench.client.choose import make_transport, tls_context
from llmbench.client.exchange import Timeouts
from llmbench.client.kernel_stamps import WallClock, why_not
from llmbench.client.wire import BodyStyle, Destination, render_body, request_headers
from llmbench.scenario.address import parse_address
from tests.llmbench.exchanges import DONE, delta, event, usage

CHAT = "/v1/chat/completions"
WORDS = ["Hello", ",", " world", "!"]
STREAM = (
    b"".join(event(delta(content=word)) for word in WORDS)
    + event(delta(finish="stop"))
    + event(usage(4))
    + DONE
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
RST, FIN, HOLD = "rst", "fin", "hold"

CARRIERS = [
    ("fast", "uvloop"),
    ("fast", "asyncio"),
    ("kernel", "uvloop"),  # the fast transport, reading with the kernel's stamps where there are any
    ("kernel", "asyncio"),
    ("aiohttp", "uvloop"),
    ("httpx", "uvloop"),
]
CARRIER_IDS = [f"{name}-{loop}" for name, loop in CARRIERS]


def chunked(*pieces, end=b"0\r\n\r\n", extension=b""):
    """The pieces in the chunked transfer coding."""
    return b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces) + end


def events_of(body):
    return [piece + b"\n\n" for piece in body.split(b"\n\n") if piece]


WHOLE = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*events_of(STREAM))


class Scripted:
    """`script(index)` gives the steps for the request whose X-Request-Id ends in -index: bytes to send,
    seconds to wait, RST, FIN (close), HOLD (say nothing more).
    `requests` are (connection, index) in order of arrival.
    """

    def __init__(self, script, **listen):
        self._script = script
        self._listen = {"host": "127.0.0.1", "port": 0, **listen}
        self.requests = []
        self.bodies = []
        self.connections = 0
        self._writers = set()
        self._tasks = set()

    async def __aenter__(self):
        if "path" in self._listen:
            options = {key: value for key, value in self._listen.items() if key not in ("host", "port")}
            self._server = await asyncio.start_unix_server(self._serve, limit=2**24, **options)
            self.url = "http://localhost"
        else:
            self._server = await asyncio.start_server(self._serve, limit=2**24, backlog=4096, **self._listen)
            port = self._server.sockets[0].getsockname()[1]
            host = self._listen["host"]
            scheme = "https" if "ssl" in self._listen else "http"
            self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        return self

    async def __aexit__(self, *error):
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        self.connections += 1
        self._writers.add(writer)
        self._tasks.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            connection = self.connections
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = re.search(rb"x-request-id: \S*?-(\d+)\r\n", head, re.IGNORECASE)
                index = int(found[1])
                length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])
                self.requests.append((connection, index))
                steps = list(self._script(index))
                if steps and steps[0] == "unread":
                    steps.pop(0)
                else:
                    self.bodies.append(await reader.readexactly(length))
                if not await self._play(writer, steps):
                    return

    async def _play(self, writer, steps):
        for step in steps:
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            elif isinstance(step, int | float):
                await asyncio.sleep(step)
            elif step == HOLD:
                await asyncio.sleep(3600)
            elif step == RST:
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                return False
            else:
                writer.close()
                return False
        return True


class Caller:
    """One transport, opened; `exchange(index)` sends a request and waits for its end."""

    def __init__(self, name, url, *, timeouts=None, verify=True, unix_socket=None, api="chat", api_key=None):
        address = parse_address(url, unix_socket)
        headers = request_headers(api_key=api_key, extra={}, stream=True, agent="test")
        self.destination = Destination(address=address, api=api, headers=headers)
        self.timeouts = timeouts or Timeouts(connect_s=5, total_s=10, no_progress_s=5)
        is_stamped = name == "kernel" and why_not("fast", address) is None
        self.transport = make_transport(
            "fast" if name == "kernel" else name,
            self.destination,
            self.timeouts,
            tls_context(address, verify),
            WallClock() if is_stamped else None,
        )
        self.api = api

    async def __aenter__(self):
        await self.transport.open(1)
        return self

    async def __aexit__(self, *error):
        await self.transport.close()

    def outgoing(self, index=0, prompt="Hi", max_tokens=4):
        style = BodyStyle(api=self.api, model="mock", extra={})
        return self.destination.frame(
            index, f"t-{index}", render_body(style, prompt=prompt, max_tokens=max_tokens)
        )

    def start(self, index=0, **request):
        ended = asyncio.get_running_loop().create_future()
        # a second call of `done` would raise InvalidStateError here
        self.transport.send(self.outgoing(index, **request), ended.set_result)
        return ended

    async def exchange(self, index=0, **request):
        return await asyncio.wait_for(self.start(index, **request), 15)


def run_on(loop, main):
    """Runs a coroutine function on that kind of loop; a callback that raised fails the test."""
    problems = []

    async def watched():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        return await main()

    result = uvloop.run(watched()) if loop == "uvloop" else asyncio.run(watched())
    assert problems == []
    return result
