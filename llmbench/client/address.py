"""A base URL as users paste it, made into where to connect and which paths to ask. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from llmbench.errors import UsageError

API_PATHS = {"chat": "chat/completions", "completions": "completions", "responses": "responses"}
_PASTED = (*API_PATHS.values(), "models")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the server is. `root` is the path before `/v1`, without a trailing slash (often empty); `query`
    goes with every request (a gateway's `api-version=…`).
    """

    tls: bool
    host: str
    port: int
    root: str
    unix_socket: str | None = None
    query: str = ""

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.tls else 80
        return host if self.port == default else f"{host}:{self.port}"

    @property
    def base(self) -> str:
        """`http://host:port/root`, without `/v1`."""
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.root}"

    def path(self, api: str) -> str:
        """The request path of an API ("chat", "completions", "responses")."""
        query = f"?{self.query}" if self.query else ""
        return f"{self.root}/v1/{API_PATHS[api]}{query}"

    def url(self, api: str) -> str:
        """The whole URL of an API, as shown to a user."""
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.path(api)}"


def parse_address(url: str, unix_socket: str | None = None) -> Address:
    """Takes a base URL with or without `/v1`, a trailing slash, or a pasted endpoint path.

    Raises UsageError naming the remedy.
    """
    text = url.strip()
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise UsageError(f"target.url: {url}: {error}; write http://HOST:PORT") from error
    if parts.scheme not in ("http", "https"):
        raise UsageError(f"target.url: {url}: the scheme is {parts.scheme!r}; use http:// or https://")
    if "[" not in parts.netloc and parts.netloc.rpartition("@")[2].count(":") > 1:
        raise UsageError(f"target.url: {url}: an IPv6 address needs brackets, as in http://[::1]:8000")
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"target.url: {url}: {error}; a port is a number from 1 to 65535") from error
    if not host:
        raise UsageError(f"target.url: {url}: no host; write http://HOST:PORT")
    tls = parts.scheme == "https"
    return Address(
        tls=tls,
        host=host,
        port=port or (443 if tls else 80),
        root=_root_path(parts.path),
        unix_socket=unix_socket,
        query=parts.query,
    )


def _root_path(path: str) -> str:
    trimmed = path.rstrip("/")
    for tail in _PASTED:
        if trimmed.endswith(f"/v1/{tail}"):
            trimmed = trimmed[: -len(tail) - 1]
    if trimmed.endswith("/v1") or trimmed == "v1":
        trimmed = trimmed[: -len("/v1")]
    return trimmed.rstrip("/")
