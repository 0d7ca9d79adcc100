"""The standard streams of the command line: safe where not every character can be shown."""

from __future__ import annotations

import codecs
import sys
from typing import Final, TextIO

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


def is_terminal(stream: TextIO) -> bool:
    """Whether a block on this stream can be rewritten (a terminal, and not a dumb one)."""
    import os

    return stream.isatty() and os.environ.get("TERM", "") != "dumb"
