"""Two hundred clients connect, stream, and leave whenever they like: nothing of them stays behind."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from reference_engine.engine_thread import EngineThread
from reference_engine.server import Server


@asynccontextmanager
async def serving(engine):
    server = Server(EngineThread(lambda: engine), model_name="tiny")
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield server, runner.addresses[0][1]
    finally:
        await server.drain(5)
        await runner.cleanup()


async def ask(port, body, *, leave_after_s=None, leave_before_body=False, reset=False):
    """The raw answer, or None for a client that left."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    writer.write(head.encode() + (raw[: len(raw) // 2] if leave_before_body else raw))
    try:
        if leave_before_body:
            await asyncio.sleep(leave_after_s or 0)
            return None
        return await asyncio.wait_for(reader.read(), leave_after_s)
    except TimeoutError:
        return None
    finally:
        if reset:
            writer.transport.abort()
        writer.close()


@pytest.mark.parametrize(
    "switches",
    [
        {},
        pytest.param({"kv_cache": "contiguous"}, marks=pytest.mark.slow),
        pytest.param({"enable_prefix_caching": False}, marks=pytest.mark.slow),
    ],
)
async def test_two_hundred_clients_that_leave_at_random(make_tiny_engine, caplog, switches):
    rng = random.Random(11)
    async with serving(make_tiny_engine(max_num_seqs=16, max_model_len=256, **switches)) as (server, port):

        async def one(at):
            await asyncio.sleep(rng.uniform(0, 2))
            body = {
                "prompt": "word " * rng.randint(1, 60), "max_tokens": rng.randint(1, 120), "ignore_eos": True,
                "n": rng.choice([1, 1, 1, 3]), "stream": rng.random() < 0.8, "seed": at,
                "logprobs": rng.choice([None, None, 2]), "stop": rng.choice([None, "the", ["a", "b"]]),
            }  # fmt: skip
            stays = at % 4 == 0
            raw = await ask(
                port,
                body,
                leave_after_s=None if stays else rng.expovariate(2),
                leave_before_body=not stays and at % 7 == 0,
                reset=at % 3 == 0,
            )
            if stays:
                assert raw.startswith(b"HTTP/1.1 200"), raw[:300]
                assert (b"[DONE]" if body["stream"] else b'"usage"') in raw
            return raw

        answers = await asyncio.gather(*(one(at) for at in range(200)))
        assert sum(raw is None for raw in answers) > 50, "many really left early"
        await asyncio.wait_for(server.thread.idle.wait(), 20)
        async with asyncio.timeout(10):
            while server.stats.num_running or server.stats.num_waiting:
                await asyncio.sleep(0.01)
        assert server.thread.num_requests == 0
        assert server.stats.kv_cache_usage == 0
        assert not server.engine.has_work
        server.engine.scheduler.check_integrity()
        raw = await ask(port, {"prompt": "Hail", "max_tokens": 5})
        assert raw.startswith(b"HTTP/1.1 200")
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.levelname in {"WARNING", "ERROR"}]
