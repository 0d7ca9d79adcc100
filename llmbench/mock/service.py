"""What the server does with a request: routes, keys, faults, and who may decode when."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from http import HTTPStatus
from time import monotonic_ns
from typing import Any

from llmbench.mock import script
from llmbench.mock.answers import error_object, to_json
from llmbench.mock.clock import Clock
from llmbench.mock.connection import Connection, Delivery
from llmbench.mock.faults import Fault, striking
from llmbench.mock.http1 import BadRequest, Request
from llmbench.mock.job import Api, Job, Refusal, messages_text, prompt_text, read_job
from llmbench.mock.options import Behaviour, MockOptions, behaviour_of, changed
from llmbench.mock.tokens import pieces, token_id
from llmbench.mock.truth import Served, TruthLog

VERSION = "llmbench-mock"
_JSON, _HTML, _TEXT = "application/json", "text/html; charset=utf-8", "text/plain; charset=utf-8"
_GENERATES: dict[str, Api] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
}
_decode = json.JSONDecoder().decode
_SECRET_HEADERS = ("authorization", "api-key", "x-api-key", "cookie")


def _status_line(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Status"


def answer_bytes(status: int, kind: str, body: bytes, headers: list[tuple[str, str]]) -> bytes:
    """A whole HTTP response."""
    fields = [("Content-Type", kind), ("Content-Length", str(len(body))), *headers]
    return script.http_head(_status_line(status), fields) + body


def fault_answer(fault: Fault, headers: list[tuple[str, str]]) -> tuple[int, bytes]:
    """(status, bytes) of what a fault of kind status, empty or json-error puts in an answer's place."""
    if fault.kind == "json-error":
        return 200, answer_bytes(200, _JSON, to_json(error_object(fault.code, fault.message)), headers)
    if fault.kind == "empty":
        return 200, answer_bytes(200, "text/event-stream; charset=utf-8", b"", headers)
    extra = list(headers)
    if fault.retry_after is not None:
        extra.append(("Retry-After", f"{fault.retry_after:g}"))
    if fault.location is not None:
        extra.append(("Location", fault.location))
    body = fault.body if fault.body != "auto" else ("html" if fault.code in (502, 503, 504) else "json")
    if body == "html":
        page = (
            f"<html><head><title>{_status_line(fault.code)}</title></head><body>{fault.message}</body></html>"
        )
        return fault.code, answer_bytes(fault.code, _HTML, page.encode(), extra)
    if body == "json":
        document = to_json(error_object(fault.code, fault.message))
        return fault.code, answer_bytes(fault.code, _JSON, document, extra)
    return fault.code, answer_bytes(
        fault.code, _TEXT, b"" if body == "empty" else fault.message.encode(), extra
    )


class MockService:
    """All of the mock but its sockets. Requests decode in order of arrival, at most `capacity` at once."""

    def __init__(self, options: MockOptions, clock: Clock, log: TruthLog) -> None:
        self.connections: set[Connection] = set()
        self.log = log
        self._options = options
        self._clock = clock
        self._created = int(time.time())
        self._behaviour = behaviour_of(options)
        self._overridden = lru_cache(maxsize=256)(self._apply_override)
        self._running: set[Delivery] = set()
        self._waiting: dict[Delivery, None] = {}
        self._held: list[tuple[Connection, Request, int]] = []
        self._ordinal = 0
        self._routes: dict[tuple[str, str], Callable[[Connection, Request], None]] = {
            ("GET", "/health"): lambda connection, request: self._reply(connection, request, 200, b"", _TEXT),
            ("GET", "/version"): lambda connection, request: self._reply_json(
                connection, request, {"version": VERSION}
            ),
            ("GET", "/v1/models"): self._models,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/log"): self._log,
            ("POST", "/reset"): self._reset,
        }
        if options.tokenize:
            self._routes["POST", "/tokenize"] = self._tokenize

    def reset(self) -> None:
        """Forget what was logged and counted; the next request is the first again."""
        self.log.reset()
        self._ordinal = 0

    def take(self, connection: Connection, request: Request, arrival_ns: int) -> None:
        """Answer one request (llmbench.mock.connection.Service)."""
        if self._clock.frozen:
            self._held.append((connection, request, arrival_ns))
            return
        path = request.target.partition("?")[0]
        api = _GENERATES.get(path)
        if api is not None and request.method == "POST":
            self._generate(connection, request, arrival_ns, api, path)
            return
        self.log.other[f"{request.method} {path}"] += 1
        if path.startswith("/v1/") and not self._authorised(request):
            self._reply_refusal(connection, request, _bad_key())
            return
        route = self._routes.get((request.method, path))
        if route is not None:
            route(connection, request)
        elif api is not None or any(path == known for _, known in self._routes):
            self._reply_refusal(
                connection, request, Refusal(405, f"{request.method} is not allowed for {path}")
            )
        else:
            self._reply_refusal(connection, request, Refusal(404, f"there is no {request.method} {path}"))

    def refuse(self, connection: Connection, error: BadRequest) -> None:
        """Answer bytes that are no request, and close (llmbench.mock.connection.Service)."""
        body = to_json(error_object(error.status, error.message))
        connection.send(answer_bytes(error.status, _JSON, body, [("Connection", "close")]))
        connection.close()

    def _authorised(self, request: Request) -> bool:
        key = self._options.api_key
        given = request.headers.get("authorization", "")
        return key is None or hmac.compare_digest(given.encode(), f"Bearer {key}".encode())

    # ------------------------------------------------------------------ small answers

    def _headers(self, request: Request, *, close: bool = False) -> list[tuple[str, str]]:
        headers: list[tuple[str, str]] = []
        request_id = request.headers.get("x-request-id")
        if request_id is not None:
            headers.append(("X-Request-Id", request_id))
        if close or self._behaviour.close or not request.keep_alive:
            headers.append(("Connection", "close"))
        elif request.version == "HTTP/1.0":
            headers.append(("Connection", "keep-alive"))
        return headers

    def _reply(self, connection: Connection, request: Request, status: int, body: bytes, kind: str) -> None:
        connection.send(answer_bytes(status, kind, body, self._headers(request)))
        connection.finished(keep_alive=request.keep_alive and not self._behaviour.close)

    def _reply_json(
        self, connection: Connection, request: Request, document: object, status: int = 200
    ) -> None:
        self._reply(connection, request, status, to_json(document), _JSON)

    def _reply_refusal(self, connection: Connection, request: Request, refusal: Refusal) -> None:
        document = error_object(refusal.status, refusal.message, param=refusal.param, code=refusal.code)
        self._reply_json(connection, request, document, refusal.status)

    def _models(self, connection: Connection, request: Request) -> None:
        extra = {} if self._options.max_model_len is None else {"max_model_len": self._options.max_model_len}
        common = {"object": "model", "created": self._created, "owned_by": VERSION, **extra}
        data = [{"id": name, **common} for name in self._options.models]
        self._reply_json(connection, request, {"object": "list", "data": data})

    def _tokenize(self, connection: Connection, request: Request) -> None:
        try:
            body = _read_body(request)
            if "messages" in body:
                text, count = messages_text(body["messages"], "messages")
            else:
                text, count = prompt_text(body.get("prompt", body.get("content")))
        except Refusal as refusal:
            self._reply_refusal(connection, request, refusal)
            return
        ids = [token_id(piece) for piece in pieces(text)]
        ids = [0] * (count - len(ids)) + ids  # the template's tokens
        answer = {"count": count, "max_model_len": self._options.max_model_len, "tokens": ids}
        self._reply_json(connection, request, answer)

    def _metrics(self, connection: Connection, request: Request) -> None:
        log, prefix = self.log, self._options.metrics_prefix
        rows = [
            ("num_requests_running", "gauge", len(self._running)),
            ("num_requests_waiting", "gauge", len(self._waiting)),
            ("prompt_tokens_total", "counter", log.input_tokens),
            ("generation_tokens_total", "counter", log.output_tokens),
            ("request_success_total", "counter", log.ends["done"]),
            ("requests_total", "counter", sum(log.statuses.values())),
        ]
        text = "".join(
            f"# TYPE {prefix}:{name} {kind}\n{prefix}:{name} {value}\n" for name, kind, value in rows
        )
        self._reply(connection, request, 200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    def _log(self, connection: Connection, request: Request) -> None:
        document = {
            "summary": self.log.summary(),
            "requests": [served.to_dict() for served in self.log.requests],
        }
        self._reply_json(connection, request, document)

    def _reset(self, connection: Connection, request: Request) -> None:
        self.reset()
        self._reply_json(connection, request, {"status": "ok"})

    # ------------------------------------------------------------------ generation

    def _apply_override(self, settings: str) -> Behaviour:
        return changed(self._behaviour, json.loads(settings))

    def _behaviour_for(self, body: dict[str, Any]) -> Behaviour:
        override = body.pop("mock", None)
        if override is None:
            return self._behaviour
        if not isinstance(override, dict):
            raise Refusal(400, "'mock' must be an object of settings", param="mock")
        try:
            return self._overridden(json.dumps(override, sort_keys=True))
        except ValueError as error:
            raise Refusal(400, f"'mock': {error}", param="mock") from None

    def _generate(
        self, connection: Connection, request: Request, arrival_ns: int, api: Api, path: str
    ) -> None:
        self._ordinal += 1
        if self._ordinal == 1 and self._options.stall_at_s is not None:
            at_ns = arrival_ns + round(self._options.stall_at_s * 1e9)
            self._clock.at(at_ns - self._clock.frozen_ns, self._freeze)
        served = Served(
            ordinal=self._ordinal,
            request_id=request.headers.get("x-request-id"),
            path=path,
            arrival_ns=arrival_ns,
        )
        if self._options.log_bodies:
            served.headers = {k: "***" if k in _SECRET_HEADERS else v for k, v in request.headers.items()}
            served.body = request.body.decode("utf-8", "replace")
        try:
            if not self._authorised(request):
                raise _bad_key()
            body = _read_body(request)
            behaviour = self._behaviour_for(body)
            fault = striking(behaviour.faults, self._ordinal, behaviour.seed)
            job = self._read_job(api, body, behaviour, served)
            if fault is not None and self._whole_fault(connection, request, fault, served, job):
                return
            self._enqueue(self._delivery(connection, request, job, fault, served), arrival_ns)
        except Refusal as refusal:
            served.status, served.end, served.end_ns = refusal.status, "refused", monotonic_ns()
            self.log.add(served)
            self._reply_refusal(connection, request, refusal)

    def _read_job(self, api: Api, body: dict[str, Any], behaviour: Behaviour, served: Served) -> Job:
        options = self._options
        job = read_job(
            api,
            body,
            behaviour,
            ordinal=self._ordinal,
            model=options.models[0],
            max_model_len=options.max_model_len,
        )
        served.stream, served.model, served.finish_reason = job.stream, job.model, job.finish_reason
        served.input_tokens, served.num_tokens = job.input_tokens, job.num_tokens
        return job

    def _whole_fault(
        self, connection: Connection, request: Request, fault: Fault, served: Served, job: Job
    ) -> bool:
        """Answer with a fault that needs no decoding; False if `fault` is none of that kind."""
        served.fault = fault.kind
        if fault.kind not in ("status", "drop", "empty", "json-error"):
            return False
        served.end_ns = monotonic_ns()
        if fault.kind == "drop":
            served.status, served.end = 0, "cut"
            connection.close()
        else:
            close = job.behaviour.close
            served.status, data = fault_answer(fault, self._headers(request, close=close))
            served.end = "refused" if fault.kind == "status" else "done"
            connection.send(data)
            connection.finished(keep_alive=request.keep_alive and not close)
        self.log.add(served)
        return True

    def _delivery(
        self, connection: Connection, request: Request, job: Job, fault: Fault | None, served: Served
    ) -> Delivery:
        chunked = request.version == "HTTP/1.1"
        streamed = job.stream and not (fault is not None and fault.kind == "json")
        # A stream to a client that knows no chunks ends with the connection.
        close = job.behaviour.close or not request.keep_alive or (streamed and not chunked)
        headers = self._headers(request, close=close)
        steps: Iterator[script.Step]
        if streamed:
            steps = script.stream_script(job, fault, created=self._created, chunked=chunked, headers=headers)
        else:
            steps = script.whole_script(job, fault, created=self._created, headers=headers)
        connection.split_bytes = job.behaviour.split_bytes
        return Delivery(
            connection, steps, served, self._clock, self.log.lateness, keep_alive=not close, ended=self._over
        )

    def _enqueue(self, delivery: Delivery, arrival_ns: int) -> None:
        options = self._options
        if options.capacity is None or len(self._running) < options.capacity:
            self._running.add(delivery)
            # A request that was held back by a freeze begins now, not when it arrived.
            delivery.start(max(arrival_ns, self._thawed_ns))
            return
        if options.max_queue is not None and len(self._waiting) >= options.max_queue:
            raise Refusal(
                options.queue_full_status, f"{len(self._waiting)} requests wait already; try again later"
            )
        self._waiting[delivery] = None

    def _over(self, delivery: Delivery, end: str) -> None:
        self.log.add(delivery.served)
        self._waiting.pop(delivery, None)
        self._running.discard(delivery)
        while self._waiting and len(self._running) < (self._options.capacity or 0):
            following = next(iter(self._waiting))
            del self._waiting[following]
            self._running.add(following)
            following.start(monotonic_ns())

    # ------------------------------------------------------------------ freeze

    _thawed_ns = 0

    def _freeze(self) -> None:
        self._clock.freeze(round(self._options.stall_for_s * 1e9), self._thaw)

    def _thaw(self) -> None:
        self._thawed_ns = monotonic_ns()
        held, self._held = self._held, []
        for connection, request, arrival_ns in held:
            self.take(connection, request, arrival_ns)


def _bad_key() -> Refusal:
    return Refusal(401, "Incorrect API key provided", code="invalid_api_key")


def _read_body(request: Request) -> dict[str, Any]:
    data = request.body
    try:
        # UTF-8, as nearly always: json.loads would look for the encoding first.
        is_utf8 = data[:1] == b"{" and data[1:2] != b"\0"
        body = _decode(data.decode("utf-8", "surrogatepass")) if is_utf8 else json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refusal(400, "the body must be a JSON object")
    return body
