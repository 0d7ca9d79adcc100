"""Bodies as servers really send them: JSON or not, UTF-8 or nearly, errors in many shapes. No I/O."""

from __future__ import annotations

import json
from typing import Any

import orjson

EXCERPT = 300
"""Characters of a body that an error message quotes."""


def excerpt(body: bytes) -> str:
    """The start of a body on one line, for a message."""
    text = body[: EXCERPT * 4].decode("utf-8", "replace")
    return " ".join(text.split())[:EXCERPT]


def loads(data: bytes) -> Any:
    """JSON, or None. What servers send that is nearly JSON is read too: bytes that are not UTF-8 and halves
    of a surrogate pair (both replaced), NaN and Infinity, raw control characters.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return _loads_nearly(data) if data.lstrip()[:1] in (b"{", b"[") else None


def _loads_nearly(data: bytes) -> Any:
    try:
        return _whole_text(json.loads(data.decode("utf-8", "replace"), strict=False))
    except (ValueError, RecursionError):
        return None


def _whole_text(value: Any) -> Any:
    """The value with text that can be written as UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole_text(item) for item in value]
    if isinstance(value, dict):
        return {_whole_text(key): _whole_text(item) for key, item in value.items()}
    return value


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects of what should be a list of objects; whatever else it holds or is, is left out."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def an_object(value: Any) -> dict[str, Any]:
    """What should be an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def a_text(value: Any) -> str:
    """What should be a text, as it is or as the text parts of a list (content parts); else ""."""
    if isinstance(value, list):
        return "".join(a_text(part.get("text")) for part in objects(value))
    return value if isinstance(value, str) else ""


def error_text(document: Any) -> str | None:
    """The message of an error object in any of the shapes servers use, or None when there is no error."""
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    if isinstance(error, dict):
        message = error.get("message") or error.get("msg") or json.dumps(error, ensure_ascii=False)
        code = error.get("code") or error.get("type")
        return f"{message} ({code})" if code else str(message)
    if error:
        return str(error)
    if document.get("object") == "error" or document.get("type") == "error" or "detail" in document:
        return str(document.get("message") or document.get("detail"))
    return None
