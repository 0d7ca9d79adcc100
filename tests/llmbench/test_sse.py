"""The event reader against a slow one written line by line from the WHATWG text (HTML, section 9.2.6)."""

from __future__ import annotations

import gzip
import time
import zlib
from itertools import accumulate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmbench.client.sse import Event, decompress, looks_like_events, read_ends, split_events

BOM = b"\xef\xbb\xbf"


def slow_events(body):
    """One byte at a time, as the standard says it: (name, data, offset just past the completing byte).

    Two liberties are taken, as documented: the last event may lack its blank line, and offsets count a CR as
    the end of a line whether or not a LF follows.
    """
    events, name, data, line = [], None, [], bytearray()
    position = len(BOM) if body.startswith(BOM) else 0

    def field():
        nonlocal name
        key, colon, value = bytes(line).partition(b":")
        value = value.removeprefix(b" ") if colon else b""
        if key == b"data":
            data.append(value)
        elif key == b"event":
            name = value

    def dispatch(end):
        nonlocal name
        joined = b"\n".join(data)
        if joined:
            events.append((name, joined, end))
        name = None
        data.clear()

    while position < len(body):
        byte = body[position]
        position += 1
        if byte not in b"\r\n":
            line.append(byte)
            continue
        end = position
        if byte == 13 and body[position : position + 1] == b"\n":
            position += 1
        if line:
            field()
            line.clear()
        else:
            dispatch(end)
    if line:
        field()
    dispatch(len(body))
    return events


LINE = st.one_of(
    st.sampled_from(
        [b"data: {}", b"data:{}", b"data", b"data:", b"data:  two", b": ping", b":", b"event: error",
         b"event", b"id: 7", b"retry: 10", b"foo: bar", b"datax: 1", b" data: 1",
         "data: a\u2028b\u0085".encode(),
         b"data: \x0b\x0c\x1c\x1d", BOM + b"data: late mark", b"data: [DONE]", b"data: a:b: c"]
    ),
    st.binary(max_size=6).map(lambda raw: b"data: " + raw.replace(b"\r", b"").replace(b"\n", b"")),
)  # fmt: skip
BODY = st.lists(st.tuples(LINE | st.just(b""), st.sampled_from([b"\n", b"\r\n", b"\r"])), max_size=24).map(
    lambda lines: b"".join(line + end for line, end in lines)
)
ONE_KIND = st.tuples(
    st.lists(LINE | st.just(b""), max_size=24), st.sampled_from([b"\n", b"\r\n", b"\r"])
).map(lambda parts: b"".join(line + parts[1] for line in parts[0]))


@given(st.sampled_from([b"", BOM]), BODY | ONE_KIND, st.booleans())
@example(b"", b"event: error\r\ndata: {}\r\n\r\n", False)
@example(b"", b"data: a\r\ndata: b\r\n\r\n", False)
def test_events_names_and_offsets_are_those_of_the_standard(mark, body, cut):
    """The CR and the LF of a CRLF were once taken for two line ends wherever a field followed: an
    `event: error` lost its data, and a data field of two lines became two events.
    """
    body = mark + (body[:-1] if cut else body)
    assert split_events(body) == slow_events(body)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_all_three_line_ends_give_the_same_events(end):
    lines = [
        b"event: delta",
        b"data: a",
        b"data: b",
        b"",
        b": ping",
        b"",
        b"data: c",
        b"",
        b"data: [DONE]",
        b"",
    ]
    events = split_events(end.join(lines) + end)
    assert [(event.name, event.data) for event in events] == [
        (b"delta", b"a\nb"), (None, b"c"), (None, b"[DONE]"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "end"),
    [
        (b"data: x\n\n", 9),
        (b"data: x\r\r", 9),
        (b"data: x\r\n\r\n", 10),  # the second CR: its LF may come in a later read and completes nothing
        (b"data: x\n\r\n", 9),
        (b"data: x\r\r\n", 9),
        (b"data: x\n\n\n\n", 9),
        (b"data: x\n", 8),  # cut off: the last byte there is
        (b"data: x", 7),
        (BOM + b"data: x\n\n", 12),
    ],
)
def test_an_event_ends_with_the_byte_that_completes_it(body, end):
    assert split_events(body) == [Event(None, b"x", end)]


@given(st.lists(st.binary(max_size=5), max_size=12), st.data())
def test_any_cut_into_reads_covers_the_body_once(chunks, data):
    counts = sorted(data.draw(st.lists(st.integers(0, len(chunks)), max_size=6)))
    sizes = [0, *accumulate(map(len, chunks))]
    assert read_ends(chunks, counts) == [sizes[count] for count in counts]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_a_line_of_two_mebibytes_is_read_in_linear_time(line_end):
    """A quadratic scan would take minutes; four times the bytes may take ten times the time, not sixteen."""
    took = []
    for size in (2**19, 2**21):
        body = b"data: " + b"x" * size + line_end * 2 + b"data: y" + line_end * 2
        start = time.process_time()
        for _ in range(5):
            events = split_events(body)
        took.append(time.process_time() - start)
        assert [len(event.data) for event in events] == [size, 1]
    assert took[1] < 10 * took[0] + 0.1


@pytest.mark.parametrize(
    ("body", "is_stream"),
    [
        (b"data: {}\n\n", True),
        (b": ping\n\n", True),
        (b"\n\nevent: x\n", True),
        (BOM + b"data: {}", True),
        (b"id: 1\n", True),
        (b"retry: 1\n", True),
        (b"", False),
        (b'{"data": 1}', False),
        (b"<html>data: x", False),
        (b"database: down", False),
    ],
)
def test_a_stream_without_a_content_type_is_known_by_its_first_bytes(body, is_stream):
    assert looks_like_events(body) is is_stream


def deflated(plain, coding):
    if coding in ("gzip", "x-gzip"):
        return gzip.compress(plain)
    raw = zlib.compressobj(wbits=-15 if coding == "deflate, raw" else 15)
    return raw.compress(plain) + raw.flush()


@given(
    st.binary(max_size=200),
    st.sampled_from(["gzip", "x-gzip", "deflate", "deflate, raw"]),
    st.integers(1, 40),
    st.booleans(),
)
def test_compressed_bytes_come_out_whole_however_they_were_cut(plain, coding, size, twice):
    """`deflate` is sent with and without zlib's header (RFC 9110 names the one, servers send the other); gzip
    may be several members, one a flush.
    """
    packed = deflated(plain, coding) * (2 if twice and coding == "gzip" else 1)
    chunks = [packed[at : at + size] for at in range(0, len(packed), size)]
    plain_chunks = decompress(chunks, coding.split(",")[0])
    assert len(plain_chunks) == len(chunks)
    assert b"".join(plain_chunks) == plain * (2 if twice and coding == "gzip" else 1)


def test_what_was_flushed_is_there_with_its_own_chunk():
    """A proxy that compresses flushes after every event; none may wait for the next."""
    packer = zlib.compressobj(wbits=31)
    chunks = [packer.compress(b"data: %d\n\n" % n) + packer.flush(zlib.Z_SYNC_FLUSH) for n in range(3)]
    assert decompress(chunks, "gzip") == [b"data: 0\n\n", b"data: 1\n\n", b"data: 2\n\n"]


@pytest.mark.parametrize(
    ("chunks", "coding"), [([b"not gzip at all"], "gzip"), ([b"x"], "br"), ([b"x"], "zstd")]
)
def test_what_cannot_be_undone_is_said_with_its_name(chunks, coding):
    with pytest.raises(ValueError, match=coding):
        decompress(chunks, coding)
