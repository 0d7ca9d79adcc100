"""The standard streams of the command line: what cannot be shown or written there is no crash.

A character that the locale lacks degrades to plain text. Messages are folded to 80 columns. Output that is
lost (a full disk, a reader that left) is an error of its own, raised once; what comes after goes nowhere.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from llmbench.errors import UsageError
from llmbench.fold import fold

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

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


class OutputLost(UsageError):
    """stdout takes nothing more: its disk is full, or its terminal is gone."""


class ReaderLeft(OutputLost):
    """Nobody reads stdout any more (`llmbench … | head`). No OSError, which others would deal with."""


class Stdout(io.FileIO):
    """The descriptor of stdout. Raises OutputLost once, and takes whatever comes after."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BlockingIOError:
            raise
        except OSError as error:
            _to_nowhere(self.fileno())
            kind = ReaderLeft if isinstance(error, BrokenPipeError) else OutputLost
            raise kind(f"stdout cannot be written ({error.strerror})") from error


class Stderr(io.FileIO):
    """The descriptor of stderr. What it does not take is lost: there is nobody left to tell."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BlockingIOError:
            raise
        except OSError:
            _to_nowhere(self.fileno())
            return memoryview(data).nbytes


def _to_nowhere(descriptor: int) -> None:
    """Drops whatever is written there from now on, the interpreter's last flush too."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def prepare_streams() -> None:
    """Never fail on a character, on a full disk or on a stream that was closed before the start."""
    codecs.register_error("llmbench.degrade", degrade)
    sys.stdout = _prepared(sys.stdout, Stdout)
    sys.stderr = _prepared(sys.stderr, Stderr)


def _prepared(stream: TextIO | None, kind: type[Stdout | Stderr]) -> TextIO:
    """The stream over a descriptor of that kind; a stand-in of a test stays as it is."""
    if stream is None:  # `>&-`
        return Path(os.devnull).open("w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    raw = getattr(stream.buffer, "raw", stream.buffer)
    if not isinstance(raw, io.FileIO) or isinstance(raw, kind) or raw.fileno() > 2:
        stream.reconfigure(errors="llmbench.degrade")
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(kind(raw.fileno(), "wb", closefd=False)),
        encoding=stream.encoding,
        errors="llmbench.degrade",
        line_buffering=stream.line_buffering,
    )


def say(message: str) -> None:
    """A message on stderr, folded to the width of a terminal."""
    print(fold(message), file=sys.stderr, flush=True)


@contextlib.contextmanager
def output_of_kept_results(summary_md: Path) -> Iterator[None]:
    """Around the printing of a summary that is on disk: a lost stdout costs neither the run nor its code."""
    try:
        yield
        sys.stdout.flush()
    except ReaderLeft:
        return
    except OutputLost as error:
        say(f"{error}; the summary is in {summary_md}")


def same_place(first: TextIO, second: TextIO) -> bool:
    """Whether two streams end in the same terminal, pipe or file."""
    try:
        return os.path.sameopenfile(first.fileno(), second.fileno())
    except (OSError, ValueError):
        return False


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
