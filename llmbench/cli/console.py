"""The standard streams of the command line: safe where not every character can be shown, plain if asked."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

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


def print_summary(summary: Mapping[str, Any], *, report_path: Path) -> None:
    """The summary for people, coloured where stdout shows colours and NO_COLOR does not forbid them."""
    from llmbench.report.terminal import render_summary

    color = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    sys.stdout.write(render_summary(summary, color=color, report_path=str(report_path)))


def print_json(document: Mapping[str, Any]) -> None:
    """Strict JSON in UTF-8, whatever the locale; NaN and infinity become null."""
    import orjson

    sys.stdout.flush()
    sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    sys.stdout.buffer.flush()
