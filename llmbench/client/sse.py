"""Server-sent events: bytes in, events out (WHATWG HTML, section 9.2). No I/O, no clock.

`split_events` takes the whole body of a finished response as the chunks it arrived in and tells, for
each event, its name, its data and the offset of the byte that completed it. Offsets, not times, so
that the caller can attribute an event to the read that completed it.

Only CR, LF and CRLF end a line: U+2028 and its like are text. Nothing limits the length of a line,
and the work is linear in the number of bytes.
"""

from __future__ import annotations

import re
import zlib
from itertools import accumulate
from typing import NamedTuple

# atomic: once taken, a CRLF is never split into a CR and a LF that would make a blank line of it
_BLANK_LINE = re.compile(rb"(?>\r\n?|\n)(?>\r\n?|\n)")
_LINE_END = re.compile(rb"\r\n?|\n")
_DONE = re.compile(rb"(?:\A|[\r\n])data: ?\[DONE\]")
_BOM = b"\xef\xbb\xbf"
_FIELD = re.compile(rb"\s*(?:\xef\xbb\xbf)?(?:data|event|id|retry)?:")


class Event(NamedTuple):
    """One event with data. `end` is the body offset just past the byte that completed it."""

    name: bytes | None
    data: bytes
    end: int


def split_events(body: bytes) -> list[Event]:
    """All events of a body that carry data, in order. Comments and events without data are left out.

    A body that stops without a blank line still yields its last event: many servers forget it.
    """
    shift = 3 if body.startswith(_BOM) else 0
    text = body[shift:] if shift else body
    if b"\r" in text:
        return _split_any(text, shift)
    return _split_lf(text, shift)


def _split_lf(text: bytes, shift: int) -> list[Event]:
    events: list[Event] = []
    end = shift
    pieces = text.split(b"\n\n")
    last = len(pieces) - 1
    for number, piece in enumerate(pieces):
        end += len(piece) + 2
        # the common shape first: one line, `data: …`
        if piece.startswith(b"data: ") and b"\n" not in piece and len(piece) > 6:
            events.append(Event(None, piece[6:], end if number < last else end - 2))
        elif piece:
            event = read_fields(piece.split(b"\n"))
            if event is not None:
                events.append(Event(event[0], event[1], end if number < last else end - 2))
    return events


def _split_any(text: bytes, shift: int) -> list[Event]:
    events: list[Event] = []
    start = 0
    for blank in _BLANK_LINE.finditer(text):
        event = read_fields(_LINE_END.split(text[start : blank.start()]))
        start = blank.end()
        if event is not None:
            # the CR of a CRLF already ends the line: a LF in a later read completes nothing
            done = start - 1 if text[start - 2 : start] == b"\r\n" else start
            events.append(Event(event[0], event[1], shift + done))
    if start < len(text):
        event = read_fields(_LINE_END.split(text[start:]))
        if event is not None:
            events.append(Event(event[0], event[1], shift + len(text)))
    return events


def read_fields(lines: list[bytes]) -> tuple[bytes | None, bytes] | None:
    """The (name, data) of one event's lines; None when it has no data (comments, pings)."""
    name: bytes | None = None
    data: list[bytes] = []
    for line in lines:
        field, colon, value = line.partition(b":")
        if colon and value.startswith(b" "):
            value = value[1:]
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    if not data:
        return None
    joined = b"\n".join(data)
    return (name, joined) if joined else None


_DONE_TAIL = 64
_CHUNK_FRAMING = re.compile(
    rb"\r\n[0-9A-Fa-f]+(?:;[^\r\n]*)?\r\n"
)  # between two HTTP/1.1 chunks (RFC 9112, 7.1)


def says_done(data: bytes, chunks: list[bytes]) -> bool:
    """Whether `[DONE]` has just come: with the read `data`, the last of whose bytes end `chunks`.

    Cheap where it has not: only the end of the read is looked at, for nothing follows a `[DONE]` but framing.
    A small read may hold the end of a `[DONE]` that was cut anywhere, also between two HTTP chunks.
    """
    if b"[DONE]" not in data[-_DONE_TAIL:] and len(data) >= 32:
        return False
    return _DONE.search(_CHUNK_FRAMING.sub(b"", b"".join(chunks[-16:]))) is not None


def looks_like_events(body: bytes) -> bool:
    """Whether a body without a Content-Type starts as an event stream does."""
    return _FIELD.match(body) is not None


def decompress(chunks: list[bytes], coding: str) -> list[bytes]:
    """The chunks with gzip or deflate undone, one output for each input, so that offsets still map to reads.

    Raises ValueError for an unknown coding or broken data.
    """
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise ValueError(f"Content-Encoding {coding!r} is not understood")
    inflater = _Inflater()
    try:
        return [inflater.feed(chunk) for chunk in chunks]
    except zlib.error as error:
        raise ValueError(f"broken {coding} data: {error}") from error


class _Inflater:
    """Undoes gzip (of one member or several), zlib, and the bare deflate that some servers send for it."""

    def __init__(self) -> None:
        self._start = b""
        self._stream = zlib.decompressobj(wbits=47)  # 32 + 15: gzip or zlib, told by the header
        self._is_bare = False

    def feed(self, chunk: bytes) -> bytes:
        """What this chunk gives. Raises zlib.error."""
        if len(self._start) < 2:
            chunk, self._start = self._start + chunk, (self._start + chunk)[:2]
            if len(self._start) < 2:
                return b""
            self._is_bare = not _has_header(self._start)
            if self._is_bare:
                self._stream = zlib.decompressobj(wbits=-15)
        plain = self._stream.decompress(chunk)
        while self._stream.eof and self._stream.unused_data and not self._is_bare:
            rest = self._stream.unused_data
            self._stream = zlib.decompressobj(wbits=47)
            plain += self._stream.decompress(rest)
        return plain


def _has_header(start: bytes) -> bool:
    """Whether two bytes begin gzip (RFC 1952) or zlib (RFC 1950) data."""
    return start == b"\x1f\x8b" or (start[0] & 15 == 8 and int.from_bytes(start) % 31 == 0)


def read_ends(chunks: list[bytes], read_chunks: list[int]) -> list[int]:
    """For each read, the body offset just past its last byte. Shapes: `read_chunks` [R] -> [R]."""
    if not chunks:
        return [0] * len(read_chunks)
    sizes = list(accumulate(map(len, chunks)))
    return [sizes[count - 1] if count else 0 for count in read_chunks]
