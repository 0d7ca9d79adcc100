"""Over real HTTP, with the bundled model: what clients see."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from reference_engine.server import Server

CHAT = {"messages": [{"role": "user", "content": "Who's there?"}], "temperature": 0, "max_tokens": 12}
TEXT = {"prompt": "In the beginning", "temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture
def serve(make_tiny_engine):
    @asynccontextmanager
    async def run(api_key=None, rate_limit=None, **switches):
        engine = make_tiny_engine(**switches)
        server = Server(engine, model_name="tiny", api_key=api_key, rate_limit=rate_limit)
        runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession(f"http://{host}:{port}") as client:
            yield client, server
        await server.drain(5)
        await runner.cleanup()

    return run


async def post(client, path, body, **options):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with client.post(path, data=io.BytesIO(raw), **options) as response:
        return response.status, await response.json()


async def events(client, path, body):
    """The events of a stream, `[DONE]` as a string."""
    async with client.post(path, json={**body, "stream": True}) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream"
        raw = (await response.read()).decode()
    assert raw.endswith("\n\n")
    datas = [event.removeprefix("data: ") for event in raw.split("\n\n")[:-1]]
    return [data if data == "[DONE]" else json.loads(data) for data in datas]


async def load(client):
    async with client.get("/health") as response:
        return await response.json()


async def test_a_chat_streams_role_tokens_reason_usage_done(serve):
    async with serve() as (client, _):
        asked = {**CHAT, "ignore_eos": True, "stream_options": {"include_usage": True}}
        *chunks, usage, done = await events(client, "/v1/chat/completions", asked)
        _, whole = await post(client, "/v1/chat/completions", {**CHAT, "ignore_eos": True})
        num_prompt = (await post(client, "/tokenize", {"messages": CHAT["messages"]}))[1]["count"]
    assert done == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert all(delta["content"] for delta in deltas[1:-1])
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + [
        "length"
    ]
    assert "".join(delta["content"] for delta in deltas[1:-1]) == whole["choices"][0]["message"]["content"]
    assert len(deltas) - 2 == 12, "plain English: every token is an event of its own"
    assert usage["choices"] == []
    counts = {"prompt_tokens": num_prompt, "completion_tokens": 12, "total_tokens": num_prompt + 12}
    assert usage["usage"] == {**counts, "prompt_tokens_details": {"cached_tokens": 0}}
    cached = whole["usage"].pop("prompt_tokens_details")["cached_tokens"]
    assert whole["usage"] == counts
    assert 0 <= cached < num_prompt
    assert {chunk["usage"] for chunk in chunks} == {None}
    for timings in (usage["timings"], whole["timings"]):
        assert set(timings) == {"queue_s", "prefill_s", "decode_s"}
        assert all(0 <= seconds < 10 for seconds in timings.values())
        assert timings["decode_s"] > 0
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in [*chunks, usage]}) == 1


async def test_a_completion_streams_text_and_no_usage_unless_asked(serve):
    async with serve() as (client, _):
        *chunks, done = await events(client, "/v1/completions", TEXT)
        _, whole = await post(client, "/v1/completions", TEXT)
        ids = (await post(client, "/tokenize", {"prompt": TEXT["prompt"]}))[1]["tokens"]
        _, from_ids = await post(client, "/v1/completions", {**TEXT, "prompt": ids})
    assert done == "[DONE]"
    assert not [chunk for chunk in chunks if "usage" in chunk]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert chunks[-1]["choices"][0] == {"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}
    assert from_ids["choices"] == whole["choices"]


async def test_tokens_are_on_the_wire_before_the_next_is_computed(serve):
    async with (
        serve() as (client, server),
        client.post("/v1/completions", json={**TEXT, "max_tokens": 2000, "stream": True}) as response,
    ):
        first = await response.content.readany()
        assert first.startswith(b"data: {")
        assert (await load(client))["running"] == 1
        assert server.thread.num_requests == 1


async def test_a_stop_string_is_never_shown(serve):
    async with serve() as (client, _):
        _, whole = await post(client, "/v1/completions", {**TEXT, "max_tokens": 40})
        text = whole["choices"][0]["text"]
        stop = text[30:34]
        _, cut = await post(client, "/v1/completions", {**TEXT, "max_tokens": 40, "stop": stop})
    assert cut["choices"][0]["text"] == text[: text.index(stop)]
    assert cut["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "message"),
    [
        ("/v1/chat/completions", b"{nonsense", 400, None, "Invalid JSON"),
        ("/v1/chat/completions", {}, 400, "messages", "Field required"),
        ("/v1/chat/completions", {**CHAT, "max_tokens": "x"}, 400, "max_tokens", "valid integer"),
        ("/v1/chat/completions", {**CHAT, "n": 0}, 400, "n", "greater than or equal to 1"),
        ("/v1/chat/completions", {**CHAT, "tools": [{}]}, 400, "tools", "not supported"),
        ("/v1/chat/completions", {**CHAT, "model": "gpt"}, 404, "model", "'gpt' does not exist"),
        ("/v1/completions", {**TEXT, "max_tokens": 5000}, 400, "max_tokens", "is 2048 tokens, but 4 prompt"),
        (
            "/v1/completions",
            {**TEXT, "prompt": "word " * 9000},
            400,
            "prompt",
            "maximum context length is 2048",
        ),
        ("/v1/completions", {**TEXT, "prompt": ""}, 400, "prompt", "no tokens"),
        ("/v1/completions", {**TEXT, "prompt": [99999]}, 400, "prompt", "outside the vocabulary"),
        ("/v1/completions", b" " * (5 << 20), 413, None, "larger than the 4194304 bytes"),
        ("/detokenize", {"tokens": [99999]}, 400, "tokens", "outside the vocabulary"),
        ("/detokenize", {"tokens": [-4]}, 400, "tokens", "greater than or equal to 0"),
        ("/tokenize", {"prompt": "a", "model": "gpt"}, 404, "model", "'gpt' does not exist"),
        ("/health", {}, 405, None, "only GET"),
        ("/v2/completions", TEXT, 404, None, "no such endpoint"),
    ],
)
async def test_errors_have_openais_shape(serve, path, body, status, param, message):
    async with serve() as (client, server):
        got, answer = await post(client, path, body)
        assert server.thread.num_requests == 0
    assert got == status
    assert answer["error"]["param"] == param
    assert message in answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}


async def test_a_key_is_asked_for_everywhere_but_by_probes(serve):
    async with serve(api_key="sésame") as (client, _):
        for headers, wanted in (({}, 401), ({"Authorization": "Bearer no"}, 401)):
            status, answer = await post(client, "/v1/completions", TEXT, headers=headers)
            assert (status, answer["error"]["code"]) == (wanted, "invalid_api_key")
        right = {"Authorization": "Bearer sésame"}
        assert (await post(client, "/v1/completions", TEXT, headers=right))[0] == 200
        assert (await load(client))["status"] == "ok"


async def test_models_version_tokenize_and_back(serve):
    async with serve(max_model_len=512) as (client, _):
        async with client.get("/v1/models") as response:
            (model,) = (await response.json())["data"]
        assert (model["id"], model["max_model_len"]) == ("tiny", 512)
        async with client.get("/version") as response:
            assert (await response.json())["version"]
        _, counted = await post(client, "/tokenize", {"prompt": "Hail, naïve ☃"})
        assert counted["count"] == len(counted["tokens"])
        assert counted["max_model_len"] == 512
        _, back = await post(client, "/detokenize", {"tokens": counted["tokens"]})
        assert back == {"prompt": "Hail, naïve ☃"}
        _, chat = await post(client, "/tokenize", {"messages": CHAT["messages"]})
        _, answer = await post(client, "/v1/chat/completions", CHAT)
        assert chat["count"] == answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_client_that_leaves_takes_its_sequence_with_it(serve, is_streamed):
    async with serve(max_num_seqs=1) as (client, server):
        endless = {**TEXT, "max_tokens": 2000, "stream": is_streamed}
        leaving = asyncio.create_task(post(client, "/v1/completions", endless))
        while not (await load(client))["running"]:
            await asyncio.sleep(0.005)
        leaving.cancel()
        status, _ = await asyncio.wait_for(post(client, "/v1/completions", TEXT), 5)  # gets the only slot
        assert status == 200
        server.engine.scheduler.check_integrity()
        assert not server.engine.has_work


async def test_fifty_clients_that_come_and_go_leave_nothing_behind(serve):
    async with serve(max_num_seqs=4) as (client, server):

        async def one(i):
            body = {**TEXT, "prompt": "word " * (i + 1), "max_tokens": 3 + 7 * (i % 5), "stream": bool(i % 2)}
            async with client.post("/v1/completions", json=body) as response:
                if i % 3 == 0:
                    await response.content.readany()
                    response.close()
                    return None
                return len(await response.read())

        sizes = await asyncio.gather(*(one(i) for i in range(50)))
        assert all(size is None or size > 0 for size in sizes)
        await asyncio.wait_for(server.thread.idle.wait(), 5)
        while (state := await load(client))["running"]:
            await asyncio.sleep(0.005)
        assert state == {"status": "ok", "running": 0, "waiting": 0}
        server.engine.scheduler.check_integrity()


async def test_draining_ends_what_runs_and_takes_nothing_new(serve):
    async with serve() as (client, server):
        running = asyncio.create_task(post(client, "/v1/completions", {**TEXT, "max_tokens": 100}))
        while not (await load(client))["running"]:
            await asyncio.sleep(0.005)
        draining = asyncio.create_task(server.drain(20))
        await asyncio.sleep(0)
        assert (await load(client))["status"] == "draining"
        assert (await post(client, "/v1/completions", TEXT))[0] == 503
        status, answer = await running
        await draining
    assert status == 200
    assert answer["usage"]["completion_tokens"] == 100


async def test_a_drain_that_takes_too_long_ends_requests_with_an_error(serve):
    async with serve() as (client, server):
        running = asyncio.create_task(events(client, "/v1/completions", {**TEXT, "max_tokens": 2000}))
        while not (await load(client))["running"]:
            await asyncio.sleep(0.005)
        await server.drain(0.05)
        *_, last = await running
    assert "shut down" in last["error"]["message"]


async def test_an_engine_that_breaks_says_so(serve, monkeypatch, caplog):
    async with serve() as (client, server):

        def broken(plan):
            raise ZeroDivisionError

        monkeypatch.setattr(server.engine.runner, "run", broken)
        status, answer = await post(client, "/v1/completions", TEXT)
        assert (status, answer["error"]["type"]) == (500, "server_error")
        async with client.get("/health") as response:
            assert (response.status, (await response.json())["status"]) == (503, "failed")
        assert (await post(client, "/v1/completions", TEXT))[0] == 503
    assert "the engine failed" in caplog.text
