"""What is asked of the server off the hot path: is it there, which model, what it understands, how it counts.

These requests are few, sequential and not part of any measurement.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import orjson

from llmbench.client.body import an_object, error_text, objects
from llmbench.client.choose import NO_TLS
from llmbench.client.diagnose import PATIENCE_S, lasting_problem, protocol_problem
from llmbench.client.lean_httpx import httpx
from llmbench.client.wire import BodyStyle, Destination, render_body
from llmbench.errors import TargetRefused, TargetUnreachable
from llmbench.scenario.masking import scrub, scrub_list, secrets_in


class CountTokens(Protocol):
    """Counts a request's prompt tokens, its system message included when there is one."""

    def __call__(self, text: str, system: str | None = None, /) -> Awaitable[int | None]: ...


_RETRY_S = 0.25
_NOT_FOR_PROBES = frozenset(
    [
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "min_tokens",
        "n",
    ]
)  # what a user sets for the run would make a probe long, or a stream
_LOADING = frozenset({502, 503, 504})  # a gateway or a server that is still starting


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do about a target that does not serve, in the words of whoever asked: a scenario or Python."""

    unreachable: str
    refused: str
    nameless: str
    key_refused: str


FOR_SCENARIOS = Advice(
    unreachable="Give it longer with --set target.ready_timeout=5m, or try llmbench mock.",
    refused="Set target.api_key: ${OPENAI_API_KEY} (or target.headers) in the scenario.",
    nameless="Name it with --set target.model=NAME.",
    key_refused="The key was refused: is target.api_key (or target.headers) this server's, and still valid?",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What the server says of itself; `model` is the one that requests will name."""

    model: str
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    owned_by: str | None = None
    version: str | None = None
    server_header: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class Control:
    """A conversation with one server outside the measurement. An async context manager."""

    def __init__(
        self,
        destination: Destination,
        *,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 60.0,
        proxy: str | None = None,
        advice: Advice = FOR_SCENARIOS,
    ) -> None:
        self._advice = advice
        self._destination = destination
        self._tls = tls
        self._is_direct = proxy is None  # what is wrong behind a proxy is the proxy's to say
        self._client = httpx.AsyncClient(
            base_url=destination.address.base,
            transport=httpx.AsyncHTTPTransport(
                verify=tls or NO_TLS,
                uds=destination.address.unix_socket,
                proxy=proxy,
            ),
            headers=[
                (name, value)
                for name, value in destination.headers
                if name.lower() not in ("accept", "content-type")
            ],
            timeout=timeout_s,
        )
        self.num_probes = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def wait_ready(
        self,
        timeout_s: float,
        *,
        alive: Callable[[], None] = lambda: None,
        waiting: Callable[[float], None] = lambda _: None,
    ) -> httpx.Response:
        """Asks /v1/models until the server answers; returns that answer.

        `alive` may raise when the server's process has died; `waiting` is told the seconds waited so far.
        Raises TargetUnreachable when nothing answered in time, and at once where waiting cannot help.
        """
        start = time.monotonic()
        while True:
            alive()
            problem = ""
            left = timeout_s - (time.monotonic() - start)
            await self._rule_out_lasting_problems(left)
            try:
                left = timeout_s - (time.monotonic() - start)
                response = await self._client.get("/v1/models", timeout=min(5.0, max(left, _RETRY_S)))
                if response.status_code not in _LOADING:
                    return response
                problem = f"answers HTTP {response.status_code}"
            except httpx.ConnectError as error:
                problem = _connect_problem(error)
            except httpx.TimeoutException:
                problem = "does not answer"
            except httpx.HTTPError as error:
                problem = f"does not speak HTTP ({str(error) or type(error).__name__})"
                await self._rule_out_lasting_problems(left, answered=True)
            waited = time.monotonic() - start
            if waited >= timeout_s:
                raise TargetUnreachable(self._unreachable(problem, timeout_s))
            waiting(waited)
            await asyncio.sleep(min(_RETRY_S, max(0.0, timeout_s - waited)))

    async def _rule_out_lasting_problems(self, left_s: float, *, answered: bool = False) -> None:
        """Raises TargetUnreachable for what no waiting mends: a name, a certificate, http for https."""
        if not self._is_direct:
            return
        address, patience_s = self._destination.address, min(PATIENCE_S, max(left_s, _RETRY_S))
        if answered:
            problem = await protocol_problem(address, patience_s=patience_s)
        else:
            problem = await lasting_problem(address, self._tls, patience_s=patience_s)
        if problem:
            raise TargetUnreachable(problem)

    def _unreachable(self, problem: str, timeout_s: float) -> str:
        base = self._destination.address.base
        return (
            f"{base} {problem} (tried for {timeout_s:g} s).\n"
            f"Is the server up?  curl {base}/v1/models\n"
            f"{self._advice.unreachable}"
        )

    async def describe(self, models: httpx.Response, model: str) -> ServerInfo:
        """Chooses the model (`auto`: the first one listed) and gathers what the server says of itself.

        Raises TargetRefused when `auto` cannot be resolved or the key is refused.
        """
        if models.status_code in (401, 403):
            raise TargetRefused(
                f"{models.url} answers HTTP {models.status_code}: {self._said(models)}\n"
                f"{self._advice.key_refused if self._secrets else self._advice.refused}"
            )
        listed = _listed_models(models)
        if model == "auto" and not listed:
            raise TargetRefused(
                f"{models.url} answers HTTP {models.status_code} and names no model: {self._said(models)}\n"
                f"{self._advice.nameless}"
            )
        chosen = str(listed[0].get("id")) if model == "auto" else model
        entry = next((one for one in listed if one.get("id") == chosen), {})
        length = entry.get("max_model_len")
        return ServerInfo(
            model=chosen,
            models=tuple(str(one.get("id")) for one in listed),
            max_model_len=length if isinstance(length, int) else None,
            owned_by=entry.get("owned_by") if isinstance(entry.get("owned_by"), str) else None,
            version=await self._version(),
            server_header=models.headers.get("server"),
        )

    def _said(self, response: httpx.Response) -> str:
        """The server's own error message, else the start of the body; a server may repeat the key in it."""
        text = error_text(_document(response)) or response.text
        return scrub(" ".join(text[:600].split())[:200], scrub_list(self._secrets)) or "an empty body"

    @property
    def _secrets(self) -> list[str]:
        """The keys that requests carry."""
        return secrets_in(dict(self._destination.headers))

    async def _version(self) -> str | None:
        try:
            document = (await self._client.get("/version", timeout=5.0)).json()
        except (httpx.HTTPError, ValueError):
            return None
        version = document.get("version") if isinstance(document, dict) else None
        return str(version) if version is not None else None

    async def accepts_ignore_eos(self, style: BodyStyle) -> bool:
        """Whether a one-token request that carries `ignore_eos` is taken. Servers that do not know the key
        refuse it or ignore it; only a refusal matters.
        """
        response = await self._probe(style, "Hi", {"ignore_eos": True})
        return response is not None and response.status_code < 400

    async def counts(self, style: BodyStyle) -> tuple[Literal["tokenize", "usage"], CountTokens]:
        """How this server counts a prompt, template included: `/tokenize` where it counts whole requests
        (vLLM's form), else `usage.prompt_tokens` of a one-token answer. The count is None when it does not.
        """
        if await self._tokenize(style, "the") is not None:
            return "tokenize", partial(self._tokenize, style)
        return "usage", partial(self._count_by_usage, style)

    async def _count_by_usage(self, style: BodyStyle, text: str, system: str | None = None) -> int | None:
        response = await self._probe(style, text, {}, system)
        if response is None or response.status_code >= 400:
            return None
        usage = an_object(_document(response).get("usage"))
        count = usage.get("prompt_tokens", usage.get("input_tokens"))
        return count if isinstance(count, int) and count > 0 else None

    async def _tokenize(self, style: BodyStyle, text: str, system: str | None = None) -> int | None:
        body: dict[str, Any] = {"model": style.model}
        if style.api != "completions":  # the responses API applies the chat template as well
            body["messages"] = _messages(text, system)
        else:
            body["prompt"] = text
        try:
            response = await self._client.post("/tokenize", json=body)
        except httpx.HTTPError:
            return None
        count = _document(response).get("count") if response.status_code == 200 else None
        return count if isinstance(count, int) and count > 0 else None

    async def _probe(
        self, style: BodyStyle, text: str, extra: dict[str, Any], system: str | None = None
    ) -> httpx.Response | None:
        """One small request, not streamed. None when the connection failed."""
        self.num_probes += 1
        kept = {key: value for key, value in style.extra.items() if key not in _NOT_FOR_PROBES}
        plain = BodyStyle(
            api=style.api, model=style.model, stream=False, usage=False, extra={**kept, **extra}
        )
        messages = None if system is None else _messages(text, system)
        payload = render_body(plain, prompt=text, messages=messages, max_tokens=1)
        try:
            return await self._client.post(
                self._destination.address.url(style.api),
                content=payload,
                headers={"Content-Type": "application/json"},
            )
        except httpx.HTTPError:
            return None


def _messages(text: str, system: str | None) -> list[dict[str, str]]:
    user = {"role": "user", "content": text}
    return [user] if system is None else [{"role": "system", "content": system}, user]


def _connect_problem(error: httpx.ConnectError) -> str:
    text = str(error)
    if "Name or service" in text or "nodename" in text or "getaddrinfo" in text or "resolution" in text:
        return "cannot be resolved to an address"
    if "certificate" in text.lower() or "ssl" in text.lower():
        return f"refused the TLS handshake: {text} (target.tls_verify)"
    return "refused the connection" if "refused" in text or "attempts failed" in text else f"fails: {text}"


def _document(response: httpx.Response) -> dict[str, Any]:
    try:
        document = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _listed_models(response: httpx.Response) -> list[dict[str, Any]]:
    data = _document(response).get("data") if response.status_code == 200 else None
    return [entry for entry in objects(data) if isinstance(entry.get("id"), str)]
