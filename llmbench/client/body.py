"""Bodies as servers really send them: JSON or not, UTF-8 or nearly, errors in many shapes. No I/O."""

from __future__ import annotations

from typing import Any

import orjson

EXCERPT = 300
"""Characters of a body that an error message quotes."""


def excerpt(body: bytes) -> str:
    """The start of a body on one line, for a message."""
    text = body[: EXCERPT * 4].decode("utf-8", "replace")
    return " ".join(text.split())[:EXCERPT]


def loads(data: bytes) -> Any:
    """JSON, or None. Bytes that are not UTF-8 are replaced rather than refused."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return orjson.loads(data.decode("utf-8", "replace"))
    except orjson.JSONDecodeError:
        return None


def error_text(document: Any) -> str | None:
    """The message of an error object in any of the shapes servers use, or None when there is no error."""
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    if isinstance(error, dict):
        message = error.get("message") or error.get("msg") or orjson.dumps(error).decode()
        code = error.get("code") or error.get("type")
        return f"{message} ({code})" if code else str(message)
    if error:
        return str(error)
    if document.get("object") == "error" or "detail" in document:
        return str(document.get("message") or document.get("detail"))
    return None
