"""Bare streams that load the mock and keep nothing of what they read."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit


class Counter(asyncio.Protocol):
    """A bare client: sends a request, waits for the end of its stream, sends the next."""

    def __init__(self, request, turns):
        self.request, self.turns, self.tail, self.num_bytes = request, turns, b"", 0
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data):
        self.num_bytes += len(data)
        self.tail = (self.tail + data)[-5:]
        if self.tail == b"0\r\n\r\n":
            self.turns -= 1
            if self.turns:
                self.transport.write(self.request)
            else:
                self.over.set_result(None)
                self.transport.close()


def load(url, *, streams, turns, tokens):
    """Closed loop of bare streams against `url`."""
    import uvloop

    where = urlsplit(url)
    body = json.dumps(
        {"messages": [{"role": "user", "content": "hi there"}], "stream": True, "max_tokens": tokens}
    ).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    async def run():
        loop = asyncio.get_running_loop()
        made = [
            await loop.create_connection(lambda: Counter(request, turns), where.hostname, where.port)
            for _ in range(streams)
        ]
        await asyncio.gather(*(client.over for _, client in made))

    uvloop.run(run())
