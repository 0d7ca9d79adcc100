"""Reaching the target before anything is measured: is it there, what is it, how does it count.

Target ─▶ destination, TLS, transport ─▶ ready? ─▶ model, traits ─▶ what a word costs in tokens
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llmbench import __version__
from llmbench.client.choose import (
    TransportName,
    choose,
    choose_stamps,
    make_transport,
    proxy_for,
    tls_context,
)
from llmbench.client.control import Control, ServerInfo
from llmbench.client.exchange import Timeouts, Transport
from llmbench.client.kernel_stamps import Stamps, WallClock
from llmbench.client.wire import BodyStyle, Destination, request_headers
from llmbench.scenario.address import is_loopback, parse_address
from llmbench.scenario.model import Scenario, Target
from llmbench.workload.fit import TextFit, fit_text, tokenizer_count
from llmbench.workload.traces import TRACE_KINDS

_MADE_TO_LENGTH = ("synthetic", *TRACE_KINDS)
_TELL_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A target that answers. `fit` is None where no prompt is made to length."""

    destination: Destination
    tls: ssl.SSLContext | None
    timeouts: Timeouts
    transport_name: TransportName
    stamps: Stamps
    stamps_note: str | None
    info: ServerInfo
    style: BodyStyle
    fit: TextFit | None

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine, and shares its cores with us."""
        address = self.destination.address
        return address.unix_socket is not None or is_loopback(address.host)

    def transport(self, wall: WallClock) -> Transport:
        """A transport to it, not yet opened; arrivals stamped by the kernel are converted by `wall`."""
        return make_transport(
            self.transport_name,
            self.destination,
            self.timeouts,
            self.tls,
            wall if self.stamps == "kernel" else None,
        )


async def reach(
    scenario: Scenario,
    *,
    alive: Callable[[], None] = lambda: None,
    tell: Callable[[str], None] = lambda _: None,
) -> Reached:
    """Waits for the target and learns what a run must know of it.

    `alive` may raise when the target's process has died; `tell` is given lines for a person who waits.
    Raises UsageError for settings that cannot be honoured, TargetUnreachable, TargetRefused.
    """
    target = scenario.target
    address = parse_address(target.url or "", target.unix_socket)
    destination = Destination(address=address, api=target.api, headers=_headers(target))
    tls = tls_context(address, target.tls_verify)
    name = choose(scenario.instrument.transport, address)
    stamps, stamps_note = choose_stamps(scenario.instrument.timestamps, name, address)
    async with Control(destination, tls=tls, timeout_s=target.timeout_s, proxy=proxy_for(address)) as control:
        answer = await control.wait_ready(target.ready_timeout_s, alive=alive, waiting=_waiting(target, tell))
        info = await control.describe(answer, target.model)
        style = _style(target, info, ignore_eos=False)
        style = _style(target, info, ignore_eos=await _ignores_eos(scenario, control, style))
        fit = await _fit(scenario, control, style)
    return Reached(
        destination=destination,
        tls=tls,
        timeouts=timeouts_of(target),
        transport_name=name,
        stamps=stamps,
        stamps_note=stamps_note,
        info=info,
        style=style,
        fit=fit,
    )


def timeouts_of(target: Target) -> Timeouts:
    """The target's timeouts as a transport takes them."""
    return Timeouts(
        connect_s=target.connect_timeout_s,
        total_s=target.timeout_s,
        no_progress_s=target.no_progress_timeout_s,
    )


def _headers(target: Target) -> tuple[tuple[str, str], ...]:
    key = target.api_key.get_secret_value() if target.api_key is not None else None
    return request_headers(
        api_key=key, extra=target.headers, stream=target.stream, agent=f"llmbench/{__version__}"
    )


def _style(target: Target, info: ServerInfo, *, ignore_eos: bool) -> BodyStyle:
    return BodyStyle(
        api=target.api,
        model=info.model,
        stream=target.stream,
        usage=target.usage,
        ignore_eos=ignore_eos,
        extra=target.body,
    )


def _waiting(target: Target, tell: Callable[[str], None]) -> Callable[[float], None]:
    told_s = 0.0

    def waiting(waited_s: float) -> None:
        nonlocal told_s
        if waited_s - told_s >= _TELL_EVERY_S:
            told_s = waited_s
            tell(f"waiting for {target.url} ({waited_s:.0f} s of {target.ready_timeout_s:g})")

    return waiting


async def _ignores_eos(scenario: Scenario, control: Control, style: BodyStyle) -> bool:
    """Whether requests carry `ignore_eos`: as the scenario says, or where lengths are asked and taken."""
    asked = scenario.target.ignore_eos
    if isinstance(asked, bool):
        return asked
    asks_lengths = any(one.output_tokens is not None or one.path for one in scenario.workloads)
    return asks_lengths and await control.accepts_ignore_eos(style)


async def _fit(scenario: Scenario, control: Control, style: BodyStyle) -> TextFit | None:
    """What text costs in tokens here, by the server's own counts or a local tokenizer.json."""
    if not any(workload.kind in _MADE_TO_LENGTH for workload in scenario.workloads):
        return None
    is_chat = style.api != "completions"
    systems = [workload.system for workload in scenario.workloads if workload.system]
    if scenario.target.tokenizer is not None:
        count = tokenizer_count(Path(scenario.target.tokenizer), is_chat=is_chat)
        return await fit_text(count, source="tokenizer", is_chat=is_chat, systems=systems)
    source, by_server = await control.counts(style)
    return await fit_text(
        by_server,
        source=source,
        is_chat=is_chat,
        systems=systems,
        count_with_system=(lambda system, text: by_server(text, system)) if is_chat else None,
    )
