"""Who may ask, how often, and how an error looks: the gate in front of every endpoint.

Whatever an endpoint raises leaves here in OpenAI's shape; what nobody expected is logged, and is a 500
that says so.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from reference_engine.answers import error_body
from reference_engine.errors import EngineError, RequestError

logger = logging.getLogger(__name__)
Endpoint = Callable[[web.Request], Awaitable[web.StreamResponse]]
OPEN_PATHS = ("/health", "/version", "/metrics")  # need no key, so that probes and scrapers can ask


class TokenBucket:
    """At most `rate` requests a second over time; after a pause, a second's worth (at least 1) at once."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._size = max(1.0, rate)
        self._left = self._size
        self._latest_s = -math.inf

    def wait_s(self, now_s: float) -> float:
        """0 if a request may pass, which is then counted; else the seconds until one may."""
        refill = (now_s - self._latest_s) * self._rate
        self._left = min(self._size, self._left + refill)
        self._latest_s = now_s
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self._rate


class Gate:
    """The key and the rate limit. There is one key at most, so the limit is one for all requests."""

    def __init__(self, *, api_key: str | None = None, rate_limit: float | None = None) -> None:
        self._api_key = api_key
        self._bucket = TokenBucket(rate_limit) if rate_limit is not None else None

    def guard(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint behind the gate, with every error in OpenAI's shape."""

        async def answer(http: web.Request) -> web.StreamResponse:
            try:
                self._check_key(http)
                self._check_rate(http)
                return await endpoint(http)
            except RequestError as error:
                return error_response(str(error), status=400, param=error.param)
            except EngineError as error:
                return error_response(str(error), status=500)
            except web.HTTPException as error:
                if error.content_type == "application/json":
                    raise
                return error_response(f"{http.method} {http.path}: {error.reason}", status=error.status)
            except web.RequestPayloadError as error:
                return error_response(f"the request's body cannot be read: {error}", status=400)
            except ConnectionError:
                raise
            except Exception:
                logger.exception("%s %s failed", http.method, http.path)
                return error_response("the server made a mistake; its log says more", status=500)

        return answer

    def _check_key(self, http: web.Request) -> None:
        if self._api_key is None or http.path in OPEN_PATHS:
            return
        given = http.headers.get("Authorization", "")
        # Headers may hold bytes that are no UTF-8; they arrive as surrogates.
        if not hmac.compare_digest(
            given.encode("utf-8", "surrogateescape"), f"Bearer {self._api_key}".encode()
        ):
            message = "a valid key is needed: Authorization: Bearer ..."
            headers = {"WWW-Authenticate": "Bearer"}
            raise refusal(web.HTTPUnauthorized, message, code="invalid_api_key", headers=headers)

    def _check_rate(self, http: web.Request) -> None:
        if self._bucket is None or http.method != "POST":
            return
        wait_s = self._bucket.wait_s(time.monotonic())
        if wait_s > 0:
            headers = {"Retry-After": str(math.ceil(wait_s))}  # whole seconds (RFC 9110, 10.2.3)
            message = f"too many requests; the next may come in {wait_s:.3f} s"
            raise refusal(web.HTTPTooManyRequests, message, code="rate_limit_exceeded", headers=headers)


class _Briefly(logging.Filter):
    """aiohttp logs a traceback for whatever is not HTTP. It is the client's mistake: one line is enough."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            first_line = error.message.strip().partition("\n")[0]
            record.msg, record.args = "refused what is not HTTP: %s", (first_line,)
            record.levelno, record.levelname = logging.INFO, "INFO"
            record.exc_info = record.exc_text = None
        return True


def log_bad_http_briefly() -> None:
    """From now on, in this process."""
    log = logging.getLogger("aiohttp.server")
    if not any(isinstance(one, _Briefly) for one in log.filters):
        log.addFilter(_Briefly())


def refusal(
    kind: type[web.HTTPError],
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> web.HTTPError:
    """An exception that is an answer in OpenAI's shape."""
    body = error_body(message, status=kind.status_code, param=param, code=code)
    return kind(text=json.dumps(body), content_type="application/json", headers=headers)


def error_response(message: str, *, status: int, param: str | None = None) -> web.Response:
    """The same as a value."""
    return web.json_response(error_body(message, status=status, param=param), status=status)
