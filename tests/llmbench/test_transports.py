"""All transports against servers that say exact bytes, and against the mock: the same answers everywhere."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import socket
import ssl
import subprocess
import time
import zlib

import pytest

from llmbench.client.decode import decode
from llmbench.client.exchange import Timeouts
from llmbench.client.http1 import IDLE_LIMIT_S, FastTransport
from llmbench.mock import Fault, MockOptions, MockServer
from tests.llmbench.scripted import (
    CARRIER_IDS,
    CARRIERS,
    FIN,
    HEAD,
    HOLD,
    RST,
    STREAM,
    WHOLE,
    WORDS,
    Caller,
    Scripted,
    chunked,
    events_of,
    run_on,
)

TEXT = "".join(WORDS)
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
EVENTS = events_of(STREAM)

every_carrier = pytest.mark.parametrize(("name", "loop"), CARRIERS, ids=CARRIER_IDS)
every_transport = pytest.mark.parametrize("name", ["fast", "kernel", "aiohttp", "httpx"])


def call(name, loop, script, *, indices=(0,), listen=None, gap_s=0.0, **caller):
    """Exchanges with a scripted server, one after the other; (exchanges, server)."""

    async def main():
        async with Scripted(script, **(listen or {})) as server, Caller(name, server.url, **caller) as client:
            exchanges = []
            for index in indices:
                exchanges.append(await client.exchange(index))
                await asyncio.sleep(gap_s)
            return exchanges, server

    return run_on(loop, main)


def judged(exchange):
    answer = decode(exchange, "chat")
    return answer.outcome, answer.error_kind, answer.text


def packed(events, wbits):
    """Compressed as a proxy does it: flushed after every event."""
    packer = zlib.compressobj(wbits=wbits)
    pieces = [packer.compress(one) + packer.flush(zlib.Z_SYNC_FLUSH) for one in events]
    return [*pieces, packer.flush()]


# ---- every legal way to say the same thing


def head(*lines, http=b"HTTP/1.1 200 OK"):
    """A response's head; `lines` come after its content type."""
    return b"\r\n".join([http, b"Content-Type: text/event-stream", *lines, b"", b""])


CODING = b"Transfer-Encoding: chunked"
LENGTH = b"Content-Length: %d" % len(STREAM)
BODY = chunked(*EVENTS)
SLOWLY = itertools.chain(*([chunked(one, end=b""), 0.001] for one in EVENTS))

SAME = {
    "an event a chunk": [CHUNKED + BODY],
    "an event a segment": [CHUNKED, *SLOWLY, b"0\r\n\r\n"],
    "one chunk": [CHUNKED + chunked(STREAM)],
    "a length": [head(LENGTH) + STREAM],
    "neither, until the end": [head() + STREAM, FIN],
    "HTTP/1.0": [head(http=b"HTTP/1.0 200 OK") + STREAM, FIN],
    "HTTP/1.0 with a length": [head(LENGTH, http=b"HTTP/1.0 200 OK") + STREAM, FIN],
    "Connection: close": [head(CODING, b"Connection: close") + BODY, FIN],
    "chunk extensions": [CHUNKED + chunked(*EVENTS, extension=b';a=1;b="x"')],
    "trailers": [CHUNKED + chunked(*EVENTS, end=b"0\r\nX-Check: 1\r\n\r\n")],
    "sizes in capitals, with zeros": [
        CHUNKED + b"".join(b"000%X\r\n%b\r\n" % (len(one), one) for one in EVENTS) + b"0\r\n\r\n"
    ],
    "a continue before": [b"HTTP/1.1 100 Continue\r\n\r\n", 0.01, CHUNKED + BODY],
    "early hints before": [b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + CHUNKED + BODY],
    "names of headers in small letters": [
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n" + BODY
    ],
    "no reason phrase": [head(CODING, http=b"HTTP/1.1 200 ") + BODY],
    "many headers": [head(CODING, *(b"X-%d: %b" % (n, b"v" * 99) for n in range(90))) + BODY],
    "a header of 20 KiB": [head(CODING, b"X-Long: " + b"v" * 20_000) + BODY],
    "gzip": [head(CODING, b"Content-Encoding: gzip") + chunked(*packed(EVENTS, 31))],
    "gzip, a member an event": [
        head(CODING, b"Content-Encoding: gzip") + chunked(*map(gzip.compress, EVENTS))
    ],
    "deflate": [head(CODING, b"Content-Encoding: deflate") + chunked(*packed(EVENTS, 15))],
    "bare deflate": [head(CODING, b"Content-Encoding: deflate") + chunked(*packed(EVENTS, -15))],
    "[DONE], then silence": [CHUNKED + chunked(*EVENTS, end=b""), HOLD],
    "[DONE] cut in two, then silence": [
        CHUNKED + chunked(*EVENTS[:-1], b"data: [DO", end=b""),
        0.02,
        chunked(b"NE]\n\n", end=b""),
        HOLD,
    ],
    "[DONE], then a reset": [CHUNKED + chunked(*EVENTS, end=b""), 0.02, RST],
    "the finish, then a close": [CHUNKED + chunked(*EVENTS[:-1], end=b""), 0.02, FIN],
}


@every_carrier
def test_however_it_is_said_the_answer_is_the_same(name, loop):
    async def main():
        script = list(SAME.values()).__getitem__
        async with Scripted(script) as server, Caller(name, server.url) as client:
            return await asyncio.gather(*(client.exchange(index) for index in range(len(SAME))))

    started = time.monotonic()
    exchanges = dict(zip(SAME, run_on(loop, main), strict=True))
    assert {row: judged(exchange) for row, exchange in exchanges.items()} == dict.fromkeys(
        SAME, ("ok", None, TEXT)
    )
    for exchange in exchanges.values():
        assert exchange.sent_ns <= exchange.headers_ns <= exchange.read_ns[0] <= exchange.end_ns
    assert time.monotonic() - started < 4  # a message that lingers is not waited for


@every_carrier
def test_a_drip_of_single_bytes(name, loop):
    steps = itertools.chain(*([WHOLE[at : at + 1], 0] for at in range(len(WHOLE))))
    (exchange,), _ = call(name, loop, lambda _: list(steps))
    assert judged(exchange) == ("ok", None, TEXT)
    assert len(decode(exchange, "chat").event_ns) == len(WORDS)


@every_carrier
def test_stamps_are_those_of_the_segments(name, loop):
    gap_s = 0.04
    steps = [CHUNKED, *itertools.chain(*([gap_s, chunked(one, end=b"")] for one in EVENTS)), b"0\r\n\r\n"]
    (exchange,), _ = call(name, loop, lambda _: steps)
    stamps = decode(exchange, "chat").event_ns
    for before, after in itertools.pairwise([exchange.headers_ns, *stamps]):
        assert 0.5 * gap_s < (after - before) / 1e9 < gap_s + 0.08


# ---- broken off anywhere

FINISH_AT = WHOLE.index(b'"stop"')


def expected_when_cut(at, how):
    body_at = len(CHUNKED)
    if at < body_at:
        return "connect_error", "connection", ""
    finished = WHOLE.index(b"\n\n", FINISH_AT)
    if at > finished:
        return "ok", None, TEXT
    # the last event counts without its blank line
    said = [word for word, one in zip(WORDS, EVENTS, strict=False) if at >= WHOLE.index(one) + len(one) - 2]
    return "bad_stream", "truncated" if how == FIN else "connection", "".join(said)


@every_carrier
@pytest.mark.parametrize("how", [FIN, RST])
def test_broken_off_at_every_point_of_the_response(name, loop, how):
    """Before and inside the head, in a chunk's size, in a chunk, before the last chunk: never a crash, never
    a success that was none, and what had come is kept.
    """
    points = [0, 1, 9, *range(20, len(CHUNKED), 13), *range(len(CHUNKED), len(WHOLE) - 5, 11)]

    async def main():
        script = lambda index: [WHOLE[: points[index]], 0.05, how]  # noqa: E731
        async with Scripted(script) as server, Caller(name, server.url) as client:
            exchanges = await asyncio.gather(*(client.exchange(index) for index in range(len(points))))
            assert sorted(index for _, index in server.requests) == list(
                range(len(points))
            )  # nothing sent twice
            return exchanges

    found = {at: judged(exchange) for at, exchange in zip(points, run_on(loop, main), strict=True)}
    wanted = {at: expected_when_cut(at, how) for at in points}
    if name not in ("fast", "kernel"):  # the libraries tell a reset from a close only now and then
        same = {"truncated": "connection", "protocol": "connection"}
        found, wanted = (
            {at: (o, same.get(k, k), t) for at, (o, k, t) in one.items()} for one in (found, wanted)
        )
    assert found == wanted


NOT_HTTP = {
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a page without a head": b"<html><body>Hello</body></html>\r\n\r\n",
    "HTTP/2 unasked": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" + b"\x00" * 18,
    "a head that is none": b"HTTP/1.1 two hundred\r\n\r\n",
    "a length that is none": HEAD + b"Content-Length: many\r\n\r\n",
}


@every_carrier
def test_what_is_no_http_is_said_so(name, loop):
    script = [[said, FIN] for said in NOT_HTTP.values()].__getitem__
    exchanges, server = call(name, loop, script, indices=range(len(NOT_HTTP)))
    for exchange in exchanges:
        assert judged(exchange)[:2] == ("connect_error", "connection")
        assert exchange.detail
    assert len(server.requests) == len(NOT_HTTP)


@pytest.mark.parametrize(
    ("name", "loop"), [("fast", "uvloop"), ("fast", "asyncio"), ("kernel", "uvloop"), ("httpx", "uvloop")]
)
def test_a_chunk_size_that_is_none_keeps_what_came_with_it(name, loop):
    """The events that share a read with the fault were once lost, and with them the count went wrong.
    (aiohttp says nothing until a timeout.)
    """
    steps = [CHUNKED, 0.05, chunked(*EVENTS[:2], end=b"") + b"zz\r\nwhatever\r\n", 0.1, FIN]
    (exchange,), _ = call(name, loop, lambda _: steps)
    outcome, kind, text = judged(exchange)
    assert (outcome, kind) == ("bad_stream", "protocol")
    if name in ("fast", "kernel"):
        assert text == "Hello,"
        assert len(decode(exchange, "chat").event_ns) == 2


# ---- connections


@every_carrier
def test_a_connection_is_kept_and_used_again(name, loop):
    exchanges, server = call(name, loop, lambda _: [WHOLE], indices=range(5))
    assert [judged(exchange)[0] for exchange in exchanges] == ["ok"] * 5
    assert server.requests == [(1, index) for index in range(5)]
    assert len(server.bodies[0]) > 0


@every_carrier
@pytest.mark.parametrize("how", [FIN, RST])
def test_a_kept_connection_that_was_closed_is_replaced(name, loop, how):
    """Closed while idle, noticed before the next request: that one goes over a new connection, once."""
    exchanges, server = call(name, loop, lambda _: [WHOLE, 0.01, how], indices=range(3), gap_s=0.1)
    assert [judged(exchange)[0] for exchange in exchanges] == ["ok"] * 3
    assert [index for _, index in server.requests] == [0, 1, 2]


@every_carrier
def test_nothing_is_sent_twice_when_a_kept_connection_drops_it(name, loop):
    """The server takes the second request on the kept connection and closes: that request has failed."""
    script = {0: [WHOLE], 1: [FIN], 2: [WHOLE]}
    exchanges, server = call(name, loop, script.get, indices=range(3))
    assert [judged(exchange)[0] for exchange in exchanges] == ["ok", "connect_error", "ok"]
    assert [index for _, index in server.requests] == [0, 1, 2]


@every_carrier
def test_bytes_behind_a_whole_response_spoil_the_connection_not_the_answer(name, loop):
    """A second response that nobody asked for, in the same read: its status was once the first's."""
    stray = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 4\r\nConnection: close\r\n\r\nlate"
    exchanges, _ = call(name, loop, lambda _: [WHOLE + stray], indices=range(2), gap_s=0.05)
    assert judged(exchanges[0]) == ("ok", None, TEXT)
    assert exchanges[0].status == 200
    if name in ("fast", "kernel"):
        assert judged(exchanges[1]) == ("ok", None, TEXT)


@pytest.mark.parametrize(("name", "loop"), CARRIERS[:3], ids=CARRIER_IDS[:3])
def test_an_answer_that_comes_before_the_request_is_through(name, loop):
    """A refusal of a large body comes while it is still being written: the rest of it must not run into the
    next request on that connection. (httpx does use it again, and waits.)
    """
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}"

    async def main():
        script = lambda index: [WHOLE] if index else ["unread", refusal, HOLD]  # noqa: E731
        async with Scripted(script) as server, Caller(name, server.url) as client:
            first = await client.exchange(0, prompt="x" * 30_000_000)
            second = await client.exchange(1)
            assert [index for _, index in server.requests] == [0, 1]
            return first, second

    first, second = run_on(loop, main)
    assert first.status == 413
    assert judged(second) == ("ok", None, TEXT)


def test_idle_connections_are_replaced_before_a_server_would_close_them():
    """By the clock handed in: after IDLE_LIMIT_S a kept connection is not used again."""

    async def main():
        shift = 0
        async with Scripted(lambda _: [WHOLE]) as server, Caller("fast", server.url) as client:
            await client.transport.close()
            transport = FastTransport(
                client.destination, client.timeouts, clock=lambda: time.monotonic_ns() + shift
            )
            client.transport = transport
            await transport.open(1)
            await client.exchange(0)
            shift += round(IDLE_LIMIT_S * 1e9) - 10**9
            await client.exchange(1)
            shift += round(IDLE_LIMIT_S * 1e9) + 1
            await client.exchange(2)
            await client.exchange(3)
            return [connection for connection, _ in server.requests]

    used = run_on("uvloop", main)
    assert used[0] == used[1] != used[2] == used[3]


@every_carrier
def test_five_hundred_at_once(name, loop):
    num_requests = 60 if name == "httpx" else 500  # httpx scans its pool for every request

    async def main():
        options = MockOptions(tokens=8, ttft_s=0.3, itl_s=0.002)
        async with MockServer(options) as server, Caller(name, server.url) as client:
            sent = (client.exchange(index, max_tokens=8) for index in range(num_requests))
            return await asyncio.gather(*sent), server.log()

    exchanges, log = run_on(loop, main)
    answers = [decode(exchange, "chat") for exchange in exchanges]
    assert {(answer.outcome, answer.output_tokens, len(answer.event_ns)) for answer in answers} == {
        ("ok", 8, 8)
    }
    assert len(log) == num_requests


@every_carrier
def test_megabytes_each_way(name, loop):
    big = b"".join(EVENTS[:-3] * 12_000) + b"".join(EVENTS[-3:])

    async def main():
        script = lambda _: [CHUNKED + chunked(*(big[at : at + 60_000] for at in range(0, len(big), 60_000)))]  # noqa: E731
        async with Scripted(script) as server, Caller(name, server.url) as client:
            exchange = await client.exchange(prompt="x" * 5_000_000)
            return exchange, len(server.bodies[0])

    exchange, got = run_on(loop, main)
    assert got > 5_000_000
    assert judged(exchange) == ("ok", None, TEXT * 12_000)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_sent_means_that_the_last_byte_is_in_the_kernel(loop):
    """A server that reads slowly delays the send of a large request; that is not its time to first token."""

    async def main():
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        running = asyncio.get_running_loop()
        async with Caller("fast", url) as client:
            ended = client.start(prompt="x" * 20_000_000)
            peer, _ = await running.sock_accept(listener)
            peer.setblocking(False)
            await asyncio.sleep(0.3)
            got = 0
            while got < 20_000_000:
                got += len(await running.sock_recv(peer, 2**20))
            await asyncio.sleep(0.05)
            before = time.monotonic_ns()
            await running.sock_sendall(peer, WHOLE)
            exchange = await ended
            peer.close()
            listener.close()
            return exchange, before

    exchange, before = run_on(loop, main)
    assert (exchange.sent_ns - exchange.start_ns) / 1e9 > 0.25
    assert exchange.sent_ns < before < exchange.headers_ns


# ---- nobody there


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


@every_carrier
@pytest.mark.parametrize(
    "url", [f"http://127.0.0.1:{free_port()}", "http://nobody.invalid:80"], ids=["free port", "no such name"]
)
def test_nobody_there_is_a_record_not_an_exception(name, loop, url):
    async def main():
        async with Caller(name, url) as client:
            return await asyncio.gather(*(client.exchange(index) for index in range(3)))

    for exchange in run_on(loop, main):
        assert judged(exchange)[:2] == ("connect_error", "connection")
        assert exchange.detail
        assert exchange.sent_ns is None
        assert exchange.end_ns >= exchange.start_ns


@every_carrier
def test_a_host_that_does_not_answer_is_given_up(name, loop):
    """A listener whose backlog is full: the kernel drops our SYN, as a firewall would."""

    async def main():
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            address = listener.getsockname()
            crowd = []
            for _ in range(4):
                one = socket.socket()
                one.setblocking(False)
                one.connect_ex(address)
                crowd.append(one)
            await asyncio.sleep(0.05)
            timeouts = Timeouts(connect_s=0.3, total_s=10, no_progress_s=5)
            async with Caller(name, f"http://127.0.0.1:{address[1]}", timeouts=timeouts) as client:
                exchange = await client.exchange()
            for one in crowd:
                one.close()
            return exchange

    exchange = run_on(loop, main)
    assert judged(exchange)[:2] == ("connect_error", "connection")
    assert "target.connect_timeout" in exchange.detail
    assert 0.25 < (exchange.end_ns - exchange.start_ns) / 1e9 < 4


# ---- time runs out


def call_together(name, loop, scripts, **caller):
    """Exchanges with a scripted server, all at once."""

    async def main():
        script = scripts.__getitem__
        async with Scripted(script) as server, Caller(name, server.url, **caller) as client:
            return await asyncio.gather(*(client.exchange(index) for index in range(len(scripts))))

    return run_on(loop, main)


@every_carrier
def test_the_whole_request_has_a_limit(name, loop):
    scripts = [[HOLD], [CHUNKED, HOLD], [CHUNKED + chunked(EVENTS[0], end=b""), HOLD]]
    timeouts = Timeouts(connect_s=5, total_s=0.3, no_progress_s=5)
    for exchange in call_together(name, loop, scripts, timeouts=timeouts):
        assert judged(exchange)[:2] == ("timeout", "timeout")
        assert "target.timeout" in exchange.detail
        assert 0.29 < (exchange.end_ns - exchange.start_ns) / 1e9 < 4


@every_carrier
def test_silence_has_a_limit_but_only_after_the_head(name, loop):
    """Before its head a server may be queueing; afterwards each sign of life starts the limit again."""
    drip = itertools.chain(*([chunked(one, end=b""), 0.25] for one in EVENTS[:3]))
    scripts = [[0.6, CHUNKED, *drip, HOLD], [0.6, WHOLE]]
    timeouts = Timeouts(connect_s=5, total_s=10, no_progress_s=0.5)
    silent, queued = call_together(name, loop, scripts, timeouts=timeouts)
    assert judged(silent) == ("timeout", "timeout", "Hello, world")
    assert "target.no_progress_timeout" in silent.detail
    assert judged(queued) == ("ok", None, TEXT)


@every_carrier
def test_abort_ends_everything_in_flight_once_as_cancelled(name, loop):
    """Also what was handed over in the same turn of the loop, of which nothing has happened yet: a task that
    is cancelled before its first step never runs, and its request was once never heard of again.
    """

    async def main():
        script = lambda _: [CHUNKED + chunked(EVENTS[0], end=b""), HOLD]  # noqa: E731
        async with Scripted(script) as server, Caller(name, server.url) as client:
            early = [client.start(index) for index in range(3)]
            async with asyncio.timeout(5):
                while len(server.bodies) < 3:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # client and server share the loop: the first words are there
            late = [client.start(index) for index in range(3, 6)]
            client.transport.abort("enough")
            return await asyncio.wait_for(asyncio.gather(*early, *late), 5)

    exchanges = run_on(loop, main)
    assert [judged(exchange)[:2] for exchange in exchanges] == [("cancelled", "cancelled")] * 6
    assert [exchange.detail for exchange in exchanges] == ["enough"] * 6
    assert [judged(exchange)[2] for exchange in exchanges[:3]] == ["Hello"] * 3


@every_carrier
def test_close_ends_everything_too(name, loop):
    async def main():
        async with Scripted(lambda _: [HOLD]) as server:
            async with Caller(name, server.url) as client:
                early = client.start(0)
                await asyncio.sleep(0.05)
                late = client.start(1)
            return await asyncio.wait_for(asyncio.gather(early, late), 5)

    for exchange in run_on(loop, main):
        assert judged(exchange)[:2] == ("cancelled", "cancelled")


def test_one_end_may_set_off_another():
    """A request whose end aborts all others: each of those still ends once, and the sweep goes on."""

    async def main():
        timeouts = Timeouts(connect_s=5, total_s=0.5, no_progress_s=5)
        script = lambda index: [HOLD] if index < 6 else [WHOLE]  # noqa: E731
        async with (
            Scripted(script) as server,
            Caller("fast", server.url, timeouts=timeouts) as client,
        ):
            ended = []

            def done(exchange):
                ended.append(exchange)
                client.transport.abort("after the first")

            for index in range(6):
                client.transport.send(client.outgoing(index), done)
            async with asyncio.timeout(5):
                while len(ended) < 6:
                    await asyncio.sleep(0.01)
            last = await client.exchange(6)
            slow = [exchange.breakage for exchange in ended]
            return slow, last

    slow, last = run_on("uvloop", main)
    assert sorted(slow) == ["cancelled"] * 5 + ["timeout"]
    assert judged(last)[0] == "ok"


# ---- other ways to the server


@every_carrier
def test_over_a_unix_socket(name, loop, tmp_path):
    path = str(tmp_path / "llm.sock")
    exchanges, server = call(
        name, loop, lambda _: [WHOLE], indices=range(3), listen={"path": path}, unix_socket=path
    )
    assert [judged(exchange) for exchange in exchanges] == [("ok", None, TEXT)] * 3
    assert server.connections == 1


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@every_carrier
@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
def test_over_ipv6(name, loop):
    exchanges, _ = call(name, loop, lambda _: [WHOLE], indices=range(2), listen={"host": "::1"})
    assert [judged(exchange) for exchange in exchanges] == [("ok", None, TEXT)] * 2


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1 and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    try:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
             "-subj", "/CN=localhost",
             "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", cert],
            check=True,
            capture_output=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no openssl: {error}")
    return str(cert), str(key)


def tls_server(certificate):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    return {"ssl": context}


@every_carrier
@pytest.mark.parametrize("trust", ["nobody", "the file", "anybody"])
def test_over_tls(name, loop, certificate, trust):
    verify = {"nobody": True, "the file": certificate[0], "anybody": False}[trust]
    exchanges, server = call(
        name, loop, lambda _: [WHOLE], indices=range(3), listen=tls_server(certificate), verify=verify
    )
    if trust == "nobody":
        assert {judged(exchange)[:2] for exchange in exchanges} == {("connect_error", "connection")}
        assert all("certificate" in exchange.detail.lower() for exchange in exchanges)
        assert server.requests == []
    else:
        assert [judged(exchange) for exchange in exchanges] == [("ok", None, TEXT)] * 3
        assert len({connection for connection, _ in server.requests}) == 1


@every_carrier
@pytest.mark.parametrize("how", [FIN, RST])
def test_over_tls_a_broken_stream_is_no_success(name, loop, certificate, how):
    steps = [CHUNKED + chunked(*EVENTS[:2], end=b""), 0.05, how]
    (exchange,), _ = call(name, loop, lambda _: steps, listen=tls_server(certificate), verify=False)
    outcome, kind, text = judged(exchange)
    assert (outcome, text) == ("bad_stream", "Hello,")
    assert kind in ("truncated", "connection")


@every_transport
def test_a_proxy_of_the_environment_is_not_for_this_machine(name, monkeypatch):
    """The aiohttp transport was once told to trust the environment, and went to it."""
    for variable in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("NO_PROXY", "")
    (exchange,), _ = call(name, "uvloop", lambda _: [WHOLE])
    assert judged(exchange) == ("ok", None, TEXT)


@every_transport
def test_a_key_of_the_netrc_file_is_not_sent(name, monkeypatch, tmp_path):
    """Whoever runs the test may have a key for this host; nobody asked for it to be sent."""
    (tmp_path / "netrc").write_text("default login me password hunter2\n", encoding="utf-8")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))

    async def main():
        async with MockServer(MockOptions(tokens=1, log_bodies=True)) as server:
            async with Caller(name, server.url) as client:
                await client.exchange()
            return server.log()

    (entry,) = run_on("uvloop", main)
    assert "authorization" not in {header.lower() for header in entry["headers"]}


# ---- the mock's own account

KINDS = [
    MockOptions(tokens=6),
    MockOptions(tokens=6, line_ending="crlf", split_bytes=3),
    MockOptions(tokens=6, line_ending="cr", data_space=False),
    MockOptions(tokens=6, text="unicode", split_bytes=1),
    MockOptions(tokens=6, tokens_per_chunk=4, usage="every"),
    MockOptions(tokens=6, reasoning_tokens=3, role_chunk="early", usage="none", done=False),
    MockOptions(tokens=6, answer="tool", usage="last"),
    MockOptions(tokens=6, answer="refusal", close=True),
    *(MockOptions(tokens=6, faults=(Fault(kind=kind),)) for kind in
      ("status", "drop", "reset", "cut", "truncate", "error", "malformed", "empty", "json", "json-error")),
]  # fmt: skip


@pytest.mark.parametrize("options", KINDS, ids=range(len(KINDS)))
@pytest.mark.parametrize("api", ["chat", "completions", "responses"])
def test_all_transports_agree_on_what_the_mock_does(options, api):
    async def main():
        found = []
        async with MockServer(options) as server:
            for name in ("fast", "kernel", "aiohttp", "httpx"):
                async with Caller(name, server.url, api=api) as client:
                    answer = decode(await client.exchange(max_tokens=6), api)
                kind = answer.error_kind
                found.append(
                    (answer.outcome, "truncated" if kind == "connection" and answer.text else kind,
                     answer.text,
                     answer.reasoning, answer.refusal, answer.tool_calls, answer.event_tokens,
                     answer.output_tokens, answer.finish_reason, set(answer.warnings) - {"buffered"})
                )  # fmt: skip
                server.reset()
        return found

    fast, *others = run_on("uvloop", main)
    assert others == [fast] * len(others)
