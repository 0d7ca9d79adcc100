"""HTTP: OpenAI's endpoints and server-sent events over an `EngineThread`.

In: JSON bodies. Out: JSON or a stream in which every token that shows text is an event of its own,
written as soon as its step is done. A client that leaves takes its sequence with it.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from reference_engine import __version__
from reference_engine.engine import Engine
from reference_engine.engine_thread import EngineThread
from reference_engine.errors import EngineError, RequestError
from reference_engine.protocol import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerationBody,
    Message,
    Shape,
    TokenizeBody,
    error_body,
    parse_body,
    usage,
)
from reference_engine.types import GenerationRequest, TokenEvent

logger = logging.getLogger(__name__)
Endpoint = Callable[[web.Request], Awaitable[web.StreamResponse]]
MAX_BODY_BYTES = 32 * 1024 * 1024
LONG_TEXT = 20_000  # characters from which tokenizing gets a thread, lest it stall everyone's streams
OPEN_PATHS = ("/health", "/version")  # need no key, so that a probe can ask


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A checked request and what is needed to answer it."""

    request: GenerationRequest
    shape: Shape
    is_streamed: bool
    is_usage_streamed: bool

    def usage(self, last: TokenEvent) -> dict[str, int]:
        """Tokens in and out, as of the last event."""
        return usage(len(self.request.prompt_token_ids), last.num_output_tokens)


class Server:
    """The endpoints. Created on the event loop; the engine's thread starts with it."""

    def __init__(self, engine: Engine, *, model_name: str, api_key: str | None = None) -> None:
        self.engine = engine
        self.model_name = model_name
        self.thread = EngineThread(engine, asyncio.get_running_loop())
        self.is_draining = False
        self._api_key = api_key
        self._created_s = int(time.time())

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        endpoints: tuple[tuple[str, str, Endpoint], ...] = (
            ("POST", "/v1/chat/completions", self.chat),
            ("POST", "/v1/completions", self.completions),
            ("GET", "/v1/models", self.models),
            ("POST", "/tokenize", self.tokenize),
            ("POST", "/detokenize", self.detokenize),
            ("GET", "/health", self.health),
            ("GET", "/version", self.version),
            ("*", "/{path:.*}", self.unknown),
        )
        app.add_routes([web.route(method, path, self._guarded(to)) for method, path, to in endpoints])
        return app

    async def drain(self, timeout_s: float) -> None:
        """Take no more requests, let the running ones end (at most `timeout_s`), stop the engine."""
        self.is_draining = True
        try:
            await asyncio.wait_for(self.thread.idle.wait(), timeout_s)
        except TimeoutError:
            logger.warning("%d requests did not end in %g s", self.thread.num_requests, timeout_s)
        await self.thread.stop()

    # Endpoints.

    async def chat(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`."""
        body = parse_body(ChatBody, await http.read())
        self._check_model(body.model)
        prompt = await self._encode_chat(body.messages)
        room = max(1, self.engine.config.max_model_len - len(prompt))
        return await self._answer(http, self._job(body, prompt, default_max_tokens=room))

    async def completions(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`. Without `max_tokens`, 16, as OpenAI has it."""
        body = parse_body(CompletionBody, await http.read())
        self._check_model(body.model)
        prompt = body.one_prompt()
        ids = await self._encode(prompt) if isinstance(prompt, str) else prompt
        return await self._answer(http, self._job(body, ids, default_max_tokens=16))

    async def models(self, _http: web.Request) -> web.Response:
        """`GET /v1/models`."""
        model = {
            "id": self.model_name,
            "object": "model",
            "created": self._created_s,
            "owned_by": "reference_engine",
            "max_model_len": self.engine.config.max_model_len,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def tokenize(self, http: web.Request) -> web.Response:
        """`POST /tokenize`, as vLLM has it."""
        body = parse_body(TokenizeBody, await http.read())
        if body.messages is None:
            tokens = await self._encode(body.prompt or "")
        else:
            tokens = await self._encode_chat(body.messages, is_open=body.add_generation_prompt)
        answer = {"count": len(tokens), "tokens": tokens, "max_model_len": self.engine.config.max_model_len}
        return web.json_response(answer)

    async def detokenize(self, http: web.Request) -> web.Response:
        """`POST /detokenize`, as vLLM has it; control tokens are left out."""
        tokens = parse_body(DetokenizeBody, await http.read()).tokens
        vocab_size = self.engine.model_config.vocab_size
        if wrong := [token for token in tokens if not 0 <= token < vocab_size]:
            message = f"token id {wrong[0]} is outside the vocabulary of {vocab_size}"
            raise RequestError(message, param="tokens")
        return web.json_response({"prompt": self.engine.tokenizer.decode(tokens)})

    async def health(self, _http: web.Request) -> web.Response:
        """`GET /health`: 200 while requests are taken, 503 when not."""
        is_ok = self.thread.is_alive and not self.is_draining
        load = self.thread.load
        status = "ok" if is_ok else "draining" if self.thread.is_alive else "failed"
        body = {"status": status, "running": load.num_running, "waiting": load.num_waiting}
        return web.json_response(body, status=200 if is_ok else 503)

    async def version(self, _http: web.Request) -> web.Response:
        """`GET /version`."""
        return web.json_response({"version": __version__})

    async def unknown(self, http: web.Request) -> web.Response:
        """Anything else."""
        return _error(f"{http.method} {http.path}: there is no such endpoint", status=404)

    # From a body to an answer.

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self.model_name:
            message = f"the model {model!r} does not exist; this server has {self.model_name!r}"
            raise _refusal(web.HTTPNotFound, message, param="model", code="model_not_found")
        if self.is_draining or not self.thread.is_alive:
            raise _refusal(web.HTTPServiceUnavailable, "the server is shutting down or has failed")

    async def _encode(self, text: str) -> list[int]:
        encode = self.engine.tokenizer.encode
        return encode(text) if len(text) < LONG_TEXT else await asyncio.to_thread(encode, text)

    async def _encode_chat(self, messages: list[Message], *, is_open: bool = True) -> list[int]:
        flat = [message.flat() for message in messages]
        encode = partial(self.engine.tokenizer.encode_chat, flat, add_generation_prompt=is_open)
        is_long = sum(len(message["content"]) for message in flat) >= LONG_TEXT
        return await asyncio.to_thread(encode) if is_long else encode()

    def _job(self, body: GenerationBody, prompt: list[int], *, default_max_tokens: int) -> Job:
        is_chat = isinstance(body, ChatBody)
        request_id = f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        sampling = body.sampling(default_max_tokens)
        request = GenerationRequest(request_id=request_id, prompt_token_ids=tuple(prompt), sampling=sampling)
        self.engine.check(request)
        shape = Shape(
            is_chat=is_chat, request_id=request_id, created_s=int(time.time()), model=self.model_name
        )
        return Job(
            request=request, shape=shape, is_streamed=body.stream, is_usage_streamed=body.is_usage_streamed
        )

    async def _answer(self, http: web.Request, job: Job) -> web.StreamResponse:
        try:
            return await (self._stream(http, job) if job.is_streamed else self._whole(job))
        finally:
            self.thread.release(job.request.request_id)

    async def _events(self, job: Job) -> AsyncIterator[TokenEvent]:
        inbox = self.thread.submit(job.request)
        while True:
            event = await inbox.get()
            if isinstance(event, EngineError):
                raise event
            yield event
            if event.finish_reason is not None:
                return

    async def _whole(self, job: Job) -> web.Response:
        texts: list[str] = []
        last: TokenEvent | None = None
        async for event in self._events(job):
            texts.append(event.text)
            last = event
        assert last is not None
        assert last.finish_reason is not None
        return web.json_response(job.shape.whole(texts, last.finish_reason, job.usage(last)))

    async def _stream(self, http: web.Request, job: Job) -> web.StreamResponse:
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(http)
        try:
            async for chunk in self._chunks(job):
                await response.write(_sse(chunk))
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
        except EngineError as error:  # the status is out: the error becomes the last event
            await response.write(_sse(error_body(str(error), status=500)))
        except ConnectionError:
            logger.info("%s: the client left", job.request.request_id)
        return response

    async def _chunks(self, job: Job) -> AsyncIterator[dict[str, Any]]:
        """All chunks of a stream but `[DONE]`. Tokens that show no text (yet) make no chunk."""
        opening = job.shape.opening()
        async for event in self._events(job):
            if opening is not None:
                yield opening
                opening = None
            if event.text:
                yield job.shape.piece(event.text)
            if event.finish_reason is not None:
                yield job.shape.closing(event.finish_reason)
                if job.is_usage_streamed:
                    yield job.shape.usage_chunk(job.usage(event))

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint behind the key, with every error in OpenAI's shape."""

        async def answer(http: web.Request) -> web.StreamResponse:
            try:
                self._check_key(http)
                return await endpoint(http)
            except RequestError as error:
                return _error(str(error), status=400, param=error.param)
            except EngineError as error:
                return _error(str(error), status=500)
            except web.HTTPException as error:
                if error.content_type == "application/json":
                    raise
                return _error(f"{http.method} {http.path}: {error.reason}", status=error.status)

        return answer

    def _check_key(self, http: web.Request) -> None:
        if self._api_key is None or http.path in OPEN_PATHS:
            return
        given = http.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._api_key}".encode()):
            raise _refusal(
                web.HTTPUnauthorized,
                "a valid key is needed: Authorization: Bearer ...",
                code="invalid_api_key",
            )


def _refusal(
    kind: type[web.HTTPException], message: str, *, param: str | None = None, code: str | None = None
) -> web.HTTPException:
    body = error_body(message, status=kind.status_code, param=param, code=code)
    return kind(text=json.dumps(body), content_type="application/json")


def _error(message: str, *, status: int, param: str | None = None) -> web.Response:
    return web.json_response(error_body(message, status=status, param=param), status=status)


def _sse(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n"
