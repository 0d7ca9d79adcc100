"""HTTP: OpenAI's endpoints and server-sent events over an `EngineThread`.

In: JSON bodies. Out: JSON or a stream in which every token that shows text is an event of its own,
written as soon as its step is done. A client that leaves takes its sequences with it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from aiohttp import web

from reference_engine import __version__
from reference_engine.access import Endpoint, Gate, error_response, log_bad_http_briefly, refusal
from reference_engine.answers import Answer, Head, error_body, error_event
from reference_engine.engine_thread import EngineThread, Inbox
from reference_engine.errors import EngineError, RequestError
from reference_engine.metrics import Metrics
from reference_engine.protocol import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerationBody,
    TokenizeBody,
    parse_body,
)
from reference_engine.token_text import TokenText
from reference_engine.types import EngineStats, GenerationRequest

logger = logging.getLogger(__name__)
Result = TypeVar("Result")
# No prompt needs more: 32 bytes a token leave room for text with every character escaped.
LEAST_MAX_BODY_BYTES = 4 * 1024 * 1024
BODY_BYTES_PER_TOKEN = 32
LONG_BODY_BYTES = 4 * 1024  # from here a thread reads it: a millisecond's work must not stall the streams


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A checked body: what to compute, and how to answer."""

    requests: tuple[GenerationRequest, ...]
    answer: Answer
    is_streamed: bool


class Server:
    """The endpoints. Created on the event loop, when the engine is loaded."""

    def __init__(
        self,
        thread: EngineThread,
        *,
        model_name: str,
        api_key: str | None = None,
        rate_limit: float | None = None,
    ) -> None:
        self.thread = thread
        self.engine = engine = thread.engine
        self.model_name = model_name
        max_model_len = engine.config.max_model_len
        self.metrics = Metrics(model_name, max_model_len=max_model_len, stats=lambda: self.stats)
        thread.attach(asyncio.get_running_loop(), self.metrics)
        self.is_draining = False
        self._gate = Gate(api_key=api_key, rate_limit=rate_limit)
        self._max_body_bytes = max(LEAST_MAX_BODY_BYTES, BODY_BYTES_PER_TOKEN * max_model_len)
        self._token_text = TokenText(engine.tokenizer.tokenizer)
        # One: whoever sends long texts does not take the engine's cores.
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="long-bodies")
        self._created_s = int(time.time())

    @property
    def stats(self) -> EngineStats:
        """How the engine stood after its latest step."""
        return self.thread.stats

    def app(self) -> web.Application:
        """The aiohttp application."""
        log_bad_http_briefly()
        app = web.Application(client_max_size=self._max_body_bytes)
        endpoints: tuple[tuple[str, str, Endpoint], ...] = (
            ("POST", "/v1/chat/completions", self.chat),
            ("POST", "/v1/completions", self.completions),
            ("GET", "/v1/models", self.models),
            ("POST", "/tokenize", self.tokenize),
            ("POST", "/detokenize", self.detokenize),
            ("GET", "/health", self.health),
            ("GET", "/version", self.version),
            ("GET", "/metrics", self.metrics_text),
        )
        methods = {path: method for method, path, _ in endpoints}
        unknown = partial(self.unknown, methods)
        routes: tuple[tuple[str, str, Endpoint], ...] = (*endpoints, ("*", "/{path:.*}", unknown))
        app.add_routes([web.route(method, path, self._gate.guard(to)) for method, path, to in routes])
        app.on_cleanup.append(self._close)
        return app

    async def _close(self, _app: web.Application) -> None:
        self._reader.shutdown(wait=False, cancel_futures=True)

    async def drain(self, timeout_s: float, *, hurry: asyncio.Event | None = None) -> bool:
        """Take no more requests, let the running ones end, stop the engine.

        At most `timeout_s`, and not beyond `hurry`. False: some did not end by themselves.
        """
        self.is_draining = True
        waits = [
            asyncio.ensure_future(event.wait()) for event in (self.thread.idle, hurry) if event is not None
        ]
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        is_clean = self.thread.idle.is_set()
        if not is_clean:
            logger.warning("%d sequences did not end before the server did", self.thread.num_requests)
        await self.thread.stop()
        return is_clean

    # Endpoints.

    async def chat(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/chat/completions`. Without `max_tokens`, all there is room for."""
        return await self._generate(http, self._chat_job)

    async def completions(self, http: web.Request) -> web.StreamResponse:
        """`POST /v1/completions`. Without `max_tokens`, 16, as OpenAI has it."""
        return await self._generate(http, self._completion_job)

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
        tokens = await self._read(http, self._tokenize)
        answer = {"count": len(tokens), "tokens": tokens, "max_model_len": self.engine.config.max_model_len}
        return web.json_response(answer)

    async def detokenize(self, http: web.Request) -> web.Response:
        """`POST /detokenize`, as vLLM has it; control tokens are left out."""
        return web.json_response({"prompt": await self._read(http, self._detokenize)})

    async def health(self, _http: web.Request) -> web.Response:
        """`GET /health`: 200 while requests are taken, 503 when not."""
        is_ok = self.thread.is_alive and not self.is_draining
        status = "ok" if is_ok else "draining" if self.thread.is_alive else "failed"
        body = {"status": status, "running": self.stats.num_running, "waiting": self.stats.num_waiting}
        return web.json_response(body, status=200 if is_ok else 503)

    async def version(self, _http: web.Request) -> web.Response:
        """`GET /version`."""
        return web.json_response({"version": __version__})

    async def metrics_text(self, _http: web.Request) -> web.Response:
        """`GET /metrics`, in Prometheus' text format."""
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self.metrics.render(), headers=headers)

    async def unknown(self, methods: dict[str, str], http: web.Request) -> web.Response:
        """Anything else."""
        allowed = methods.get(http.path)
        if allowed is not None:
            message = f"{http.method} {http.path}: only {allowed} is understood here"
            response = error_response(message, status=405)
            response.headers["Allow"] = allowed
            return response
        return error_response(f"{http.method} {http.path}: there is no such endpoint", status=404)

    # From a body to a job. All of it is one synchronous call, which a thread makes for long bodies.

    async def _read(self, http: web.Request, understand: Callable[[bytes], Result]) -> Result:
        self._check_open()
        try:
            raw = await http.read()
        except web.HTTPRequestEntityTooLarge:
            message = f"the body is larger than the {self._max_body_bytes} bytes that this server takes"
            text = json.dumps(error_body(message, status=413))
            raise web.HTTPRequestEntityTooLarge(
                self._max_body_bytes, text=text, content_type="application/json"
            ) from None
        if len(raw) < LONG_BODY_BYTES:
            return understand(raw)
        return await asyncio.get_running_loop().run_in_executor(self._reader, understand, raw)

    def _check_open(self) -> None:
        if self.is_draining or not self.thread.is_alive:
            raise refusal(web.HTTPServiceUnavailable, "the server is shutting down or has failed")

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self.model_name:
            message = f"the model {model[:200]!r} does not exist; this server has {self.model_name!r}"
            raise refusal(web.HTTPNotFound, message, param="model", code="model_not_found")

    def _tokenize(self, raw: bytes) -> list[int]:
        body = parse_body(TokenizeBody, raw)
        self._check_model(body.model)
        if body.messages is None:
            return self.engine.tokenizer.encode(body.prompt or "")
        flat = [message.flat() for message in body.messages]
        return self.engine.tokenizer.encode_chat(flat, add_generation_prompt=body.add_generation_prompt)

    def _detokenize(self, raw: bytes) -> str:
        body = parse_body(DetokenizeBody, raw)
        self._check_model(body.model)
        vocab_size = self.engine.model_config.vocab_size
        if wrong := [token for token in body.tokens if token >= vocab_size]:
            message = f"token id {wrong[0]} is outside the vocabulary of {vocab_size}"
            raise RequestError(message, param="tokens")
        return self.engine.tokenizer.decode(body.tokens)

    def _chat_job(self, raw: bytes) -> Job:
        body = parse_body(ChatBody, raw)
        self._check_model(body.model)
        flat = [message.flat() for message in body.messages]
        self._check_size("".join(message["content"] for message in flat), "messages")
        prompt = self.engine.tokenizer.encode_chat(flat)
        room = self.engine.config.max_model_len - len(prompt)
        return self._job(body, [prompt], default_max_tokens=max(1, room))

    def _completion_job(self, raw: bytes) -> Job:
        body = parse_body(CompletionBody, raw)
        self._check_model(body.model)
        prompts = [self._encode(prompt) if isinstance(prompt, str) else prompt for prompt in body.prompts()]
        return self._job(body, prompts, default_max_tokens=16)

    def _encode(self, prompt: str) -> list[int]:
        self._check_size(prompt, "prompt")
        return self.engine.tokenizer.encode(prompt)

    def _check_size(self, text: str, param: str) -> None:
        """Refuse what is too long even if made of the longest tokens, before seconds are spent on it."""
        longest = self.engine.config.max_model_len
        num_bytes = len(text.encode())
        if num_bytes > longest * self._token_text.most_bytes:
            raise RequestError(
                f"this model's maximum context length is {longest} tokens, but a text of {num_bytes} bytes "
                f"was given, and no token has more than {self._token_text.most_bytes}; shorten it",
                param=param,
            )

    def _job(self, body: GenerationBody, prompts: Sequence[list[int]], *, default_max_tokens: int) -> Job:
        is_chat = isinstance(body, ChatBody)
        request_id = f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        sampling = body.sampling(default_max_tokens)
        requests: list[GenerationRequest] = []
        for prompt in prompts:
            first = GenerationRequest(
                request_id=f"{request_id}-{len(requests)}",
                prompt_token_ids=tuple(prompt),
                sampling=sampling,
                priority=body.priority or 0,
            )
            self.engine.check(first)
            requests.append(first)
            requests += [
                replace(
                    first,
                    request_id=f"{first.request_id}-{at}",
                    sampling=replace(sampling, seed=sampling.seed + at),
                    shares_prompt_with=first.request_id,
                )
                for at in range(1, body.n or 1)
            ]
        head = Head(
            request_id=request_id,
            created_s=int(time.time()),
            model=self.model_name,
            is_chat=is_chat,
            token_text=self._token_text if sampling.num_logprobs is not None else None,
            is_usage_streamed=body.is_usage_streamed,
            is_usage_continuous=body.is_usage_continuous,
        )
        names, sizes = [request.request_id for request in requests], [len(prompt) for prompt in prompts]
        answer = Answer(head, names=names, prompt_sizes=sizes)
        return Job(requests=tuple(requests), answer=answer, is_streamed=bool(body.stream))

    # From a job to an answer.

    async def _generate(self, http: web.Request, understand: Callable[[bytes], Job]) -> web.StreamResponse:
        job = await self._read(http, understand)
        self._check_open()  # again: a large body takes its time
        inbox = self.thread.submit(job.requests, is_streamed=job.is_streamed)
        try:
            if job.is_streamed:
                return await _stream(http, job, inbox)
            for event in await inbox.take():
                job.answer.add(event)
            return web.json_response(job.answer.whole())
        finally:
            self.thread.release(inbox)


async def _stream(http: web.Request, job: Job, inbox: Inbox) -> web.StreamResponse:
    """One write for all that a step gave this stream."""
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(http)
    event_of = job.answer.event
    try:
        while job.answer.num_unfinished:
            out = b"".join([event_of(event) for event in await inbox.take()])
            if not job.answer.num_unfinished:
                out += job.answer.ending()
            if out:
                await response.write(out)
        await response.write_eof()
    except EngineError as error:  # the status is out: the error becomes the last event
        await response.write(error_event(str(error)))
    except ConnectionError:
        logger.info("%s: the client left", job.answer.head.request_id)
    return response
