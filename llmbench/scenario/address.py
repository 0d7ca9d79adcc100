"""The target's URL, read in one place: checked, made into where to connect, freed of credentials. No I/O.

A URL may come with or without `/v1`, with a trailing slash, or as the pasted path of an endpoint. Without a
scheme, `HOST:PORT` means `http://HOST:PORT`; a name alone is refused, since a key would travel to a public
host unencrypted.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

from llmbench.scenario.masking import MASK, is_secret_name

API_PATHS = {"chat": "chat/completions", "completions": "completions", "responses": "responses"}
_API_OF_PATH = {path: api for api, path in API_PATHS.items()}
_ENDPOINT = re.compile(rf"/({'|'.join(API_PATHS.values())}|models)/*$")
_SCHEME_SLIP = re.compile(
    r"(https?):/*(?=[^/\d])", re.IGNORECASE
)  # http:host and http:/host, not localhost:80
_EXAMPLE = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the server is, and what was taken out of the URL.

    `text` is the URL as a scenario keeps and shows it: scheme, host as spelled, the path without an endpoint,
    the query. `root` is the path before `/v1`, without a trailing slash (often empty); `query` goes with
    every request (a gateway's `api-version=…`). `authorization` is the value of a Basic header, from
    `user:password@`; `pasted_api` the API whose path was pasted along.
    """

    text: str
    tls: bool
    host: str
    port: int
    root: str
    query: str = ""
    unix_socket: str | None = None
    authorization: str | None = None
    pasted_api: str | None = None

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

    def __repr__(self) -> str:
        """Without the credentials."""
        return f"Address({self.text})"


def parse_address(value: object, unix_socket: str | None = None) -> Address:
    """Reads an http or https URL; raises `ValueError` with the remedy, which repeats no credentials."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"not a URL; write {_EXAMPLE}")
    text = _with_scheme(value.strip())
    try:
        parts = urlsplit(text)
        port = parts.port
        host = parts.hostname
    except ValueError as error:
        raise ValueError(_netloc_remedy(text, str(error))) from None
    _check_parts(parts, host, port)
    assert host is not None
    endpoint = _ENDPOINT.search(parts.path)
    path = (parts.path[: endpoint.start()] if endpoint else parts.path).rstrip("/")
    netloc = parts.netloc.rpartition("@")[2]
    tls = parts.scheme == "https"
    return Address(
        text=urlunsplit((parts.scheme, netloc, path, parts.query, "")),
        tls=tls,
        host=host,
        port=port or (443 if tls else 80),
        root=path.removesuffix("/v1").rstrip("/"),
        query=parts.query,
        unix_socket=unix_socket,
        authorization=_basic(parts.username, parts.password),
        pasted_api=_API_OF_PATH.get(endpoint[1]) if endpoint else None,
    )


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def mask_address(text: str) -> str:
    """The text of a URL with its user:password@ masked, however broken the URL is."""
    return re.sub(r"^(\s*[A-Za-z][A-Za-z0-9+.-]*://)?[^/?#\s]*@", rf"\1{MASK}@", text)


def has_credentials(text: str) -> bool:
    """Whether a URL, right or wrong, carries user:password@."""
    return mask_address(text) != text


def _basic(user: str | None, password: str | None) -> str | None:
    if user is None and password is None:
        return None
    pair = f"{unquote(user or '')}:{unquote(password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


def _with_scheme(text: str) -> str:
    """The URL with its scheme in front, once its spelling is one that can be taken apart."""
    if any(character.isspace() or ord(character) < 32 for character in text):
        raise ValueError(f"a URL holds no blanks; write {_EXAMPLE}")
    if _is_ipv6(text):
        raise ValueError(f"an IPv6 address needs a scheme and brackets; write http://[{text}]:8000")
    scheme, separator, rest = text.partition("://")
    if not separator or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        scheme, rest = "http", text
        _check_bare(text)
    if scheme.lower() not in ("http", "https"):
        raise ValueError("the scheme must be http or https")
    netloc = _netloc(rest)
    if netloc.count(":") > 1 and not netloc.startswith("["):
        host, _, port = netloc.rpartition(":")
        # ::1:8000 is itself an address; a last group that looks like a port most likely is one.
        if _is_ipv6(host) and port.isdigit() and len(port) >= 4:
            raise ValueError(f"an IPv6 address needs brackets; write {scheme.lower()}://[{host}]:{port}")
        host = netloc if _is_ipv6(netloc) else "::1"
        raise ValueError(f"an IPv6 address needs brackets; write {scheme.lower()}://[{host}]:8000")
    return f"{scheme.lower()}://{rest}"


def _check_bare(text: str) -> None:
    """Text without a scheme: HOST:PORT is clear, anything else is better asked than guessed."""
    slip = _SCHEME_SLIP.match(text)
    if slip:
        right = f"{slip[1].lower()}://{text[slip.end() :]}"
        raise ValueError(f"a scheme ends in ://; write {_EXAMPLE if '@' in text else right}")
    netloc = _netloc(text)
    host, _, port = netloc.rpartition(":")
    if not (netloc.partition(":")[0] or netloc.startswith("[")):
        raise ValueError(f"no host; write {_EXAMPLE}")
    if host and (port != "443" or netloc.endswith("]")):
        return
    rest = text.rpartition("@")[2]
    if netloc in ("localhost", "127.0.0.1", "[::1]"):
        raise ValueError(f"no port; write {rest.replace(netloc, f'{netloc}:8000', 1)}")
    secure = rest.replace(":443", "", 1)
    raise ValueError(f"no scheme; write https://{secure}, or http://{rest}")


def _netloc(rest: str) -> str:
    """Host and port of what follows the scheme."""
    return re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]


def _check_parts(parts: SplitResult, host: str | None, port: int | None) -> None:
    if not host:
        raise ValueError(f"no host; write {_EXAMPLE}")
    if port == 0:
        raise ValueError("port 0 cannot be reached; write 1 to 65535")
    if parts.fragment:
        raise ValueError("a #fragment has no meaning here; remove it")
    for name, _ in parse_qsl(parts.query):
        if is_secret_name(name) or name.lower() in ("key", "token"):
            raise ValueError(f"keep the secret {name} out of the URL; use target.api_key or target.headers")


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _netloc_remedy(text: str, problem: str) -> str:
    if "port" in problem.lower():
        return f"the port must be a number from 1 to 65535, as in {_EXAMPLE}"
    if "[" in text or "]" in text:
        return "not an IPv6 address in brackets; write http://[::1]:8000"
    return f"not a URL; write {_EXAMPLE}"
