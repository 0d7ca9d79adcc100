"""Which transport carries a run, and the TLS and proxy settings that all of them share.

The fast transport is the default: in the repository's self-benchmark (tests/benchmarks) it stamps the most
events for a second of CPU, and on every stream of the corpus it gives what aiohttp gives. aiohttp takes over
where the environment names a proxy, which the fast one does not speak to.
"""

from __future__ import annotations

import ssl
from typing import Literal
from urllib.request import getproxies, proxy_bypass

from llmbench.client.exchange import Timeouts, Transport
from llmbench.client.kernel_stamps import Stamps, WallClock, why_not
from llmbench.client.wire import Destination
from llmbench.errors import UsageError
from llmbench.scenario.address import Address

TransportName = Literal["fast", "aiohttp", "httpx"]

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of plain http that want a context all the same: trusts nobody, and loads no certificates, which
takes httpx a tenth of a second."""


def proxy_for(address: Address) -> str | None:
    """The proxy that the environment names for this host (HTTP_PROXY, HTTPS_PROXY, NO_PROXY), if any."""
    if address.unix_socket is not None or address.host in ("localhost", "127.0.0.1", "::1"):
        return None
    if proxy_bypass(address.host):
        return None
    return getproxies().get("https" if address.tls else "http")


def tls_context(address: Address, verify: bool | str) -> ssl.SSLContext | None:
    """The TLS settings of an https target: the system's certificates, a CA file, or none checked.

    Raises UsageError for a CA file that cannot be read.
    """
    if not address.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"target.tls_verify: {verify}: not a readable CA file ({error})") from error
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def choose(asked: Literal["auto"] | TransportName, address: Address) -> TransportName:
    """The transport for a run. Raises UsageError where the one asked for cannot do what is needed."""
    proxy = proxy_for(address)
    if asked == "auto":
        return "aiohttp" if proxy else "fast"
    if asked == "fast" and proxy:
        raise UsageError(
            "instrument.transport: fast cannot go through the proxy that the environment names for "
            f"{address.host}; write aiohttp, or add the host to NO_PROXY"
        )
    return asked


def choose_stamps(
    asked: Literal["auto"] | Stamps, transport: TransportName, address: Address
) -> tuple[Stamps, str | None]:
    """Who stamps arrivals, and why not the kernel where it does not. Raises UsageError where only the kernel
    may and cannot.
    """
    if asked == "loop":
        return "loop", "instrument.timestamps: loop"
    hindrance = why_not(transport, address)
    if hindrance is None:
        return "kernel", None
    if asked == "kernel":
        raise UsageError(f"instrument.timestamps: kernel: {hindrance}; write auto or loop")
    return "loop", hindrance


def make_transport(
    name: TransportName,
    destination: Destination,
    timeouts: Timeouts,
    tls: ssl.SSLContext | None,
    wall: WallClock | None = None,
) -> Transport:
    """The transport of that name; the library behind it is imported only now. With a `wall` clock the kernel
    stamps what arrives, which `choose_stamps` has found possible.
    """
    proxy = proxy_for(destination.address)
    match name:
        case "fast":
            from llmbench.client.http1 import FastTransport

            return FastTransport(destination, timeouts, tls=tls, wall=wall)
        case "aiohttp":
            from llmbench.client.aiohttp_transport import AiohttpTransport

            return AiohttpTransport(destination, timeouts, tls=tls, proxy=proxy)
        case "httpx":
            from llmbench.client.httpx_transport import HttpxTransport

            return HttpxTransport(destination, timeouts, tls=tls, proxy=proxy)
