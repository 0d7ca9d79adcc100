"""Which values are secret, and how they are masked.

A secret is the API key, a header whose name says so (Authorization, api-key, x-api-key, cookie …), or a value
under such a name in the request body. Masked values read `***` in everything llmbench writes.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "***"
_SHORTEST_SCRUBBED = 4  # scrubbing shorter strings would tear ordinary words apart and protect nothing
_SECRET_NAME = re.compile(
    r"^(proxy-)?authorization$|^(set-)?cookie$|(^|[-_.])(api|access|auth|secret|subscription)[-_.]?(key|token)$|^apikey$"
    r"|(^|[-_.])(password|passwd|secret|bearer|credentials?)$|(^|[-_.])auth$",
    re.IGNORECASE,
)


def is_secret_name(name: str) -> bool:
    """Whether a header, body key or query parameter of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def masked(value: Any, name: str = "") -> Any:
    """`value` with every secret inside it replaced by `***`; `name` is the key it stands under."""
    if is_secret_name(name) and value not in (None, ""):
        return MASK
    if isinstance(value, Mapping):
        return {key: masked(item, str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    return value


def secrets_in(value: Any, name: str = "") -> list[str]:
    """Every secret string inside `value`, which stands under the key `name`."""
    if is_secret_name(name):
        return _spellings(value)
    if isinstance(value, Mapping):
        return [secret for key, item in value.items() for secret in secrets_in(item, str(key))]
    if isinstance(value, list | tuple):
        return [secret for item in value for secret in secrets_in(item)]
    return []


def scrub_list(secrets: Iterable[str]) -> tuple[str, ...]:
    """The secrets worth scrubbing, longest first so that no part of one is left over."""
    kept = {secret for secret in secrets if secret != MASK and len(secret) >= _SHORTEST_SCRUBBED}
    return tuple(sorted(kept, key=lambda secret: (-len(secret), secret)))


def scrub(text: str, secrets: Iterable[str]) -> str:
    """`text` with every one of `secrets` replaced by `***`."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


def _spellings(value: Any) -> list[str]:
    """A secret as given, and the parts of it a server may echo alone (the token behind `Bearer`)."""
    if isinstance(value, Mapping):
        return [part for item in value.values() for part in _spellings(item)]
    if isinstance(value, list | tuple):
        return [part for item in value for part in _spellings(item)]
    if not isinstance(value, str) or not value.strip():
        return [str(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []
    text = value.strip()
    scheme, _, token = text.partition(" ")
    if not token:
        return [text]
    parts = [text, token.strip()]
    if scheme.lower() == "basic":
        parts += _basic_password(token.strip())
    return parts


def _basic_password(token: str) -> list[str]:
    try:
        user_and_password = base64.b64decode(token, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return []
    _, _, password = user_and_password.partition(":")
    return [user_and_password, password]


class MaskedDict(dict[str, Any]):
    """A dict that shows no secret when printed."""

    def __repr__(self) -> str:
        return repr(masked(dict(self)))
