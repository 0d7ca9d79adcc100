"""What stands between us and a server that no waiting would mend: its name, its scheme, its certificate.

Asked beside the first requests, over connections of its own that carry neither key nor prompt. What may pass
(a refused connection, silence, a name server that is away) is nobody's answer here: None.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from dataclasses import replace

from llmbench.scenario.address import Address

PATIENCE_S = 1.5
"""For one handshake or one short answer; a server that needs longer is not judged."""
_UNKNOWN_NAMES = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})


async def lasting_problem(
    address: Address, tls: ssl.SSLContext | None, *, patience_s: float = PATIENCE_S
) -> str | None:
    """What is wrong and what to do, in lines for a person; None where nothing is or waiting may help."""
    if address.unix_socket is None and (said := await _unknown_name(address, patience_s)):
        return (
            f"{address.base} cannot be reached: the host {address.host}\n"
            f"cannot be resolved to an address ({said}).\n"
            "Is it spelled right, and known on this machine?"
        )
    return None if tls is None else await _tls_problem(address, tls, patience_s)


async def protocol_problem(address: Address, *, patience_s: float = PATIENCE_S) -> str | None:
    """What a server speaks that did not answer plain HTTP well, if it is TLS or something else."""
    if address.tls:
        return None
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    with suppress(OSError, TimeoutError, UnicodeError):
        await _connection(address, anyone, patience_s)
        right = replace(address, tls=True)
        return f"{address.base} expects TLS there.\nWrite {right.base} instead."
    said = await _plain_answer(address, patience_s)
    if not said or b"HTTP/".startswith(said[:5]):
        return None
    shown = said[:20].decode("ascii", "replace").strip()
    return f"{address.base} does not speak HTTP (it says {shown!r}).\nIs it the right port?"


async def _unknown_name(address: Address, patience_s: float) -> str:
    """What the resolver says of a name that does not exist."""
    loop = asyncio.get_running_loop()
    try:
        await asyncio.wait_for(
            loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM), patience_s
        )
    except socket.gaierror as error:
        return str(error.strerror or error) if error.errno in _UNKNOWN_NAMES else ""
    except (OSError, TimeoutError, UnicodeError):
        return ""
    return ""


async def _tls_problem(address: Address, tls: ssl.SSLContext, patience_s: float) -> str | None:
    try:
        await _connection(address, tls, patience_s)
    except ssl.SSLCertVerificationError as error:
        return (
            f"{address.base} shows a certificate that is not trusted ({error.verify_message}).\n"
            "Name the CA's file with --set target.tls_verify=ca.pem, or trust it unchecked with\n"
            "--set target.tls_verify=false"
        )
    except ConnectionRefusedError:
        return None
    except (OSError, TimeoutError, UnicodeError):  # ssl.SSLError is an OSError
        said = await _plain_answer(address, patience_s)
        if said.startswith(b"HTTP/1.") and not said.endswith(b" 400"):  # TLS servers say 400 to it
            plain = replace(address, tls=False)
            return f"{address.base} speaks plain HTTP there, without TLS.\nWrite {plain.base} instead."
    return None


async def _connection(address: Address, tls: ssl.SSLContext, patience_s: float) -> None:
    """Connects, shakes hands and leaves."""
    async with asyncio.timeout(patience_s):
        _, writer = await _open(address, tls)
    writer.transport.abort()


async def _plain_answer(address: Address, patience_s: float) -> bytes:
    """The first bytes of the answer to a request without TLS (`HTTP/1.1 200`); none where none came."""
    said = b""
    with suppress(OSError, TimeoutError, UnicodeError):
        async with asyncio.timeout(patience_s):
            reader, writer = await _open(address, None)
            try:
                writer.write(b"GET /health HTTP/1.1\r\nHost: %b\r\n\r\n" % address.authority.encode())
                said = await reader.read(12)
            finally:
                writer.transport.abort()
    return said


async def _open(
    address: Address, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    name = address.host if tls is not None else None
    if address.unix_socket is not None:
        return await asyncio.open_unix_connection(address.unix_socket, ssl=tls, server_hostname=name)
    return await asyncio.open_connection(address.host, address.port, ssl=tls, server_hostname=name)
