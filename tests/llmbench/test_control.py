"""What is asked of a server beside the load: is it there, which model, what it takes, how it counts."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from contextlib import asynccontextmanager, suppress

import pytest

from llmbench.client.control import Control
from llmbench.client.wire import BodyStyle, Destination, request_headers
from llmbench.errors import CannotMeasure, TargetRefused, TargetUnreachable
from llmbench.mock import MockOptions, MockServer
from llmbench.scenario.address import parse_address

KEY = "sk-control-0123456789"


@asynccontextmanager
async def serving(answer):
    """A server whose connections `answer(reader, writer)` serves, all closed afterwards; yields its URL."""
    tasks = []

    async def serve(reader, writer):
        tasks.append(asyncio.current_task())
        with suppress(ConnectionError, asyncio.CancelledError):
            await answer(reader, writer)
        writer.transport.abort()
        with suppress(ConnectionError, asyncio.CancelledError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


class Says:
    """A server that answers each path with (status, JSON or bytes) and keeps what it was asked."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []

    async def __aenter__(self):
        self.context = serving(self.serve)
        self.url = await self.context.__aenter__()
        return self

    async def __aexit__(self, *error):
        await self.context.__aexit__(*error)

    async def serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"content-length: (\d+)", head, re.IGNORECASE)
        body = await reader.readexactly(int(length[1])) if length else b""
        path = head.split()[1]
        self.asked.append((path, json.loads(body) if body else None))
        status, said = self.answers.get(path.strip("/").replace("/", "_"), (404, {}))
        data = said if isinstance(said, bytes) else json.dumps(said).encode()
        fields = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(data)
        writer.write(b"HTTP/1.1 %d X\r\n%b%b" % (status, fields, data))
        await writer.drain()
        await reader.read()


def control(url, api="chat"):
    headers = request_headers(api_key=KEY, extra={}, stream=True, agent="t")
    return Control(Destination(address=parse_address(url), api=api, headers=headers), timeout_s=5)


async def described(server, model="auto"):
    async with control(server.url) as one:
        return await one.describe(await one.wait_ready(1.0), model)


def style(api="chat", **extra):
    return BodyStyle(api=api, model="m", extra=extra)


async def test_the_first_model_that_is_listed_is_taken():
    async with MockServer(MockOptions(models=("first", "second"), max_model_len=4096)) as server:
        info = await described(server)
    assert (info.model, info.models, info.max_model_len) == ("first", ("first", "second"), 4096)


async def test_a_named_model_needs_no_list():
    async with Says(v1_models=(404, {})) as server:
        assert (await described(server, "mine")).model == "mine"
        with pytest.raises(TargetRefused, match=r"target\.model"):
            await described(server)


@pytest.mark.parametrize(
    "listed",
    [b"no JSON", b"", [], {}, {"data": None}, {"data": "x"}, {"data": [1, {"id": None}, {"name": "a"}]}],
)
async def test_a_list_that_names_nothing_is_said_so(listed):
    async with Says(v1_models=(200, listed)) as server:
        with pytest.raises(TargetRefused, match="names no model"):
            await described(server)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_told_but_never_shown(status):
    """Some gateways repeat the key in their refusal; the message goes to terminals and logs."""
    async with Says(v1_models=(status, {"error": f"no such key: {KEY} (Bearer {KEY})"})) as server:
        with pytest.raises(TargetRefused, match=r"target\.api_key") as refused:
            await described(server, "mine")
    assert KEY not in str(refused.value)
    assert "no such key: ***" in str(refused.value)


async def test_a_server_that_is_still_loading_is_waited_for():
    async with Says(v1_models=(503, {})) as server:

        async def load():
            await asyncio.sleep(0.4)
            server.answers["v1_models"] = (200, {"data": [{"id": "late"}]})

        loading = asyncio.ensure_future(load())
        async with control(server.url) as one:
            answer = await one.wait_ready(5.0)
        await loading
    assert answer.status_code == 200
    assert len(server.asked) >= 2


async def nothing_there():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return f"http://127.0.0.1:{sock.getsockname()[1]}"


async def test_nobody_there_is_known_within_the_time_given():
    waited = []
    async with control(await nothing_there()) as one:
        started = time.monotonic()
        with pytest.raises(TargetUnreachable, match=r"(?s)refused the connection.*ready_timeout") as error:
            await one.wait_ready(0.6, waiting=waited.append)
    assert 0.55 < time.monotonic() - started < 4
    assert waited
    assert "0.6 s" in str(error.value)


async def test_a_server_that_takes_the_connection_and_says_nothing_does_not_stretch_the_time():
    """A probe once had five seconds for its answer, whatever was left of the time to get ready."""

    async def mute(reader, writer):
        await asyncio.sleep(60)

    async with serving(mute) as url, control(url) as one:
        started = time.monotonic()
        with pytest.raises(TargetUnreachable, match="does not answer"):
            await one.wait_ready(0.5)
    assert time.monotonic() - started < 4


async def test_what_is_no_http_is_said_so():
    async def other(reader, writer):
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        writer.write_eof()
        await reader.read()

    async with serving(other) as url, control(url) as one:
        with pytest.raises(TargetUnreachable, match="does not speak HTTP"):
            await one.wait_ready(0.2)


async def test_a_host_that_does_not_exist_is_said_so():
    async with control("http://nobody.invalid") as one:
        with pytest.raises(TargetUnreachable, match="cannot be resolved"):
            await one.wait_ready(0.1)


async def test_waiting_ends_when_the_process_has_died():
    def alive():
        raise CannotMeasure("it died")

    async with control(await nothing_there()) as one:
        with pytest.raises(CannotMeasure, match="it died"):
            await one.wait_ready(5.0, alive=alive)


@pytest.mark.parametrize("api", ["chat", "completions", "responses"])
async def test_ignore_eos_is_sent_where_it_is_taken(api):
    async with MockServer(MockOptions(tokens=1)) as server, control(server.url, api) as one:
        assert await one.accepts_ignore_eos(style(api)) is True
    async with MockServer(MockOptions(reject=("ignore_eos",))) as server, control(server.url, api) as one:
        assert await one.accepts_ignore_eos(style(api)) is False


@pytest.mark.parametrize("api", ["chat", "completions", "responses"])
async def test_both_ways_of_counting_agree_with_the_server(api):
    text = "one two three four five"
    async with MockServer(MockOptions(log_bodies=True)) as server, control(server.url, api) as one:
        _, count = await one.counts(style(api))
        by_first = await count(text)
        by_usage = await one._count_by_usage(style(api), text)
        (entry,) = [entry for entry in server.log() if entry["status"] == 200][-1:]
        assert by_first == by_usage == entry["input_tokens"]
        assert json.loads(entry["body"])["stream"] is False


async def test_a_server_that_cannot_count_gives_none():
    async with Says(v1_chat_completions=(200, {"usage": "none"})) as server, control(server.url) as one:
        source, count = await one.counts(style())
        assert source == "usage"
        assert await count("text") is None
        server.answers["v1_chat_completions"] = (500, {})
        assert await count("text") is None


async def test_probes_are_small_whatever_the_users_body_asks_for():
    """`body: {max_tokens: 4096, stream: true, n: 4}` once went into every probe as well."""
    extra = {"max_tokens": 4096, "stream": True, "n": 4, "stream_options": {}, "temperature": 0}
    counted = (200, {"usage": {"prompt_tokens": 3}})
    async with Says(v1_chat_completions=counted) as server, control(server.url) as one:
        assert await one._count_by_usage(style(**extra), "Hi") == 3
    (_, body), *_ = server.asked
    assert (body["max_tokens"], body["stream"], body["temperature"]) == (1, False, 0)
    assert "n" not in body
    assert "stream_options" not in body
