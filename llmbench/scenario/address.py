"""The target's URL: checked, trimmed to the base that clients append to, freed of credentials."""

from __future__ import annotations

import base64
import ipaddress
import re
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from llmbench.scenario.masking import MASK, is_secret_name

_ENDPOINT = re.compile(r"/(chat/completions|completions|responses|models)/*$")
_API_OF_ENDPOINT = {"chat/completions": "chat", "completions": "completions", "responses": "responses"}


class Address(NamedTuple):
    """A URL as the run uses it, and what was taken out of it."""

    url: str
    authorization: str | None  # a Basic header's value, from user:password@
    api: str | None  # the API whose path was pasted along


def parse_address(value: object) -> Address:
    """Checks an http or https URL; raises `ValueError` with the remedy, which repeats no credentials."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("not a URL; write http://127.0.0.1:8000")
    text = value.strip()
    _check_spelling(text)
    try:
        parts = urlsplit(text)
        port = parts.port
        host = parts.hostname
    except ValueError as error:
        raise ValueError(_netloc_remedy(text, str(error))) from None
    if not host:
        raise ValueError("no host; write http://127.0.0.1:8000")
    if port == 0:
        raise ValueError("port 0 cannot be reached; write 1 to 65535")
    if parts.fragment:
        raise ValueError("a #fragment has no meaning here; remove it")
    for name, _ in parse_qsl(parts.query):
        if is_secret_name(name) or name.lower() in ("key", "token"):
            raise ValueError(f"keep the secret {name} out of the URL; use target.api_key or target.headers")
    endpoint = _ENDPOINT.search(parts.path)
    path = parts.path[: endpoint.start()] if endpoint else parts.path
    netloc = parts.netloc.rpartition("@")[2]
    url = urlunsplit((parts.scheme.lower(), netloc, path.rstrip("/"), parts.query, ""))
    api = _API_OF_ENDPOINT.get(endpoint[1]) if endpoint else None
    return Address(url, _basic(parts.username, parts.password), api)


def mask_address(text: str) -> str:
    """The text of a URL with its user:password@ masked, however broken the URL is."""
    return re.sub(r"^(\s*[A-Za-z][A-Za-z0-9+.-]*://)?[^/?#\s]*@", rf"\1{MASK}@", text)


def _basic(user: str | None, password: str | None) -> str | None:
    if user is None and password is None:
        return None
    pair = f"{unquote(user or '')}:{unquote(password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


def _check_spelling(text: str) -> None:
    if any(character.isspace() or ord(character) < 32 for character in text):
        raise ValueError("a URL holds no blanks; write http://127.0.0.1:8000")
    if _is_ipv6(text):
        raise ValueError(f"an IPv6 address needs a scheme and brackets; write http://[{text}]:8000")
    scheme, separator, rest = text.partition("://")
    if not separator:
        remedy = (
            f"http://{text}" if "@" not in text and re.match(r"[\w.\[-]", text) else "http://127.0.0.1:8000"
        )
        raise ValueError(f"no scheme; write {remedy}")
    if scheme.lower() not in ("http", "https"):
        raise ValueError("the scheme must be http or https")
    netloc = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    if netloc.count(":") > 1 and not netloc.startswith("["):
        host, _, port = netloc.rpartition(":")
        # ::1:8000 is itself an address; a last group that looks like a port most likely is one.
        if _is_ipv6(host) and port.isdigit() and len(port) >= 4:
            raise ValueError(f"an IPv6 address needs brackets; write {scheme.lower()}://[{host}]:{port}")
        host = netloc if _is_ipv6(netloc) else "::1"
        raise ValueError(f"an IPv6 address needs brackets; write {scheme.lower()}://[{host}]:8000")


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _netloc_remedy(text: str, problem: str) -> str:
    if "port" in problem.lower():
        return "the port must be a number from 1 to 65535, as in http://127.0.0.1:8000"
    if "[" in text or "]" in text:
        return "not an IPv6 address in brackets; write http://[::1]:8000"
    return "not a URL; write http://127.0.0.1:8000"
