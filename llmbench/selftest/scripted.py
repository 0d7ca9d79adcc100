"""A server that says exactly the bytes of a stream, to the request whose number it is.

In a thread of its own: what it sends is judged byte by byte, not by the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from llmbench.selftest.corpus import CLOSE, HANG, RESET, Step, Stream

_MODELS: Final = b'{"object": "list", "data": [{"id": "mock", "object": "model"}]}'
_NUMBER: Final = re.compile(rb"x-request-id: \S*-(\d+)\r\n", re.IGNORECASE)
_LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_LIMIT: Final = 1 << 24


@contextmanager
def serving(streams: Sequence[Stream]) -> Iterator[str]:
    """Serves the n-th stream to the request n, until the block ends; its URL."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(
        asyncio.start_server(
            lambda reader, writer: _serve(streams, reader, writer), "127.0.0.1", 0, limit=_LIMIT
        )
    )
    thread = threading.Thread(target=loop.run_forever, name="scripted server", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def _serve(
    streams: Sequence[Stream], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length, number = _LENGTH.search(head), _NUMBER.search(head)
            if length is not None:
                await reader.readexactly(int(length[1]))
            if head.startswith(b"GET"):
                steps: Sequence[Step] = [_plain(b"200 OK", _MODELS)]
            elif number is None or int(number[1]) >= len(streams):
                steps = [_plain(b"404 Not Found", b"{}")]
            else:
                steps = streams[int(number[1])].steps
            if not await _play(writer, steps):
                break
    writer.close()


def _plain(status: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % (status, len(body)) + body


async def _play(writer: asyncio.StreamWriter, steps: Sequence[Step]) -> bool:
    """Whether the connection may be used again."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for step in steps:
        if isinstance(step, bytes):
            writer.write(step)
            await writer.drain()
        elif isinstance(step, float):
            await asyncio.sleep(step)
        elif step == HANG:
            await asyncio.sleep(3600)
        else:
            if step == RESET:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            return step not in (RESET, CLOSE)
    return True
