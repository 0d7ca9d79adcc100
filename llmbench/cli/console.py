"""The standard streams of the command line: safe where not every character can be shown."""

from __future__ import annotations

import codecs
import sys
from typing import Final

# What a summary may hold beyond ASCII, and how it reads where only ASCII can be shown.
PLAIN: Final[dict[str, str]] = {
    "±": "+/-",
    "≤": "<=",
    "≥": ">=",
    "×": "x",
    "−": "-",
    "–": "-",
    "—": "-",
    "─": "-",
    "━": "=",
    "│": "|",
    "…": "...",
    "µ": "u",
    "∞": "inf",
    "→": "->",
    "✓": "ok",
    "·": ".",
    **dict(zip("▁▂▃▄▅▆▇█", "._-~=+*#", strict=True)),
}


def degrade(error: UnicodeError) -> tuple[str | bytes, int]:
    """A codec error handler: the plain form of what cannot be encoded, else a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    plain = "".join(PLAIN.get(character, "?") for character in error.object[error.start : error.end])
    return plain, error.end


def prepare_streams() -> None:
    """Never fail on a character: stdout and stderr degrade to plain text in a locale that cannot show it."""
    codecs.register_error("llmbench.degrade", degrade)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="llmbench.degrade")
