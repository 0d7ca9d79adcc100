"""What no waiting would mend is told at once: unknown hosts, the wrong scheme, a foreign certificate."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import time

import pytest

from llmbench.client.choose import tls_context
from llmbench.client.control import Control
from llmbench.client.diagnose import lasting_problem, protocol_problem
from llmbench.client.wire import Destination, request_headers
from llmbench.errors import TargetRefused, TargetUnreachable
from llmbench.mock import MockOptions, MockServer
from llmbench.scenario.address import parse_address

PATIENT_S = 30.0
AT_ONCE_S = 5.0  # one handshake's patience and the slack of a busy machine


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    paths = (str(folder / "cert.pem"), str(folder / "key.pem"))
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", paths[0], "-keyout", paths[1]]
    subprocess.run(command, check=True, capture_output=True)
    return paths


async def said_of(url, *, verify=True, key=None):
    """(message, seconds) of a target that is given half a minute to get ready."""
    address = parse_address(url)
    headers = request_headers(api_key=key, extra={}, stream=True, agent="t")
    destination = Destination(address=address, api="chat", headers=headers)
    started = time.monotonic()
    async with Control(destination, tls=tls_context(address, verify)) as one:
        with pytest.raises((TargetUnreachable, TargetRefused)) as caught:
            await one.describe(await one.wait_ready(PATIENT_S), "auto")
    return str(caught.value), time.monotonic() - started


async def answering(data):
    """A server that answers anything with these bytes; yields its port."""

    async def serve(reader, writer):
        await reader.read(65536)
        writer.write(data)
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


async def test_an_unknown_host_is_told_at_once():
    message, took_s = await said_of("http://nobody.invalid:8000")
    assert "nobody.invalid" in message
    assert "cannot be resolved" in message
    assert took_s < AT_ONCE_S


async def test_a_name_server_that_is_away_is_waited_for(monkeypatch):
    async def away(*_, **__):
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", away)
    assert await lasting_problem(parse_address("http://service:8000"), None) is None


async def test_https_to_a_server_of_plain_http_is_told_at_once():
    """A server that waits for the rest of a request line leaves the handshake hanging."""
    async with MockServer(MockOptions()) as server:
        message, took_s = await said_of(server.url.replace("http", "https"))
    assert "speaks plain HTTP" in message
    assert f"Write {server.url} instead" in message
    assert took_s < AT_ONCE_S


async def test_https_to_a_server_that_refuses_the_handshake_with_an_http_answer_is_told_at_once():
    async with await answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as server:
        port = server.sockets[0].getsockname()[1]
        message, took_s = await said_of(f"https://127.0.0.1:{port}")
    assert f"Write http://127.0.0.1:{port} instead" in message
    assert took_s < AT_ONCE_S


async def test_http_to_a_server_of_tls_is_told_at_once(certificate):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        message, took_s = await said_of(f"http://127.0.0.1:{port}")
    assert f"Write https://127.0.0.1:{port} instead" in message
    assert took_s < AT_ONCE_S


async def test_a_certificate_that_is_not_trusted_is_told_at_once_with_the_setting(certificate):
    async with MockServer(MockOptions(tls=certificate)) as server:
        message, took_s = await said_of(server.url)
        assert "target.tls_verify=" in message
        assert took_s < AT_ONCE_S
        trusting = tls_context(parse_address(server.url), certificate[0])
        assert await lasting_problem(parse_address(server.url), trusting) is None


async def test_a_port_of_something_else_is_told_at_once():
    async with await answering(b"SSH-2.0-OpenSSH\r\n") as server:
        message, took_s = await said_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert "does not speak HTTP" in message
    assert "right port" in message
    assert took_s < AT_ONCE_S


async def test_a_server_that_serves_or_is_not_up_yet_has_no_lasting_problem():
    with socket.create_server(("127.0.0.1", 0)) as sock:
        nobody = f"127.0.0.1:{sock.getsockname()[1]}"
    for url in (f"http://{nobody}", f"https://{nobody}"):
        address = parse_address(url)
        assert await lasting_problem(address, tls_context(address, verify=True)) is None
        assert await protocol_problem(address) is None


@pytest.mark.parametrize(
    ("key", "advice"), [(None, "Set target.api_key"), ("sk-wrong-0123456789", "The key was refused")]
)
async def test_a_refused_key_and_a_missing_one_are_told_apart_in_the_servers_own_words(key, advice):
    async with MockServer(MockOptions(api_key="right")) as server:
        message, _ = await said_of(server.url, key=key)
    assert advice in message
    assert "Incorrect API key provided" in message
    assert "{" not in message.replace("${OPENAI_API_KEY}", "")
    assert str(key) not in message
