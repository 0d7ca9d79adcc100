"""Lines for people, folded to the width of a terminal without breaking what is copied from them."""

from __future__ import annotations

import re
import textwrap
from typing import Final

WIDTH: Final = 80
_GLUE: Final = "\x1f"
_BEFORE_ARGUMENT: Final = re.compile(
    r"\b(curl|pip install|llmbench [a-z]+(?: -[\w-]+)*|(?<!\w)--(?:set|url|out)) (?=\S)"
)


def fold(text: str, width: int = WIDTH) -> str:
    """`text` with every line above `width` columns continued below, two columns further in.

    Paths, URLs and a command with its first argument stay whole, and may alone be longer.
    """
    return "\n".join(part for line in text.split("\n") for part in _fold_line(line, width))


def _fold_line(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip(" "))]
    glued = _BEFORE_ARGUMENT.sub(lambda found: found[0].replace(" ", _GLUE), line)
    parts = textwrap.wrap(
        glued.strip(" "),
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part.replace(_GLUE, " ") for part in parts] or [line]
