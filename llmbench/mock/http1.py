"""Reading HTTP/1.1 requests from a stream of bytes: an incremental parser without I/O (RFC 9112)."""

from __future__ import annotations

from dataclasses import dataclass

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 256 * 1024 * 1024


class BadRequest(Exception):
    """Bytes that are no HTTP request; the connection cannot go on. `status` is what to answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(slots=True)
class Request:
    """One request. Header names are in lower case; of a repeated header the last one counts."""

    method: str
    target: str
    version: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def keep_alive(self) -> bool:
        """Whether the client wants to use the connection again."""
        wish = self.headers.get("connection", "").lower()
        return "close" not in wish if self.version == "HTTP/1.1" else "keep-alive" in wish


def _parse_head(head: bytes) -> Request:
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise BadRequest(400, f"no HTTP/1.1 request line: {lines[0][:80]!r}")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise BadRequest(400, f"no header line: {line[:80]!r}")
        headers[name.lower()] = value.strip()
    return Request(parts[0], parts[1], parts[2], headers)


class RequestParser:
    """Feed it what was read; take requests from it until it gives None."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._request: Request | None = None
        self._need = 0  # bytes of body; -1: chunked
        self._parts: list[bytes] = []
        self._num_body_bytes = 0
        self._promised = False

    def feed(self, data: bytes) -> None:
        """Bytes in the order they came."""
        self._buffer += data

    def wants_continue(self) -> bool:
        """True once for a request whose client waits for `100 Continue` before it sends the body."""
        if self._request is None or self._promised:
            return False
        self._promised = self._request.headers.get("expect", "").lower() == "100-continue"
        return self._promised

    def next_request(self) -> Request | None:
        """The next complete request, or None; BadRequest if the bytes make no sense."""
        if self._request is None and not (self._buffer and self._read_head()):
            return None
        request = self._request
        assert request is not None
        if self._need < 0:
            if not self._read_chunks():
                return None
            request.body = b"".join(self._parts)
        else:
            if len(self._buffer) < self._need:
                return None
            request.body = bytes(self._buffer[: self._need])
            del self._buffer[: self._need]
        self._request, self._parts, self._promised = None, [], False
        self._num_body_bytes = 0
        return request

    def _read_head(self) -> bool:
        while self._buffer.startswith(b"\r\n"):  # empty lines before a request are allowed (RFC 9112, 2.2)
            del self._buffer[:2]
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise BadRequest(431, "the request's head is too long")
            return False
        request = _parse_head(bytes(self._buffer[:end]))
        del self._buffer[: end + 4]
        coding = request.headers.get("transfer-encoding", "").lower()
        length = request.headers.get("content-length", "0")
        if coding and coding != "chunked":
            raise BadRequest(501, f"transfer coding {coding!r} is not supported")
        if not (length.isascii() and length.isdigit()):
            raise BadRequest(400, f"Content-Length {length[:40]!r} is no number")
        self._need = -1 if coding else int(length)
        if self._need > MAX_BODY_BYTES:
            raise BadRequest(413, "the request's body is too long")
        self._request = request
        return True

    def _read_chunks(self) -> bool:
        while (end := self._buffer.find(b"\r\n")) >= 0:
            try:
                size = int(bytes(self._buffer[:end]).split(b";")[0], 16)
            except ValueError:
                raise BadRequest(400, "a chunk without a size") from None
            if size == 0:
                return self._read_trailers(end + 2)
            if size < 0 or self._num_body_bytes + size > MAX_BODY_BYTES:
                raise BadRequest(413, "the request's body is too long")
            stop = end + 2 + size
            if len(self._buffer) < stop + 2:
                return False
            if self._buffer[stop : stop + 2] != b"\r\n":
                raise BadRequest(400, "a chunk longer than its size")
            self._parts.append(bytes(self._buffer[end + 2 : stop]))
            self._num_body_bytes += size
            del self._buffer[: stop + 2]
        return False

    def _read_trailers(self, start: int) -> bool:
        if self._buffer[start : start + 2] == b"\r\n":
            del self._buffer[: start + 2]
            return True
        end = self._buffer.find(b"\r\n\r\n", start)
        if end < 0:
            return False
        del self._buffer[: end + 4]
        return True
