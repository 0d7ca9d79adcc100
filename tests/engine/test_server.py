"""Over real HTTP, with the bundled model: what clients see."""

from __future__ import annotations

import asyncio
import io
import json
import random
import threading
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from reference_engine.access import TokenBucket
from reference_engine.engine_thread import EngineThread
from reference_engine.errors import ConfigError, RequestError
from reference_engine.protocol import ChatBody, CompletionBody
from reference_engine.server import Server

CHAT = {"messages": [{"role": "user", "content": "Who's there?"}], "temperature": 0, "max_tokens": 12}
TEXT = {"prompt": "In the beginning", "temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture
def serve(make_tiny_engine):
    @asynccontextmanager
    async def run(api_key=None, rate_limit=None, **switches):
        engine = make_tiny_engine(**switches)
        server = Server(
            EngineThread(lambda: engine), model_name="tiny", api_key=api_key, rate_limit=rate_limit
        )
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


async def test_n_choices_share_a_prompt_and_differ_by_seed(serve):
    warm = {**TEXT, "temperature": 1.0, "seed": 7, "n": 3}
    async with serve() as (client, _):
        _, whole = await post(client, "/v1/completions", warm)
        alone = [
            (await post(client, "/v1/completions", {**warm, "n": 1, "seed": 7 + i}))[1] for i in range(3)
        ]
        *chunks, usage, done = await events(
            client, "/v1/completions", {**warm, "stream_options": {"include_usage": True}}
        )
    texts = [choice["text"] for choice in whole["choices"]]
    assert texts == [answer["choices"][0]["text"] for answer in alone]
    assert len(set(texts)) == 3
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert whole["usage"]["prompt_tokens"] == alone[0]["usage"]["prompt_tokens"], "a prompt counts once"
    assert whole["usage"]["completion_tokens"] == usage["usage"]["completion_tokens"] == 36
    streamed = ["", "", ""]
    for chunk in chunks:
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert streamed == texts
    assert done == "[DONE]"


async def test_several_prompts_are_answered_in_their_order(serve):
    prompts = ["In the beginning", "Who's there?", [5, 6, 7]]
    async with serve() as (client, _):
        _, whole = await post(client, "/v1/completions", {**TEXT, "prompt": prompts, "n": 2})
        alone = [(await post(client, "/v1/completions", {**TEXT, "prompt": p}))[1] for p in prompts]
    assert [choice["index"] for choice in whole["choices"]] == list(range(6))
    texts = [answer["choices"][0]["text"] for answer in alone for _ in range(2)]
    assert [choice["text"] for choice in whole["choices"]] == texts
    assert whole["usage"]["prompt_tokens"] == sum(answer["usage"]["prompt_tokens"] for answer in alone)


async def test_logprobs_of_a_chat(serve):
    asked = {**CHAT, "ignore_eos": True, "logprobs": True, "top_logprobs": 3}
    async with serve() as (client, _):
        _, whole = await post(client, "/v1/chat/completions", asked)
        *chunks, _ = await events(client, "/v1/chat/completions", asked)
    (choice,) = whole["choices"]
    content = choice["logprobs"]["content"]
    assert len(content) == 12
    assert "".join(token["token"] for token in content) == choice["message"]["content"]
    assert b"".join(bytes(token["bytes"]) for token in content).decode() == choice["message"]["content"]
    for token in content:
        best, second, third = token["top_logprobs"]
        assert 0 >= best["logprob"] >= second["logprob"] >= third["logprob"]
        assert set(best) == {"token", "logprob", "bytes"}
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    told = [token for logprobs in streamed if logprobs for token in logprobs["content"]]
    assert [token["token"] for token in told] == [token["token"] for token in content]


async def test_logprobs_of_a_completion(serve):
    asked = {**TEXT, "logprobs": 2}
    async with serve() as (client, _):
        _, whole = await post(client, "/v1/completions", asked)
        *chunks, _ = await events(client, "/v1/completions", asked)
    (choice,) = whole["choices"]
    got = choice["logprobs"]
    assert "".join(got["tokens"]) == choice["text"]
    assert got["text_offset"] == [len("".join(got["tokens"][:at])) for at in range(12)]
    for token, logprob, tops in zip(got["tokens"], got["token_logprobs"], got["top_logprobs"], strict=True):
        assert tops[token] == logprob == max(tops.values()), "greedy"
        assert 1 <= len(tops) <= 3
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [token for logprobs in told for token in logprobs["tokens"]] == got["tokens"]
    assert [at for logprobs in told for at in logprobs["text_offset"]] == got["text_offset"]


async def test_usage_comes_with_every_chunk_if_asked(serve):
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with serve() as (client, _):
        *chunks, last, _ = await events(client, "/v1/completions", {**TEXT, "stream_options": options})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == [*range(1, 13), 12]
    assert chunks[-1]["usage"] == last["usage"]


async def test_a_rate_limit_says_when_to_come_again(serve):
    async with serve(rate_limit=0.5) as (client, _):
        assert (await post(client, "/tokenize", {"prompt": "a"}))[0] == 200
        for path in ("/tokenize", "/v1/completions"):
            async with client.post(path, json=TEXT) as response:
                answer = await response.json()
            assert (response.status, response.headers["Retry-After"]) == (429, "2")
            assert answer["error"]["code"] == "rate_limit_exceeded"
        for path in ("/health", "/metrics", "/v1/models"):
            async with client.get(path) as response:
                assert response.status == 200


def test_a_bucket_lets_its_rate_through_over_any_time():
    bucket = TokenBucket(10)
    asked = [at / 100 for at in range(3000)]  # 100 requests a second for 30 s
    passed = [s for s in asked if bucket.wait_s(100 + s) == 0]
    assert 10 <= len([s for s in passed if s < 1]) <= 20, "a second's worth at once, then the rate"
    assert len([s for s in passed if 5 <= s < 25]) == pytest.approx(200, abs=1)
    bucket = TokenBucket(0.5)
    assert bucket.wait_s(0) == 0
    assert bucket.wait_s(0.5) == pytest.approx(1.5)
    assert bucket.wait_s(2) == 0


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\na",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: tea\r\n\r\n{}",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # the start of TLS
    ],
)
async def test_what_is_not_http_gets_a_4xx_and_leaves_no_traceback(serve, caplog, raw):
    async with serve() as (client, _):
        port = client._base_url.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(raw)
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        assert (await load(client))["status"] == "ok"
    assert not answer or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer[:200]
    assert b"Traceback" not in answer
    assert "Traceback" not in caplog.text


async def test_long_prompts_do_not_stall_the_loop(serve):
    longest, loop = 0.0, asyncio.get_running_loop()

    async def watch():
        nonlocal longest
        before = loop.time()
        while True:
            await asyncio.sleep(0.001)
            longest, before = max(longest, loop.time() - before), loop.time()

    async with serve() as (client, _):
        raw = json.dumps({"prompt": "word " * 100_000}).encode()
        watching = asyncio.create_task(watch())
        started = loop.time()
        status, counted = await post(client, "/tokenize", raw)
        taken = loop.time() - started
        watching.cancel()
    assert status == 200
    assert counted["count"] > 100_000
    assert longest < taken / 2


async def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(serve, monkeypatch):
    huge = "word " * 600_000
    async with serve() as (client, server):
        monkeypatch.setattr(server.engine, "tokenizer", None)
        bodies = {
            "/v1/completions": ({**TEXT, "prompt": huge}, "prompt"),
            "/v1/chat/completions": ({"messages": [{"role": "user", "content": huge}]}, "messages"),
        }
        for path, (body, param) in bodies.items():
            status, answer = await post(client, path, body)
            assert (status, answer["error"]["param"]) == (400, param)
            assert "maximum context length is 2048 tokens" in answer["error"]["message"]


async def test_a_request_refused_by_the_engine_is_a_400_for_all_its_choices(serve, monkeypatch):
    async with serve() as (client, server):
        add, calls = server.engine.add, []

        def picky(request):
            calls.append(request)
            if len(calls) == 2:
                raise RequestError("not this one", param="n")
            add(request)

        monkeypatch.setattr(server.engine, "add", picky)
        status, answer = await post(client, "/v1/completions", {**TEXT, "n": 3})
        assert (status, answer["error"]["message"], answer["error"]["param"]) == (400, "not this one", "n")
        assert server.thread.num_requests == 0
        assert (await post(client, "/v1/completions", TEXT))[0] == 200
        assert not server.engine.has_work


async def test_an_unexpected_failure_is_logged_and_has_openais_shape(serve, monkeypatch, caplog):
    async with serve() as (client, server):
        monkeypatch.setattr(server.engine, "check", lambda _request: 1 / 0)
        status, answer = await post(client, "/v1/completions", TEXT)
    assert (status, answer["error"]["type"]) == (500, "server_error")
    assert "ZeroDivisionError" in caplog.text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
near_values = st.sampled_from(
    [
        0,
        1,
        -1,
        2,
        0.5,
        1.0,
        1e308,
        -1e-308,
        2**31,
        2**63,
        2**64,
        10**400,
        True,
        "",
        "a",
        [],
        ["a"],
        [1],
        [[1]],
        {},
    ]
)
field_names = st.sampled_from(
    sorted(
        {
            *ChatBody.model_fields,
            *CompletionBody.model_fields,
            *ChatBody.neutral,
            "tokens",
            "add_generation_prompt",
        }
    )
)


async def test_no_body_whatever_makes_a_500_or_a_traceback(serve, caplog):
    async with serve(max_model_len=64) as (client, server):

        async def ask(path, fields):
            good = {"prompt": "a", "messages": CHAT["messages"], "max_tokens": 2, "stream": False}
            raw = json.dumps({**good, **fields}).encode()
            async with client.post(path, data=raw) as response:
                text = await response.text()
                assert response.status in {200, 400, 404}, (path, fields, text)
                if response.status != 200:
                    assert set(json.loads(text)["error"]) == {"message", "type", "param", "code"}

        paths = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
        rng = random.Random(3)
        strategy = st.dictionaries(field_names, json_values | near_values, min_size=1, max_size=3)
        drawn = []

        @settings(max_examples=150, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
        @given(strategy)
        def draw(fields):
            drawn.append(fields)

        draw()
        for fields in drawn:
            await ask(rng.choice(paths), fields)
        for name in [*ChatBody.model_fields, *CompletionBody.model_fields]:
            for value in (
                None,
                -1,
                0,
                1,
                10**400,
                1e308,
                True,
                "",
                "a",
                [],
                [[]],
                [None],
                {},
                {"a": 1},
                "\ud800",
            ):
                await ask(paths[name == "prompt"], {name: value})
        assert (await post(client, "/v1/completions", TEXT))[0] == 200
        assert not server.engine.has_work
    assert "Traceback" not in caplog.text


async def test_the_second_signal_does_not_wait(serve):
    async with serve() as (client, server):
        running = asyncio.create_task(events(client, "/v1/completions", {**TEXT, "max_tokens": 2000}))
        while not (await load(client))["running"]:
            await asyncio.sleep(0.005)
        hurry = asyncio.Event()
        draining = asyncio.create_task(server.drain(60, hurry=hurry))
        await asyncio.sleep(0.02)
        assert not draining.done()
        hurry.set()
        assert await asyncio.wait_for(draining, 5) is False
        assert "shut down" in (await running)[-1]["error"]["message"]


async def test_a_prompt_seen_before_is_reported_as_cached_and_counted(serve):
    body = {**TEXT, "prompt": "word " * 200, "priority": -3}
    async with serve() as (client, server):
        first, second = [(await post(client, "/v1/completions", body))[1] for _ in range(2)]
        leaving = asyncio.create_task(events(client, "/v1/completions", {**TEXT, "max_tokens": 1500}))
        while not (await load(client))["running"]:
            await asyncio.sleep(0.005)
        leaving.cancel()
        await asyncio.wait_for(server.thread.idle.wait(), 5)
        async with client.get("/metrics") as response:
            assert response.content_type == "text/plain"
            text = await response.text()
    assert first["choices"] == second["choices"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < cached < second["usage"]["prompt_tokens"]
    label = 'model_name="tiny"'
    assert f"reference_engine:prefix_cache_hits_total{{{label}}} {cached}.0\n" in text
    assert f'reference_engine:request_success_total{{finished_reason="abort",{label}}} 1.0\n' in text
    assert f'reference_engine:request_success_total{{finished_reason="length",{label}}} 2.0\n' in text
    assert f"reference_engine:time_to_first_token_seconds_count{{{label}}} 3.0\n" in text


async def test_what_loads_the_engine_steps_it(make_tiny_engine, monkeypatch):
    """A second thread that computes costs the first a third of its speed (see `engine_thread`)."""
    threads = []
    engine = make_tiny_engine()
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda: threads.append(threading.get_ident()) or step())

    def load():
        threads.append(threading.get_ident())
        return engine

    server = Server(EngineThread(load), model_name="tiny")
    job = server._completion_job(json.dumps(TEXT).encode())
    inbox = server.thread.submit(job.requests, is_streamed=False)
    await inbox.take()
    await server.drain(5)
    assert len(threads) > 12
    assert set(threads) == {threads[0]}
    assert threads[0] != threading.get_ident()


def test_an_engine_that_cannot_be_loaded_says_why():
    def load():
        raise ConfigError("no such weights")

    with pytest.raises(ConfigError, match="no such weights"):
        _ = EngineThread(load).engine
