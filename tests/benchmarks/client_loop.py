"""One client loop against one server, in a process of its own; prints its figures as a JSON line.

    python -m tests.benchmarks.client_loop CLIENT PORT --streams 256 --requests 768 --tokens 100

Clients:
    fast, aiohttp, httpx          llmbench's transports, exchanges decoded to answers after the window
    fast+kernel                   the fast transport, reading with the kernel's stamps
    fast+records                  the fast transport, each answer decoded and written as a journal line
                                  while the others still stream, as a run does it
    bare-aiohttp                  aiohttp `iter_any`: stamps and counts, keeps nothing
    bare-httpx                    httpx `aiter_lines`: stamps and counts, keeps nothing

`cpu_s` is the process's own user and system time from just before the first request to the last answer's
end (connections made inside it by aiohttp and httpx, as they offer no other way); `decode_s` the CPU time
of what was done after the window.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise

from llmbench.client.answer import Answer
from llmbench.client.decode import decode, decode_steps
from llmbench.client.exchange import Exchange, Timeouts, Transport
from llmbench.client.kernel_stamps import WallClock
from llmbench.client.wire import BodyStyle, Destination, render_body, request_headers
from llmbench.environment import quiet_collector
from llmbench.records import Outcome, RequestRecord, to_journal
from llmbench.replay.slices import Slices
from llmbench.scenario.address import parse_address


def cpu_seconds() -> float:
    """User and system time of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Tally:
    """What a client loop saw: per request the send time and the event stamps, ns."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.stamps: list[list[int]] = []
        self.cpu_s = 0.0
        self.wall_s = 0.0
        self.decode_s = 0.0

    def window(self) -> Callable[[], None]:
        """Starts the clocks; the function it returns stops them."""
        cpu, wall = cpu_seconds(), time.perf_counter()

        def stop() -> None:
            self.cpu_s, self.wall_s = cpu_seconds() - cpu, time.perf_counter() - wall

        return stop

    def figures(self) -> dict[str, float]:
        """Rates and quantiles for the JSON line; times in ms."""
        ttft = [(s[0] - t) / 1e6 for t, s in zip(self.sent, self.stamps, strict=True) if s]
        gaps = [(b - a) / 1e6 for s in self.stamps for a, b in pairwise(s)]
        events = sum(map(len, self.stamps))
        return {
            "requests": len(self.sent),
            "events": events,
            "wall_s": self.wall_s,
            "cpu_s": self.cpu_s,
            "decode_s": self.decode_s,
            "events_per_s": events / self.wall_s,
            "events_per_cpu_s": events / self.cpu_s,
            "events_per_cpu_s_with_decoding": events / (self.cpu_s + self.decode_s),
            "requests_per_s": len(self.sent) / self.wall_s,
            "requests_per_cpu_s": len(self.sent) / self.cpu_s,
            "ttft_p50_ms": quantile(ttft, 0.5),
            "ttft_p99_ms": quantile(ttft, 0.99),
            "itl_p50_ms": quantile(gaps, 0.5),
            "itl_p99_ms": quantile(gaps, 0.99),
        }


def quantile(values: list[float], share: float) -> float:
    """A plain order statistic; 0 for no values."""
    values.sort()
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def make_transport(name: str, port: int) -> tuple[Transport, Destination, BodyStyle]:
    """One of llmbench's transports, pointed at the local server."""
    destination = Destination(
        address=parse_address(f"http://127.0.0.1:{port}"),
        api="chat",
        headers=request_headers(api_key=None, extra={}, stream=True, agent="llmbench"),
    )
    timeouts = Timeouts(total_s=600, no_progress_s=600)
    style = BodyStyle(api="chat", model="truth", usage=False, extra={})
    if name == "aiohttp":
        from llmbench.client.aiohttp_transport import AiohttpTransport

        return AiohttpTransport(destination, timeouts), destination, style
    if name == "httpx":
        from llmbench.client.httpx_transport import HttpxTransport

        return HttpxTransport(destination, timeouts), destination, style
    from llmbench.client.http1 import FastTransport

    wall = WallClock() if "+kernel" in name else None
    return FastTransport(destination, timeouts, wall=wall), destination, style


class ClosedLoop:
    """A closed loop over a transport: a slot sends its next request when one has ended."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.transport, self.destination, style = make_transport(
            args.client.removesuffix("+records"), args.port
        )
        self.payload = render_body(style, prompt="hello " * 20, max_tokens=args.tokens)
        self.slices = Slices() if args.client.endswith("+records") else None
        self.ended: list[Exchange] = []
        self.answers: list[tuple[Exchange, Answer]] = []
        self.lines: list[bytes] = []
        self.finished = asyncio.get_running_loop().create_future()
        self.started = 0
        self.freed = 0

    def launch(self) -> None:
        """Sends one request."""
        outgoing = self.destination.frame(self.started, f"bench-{self.started}", self.payload)
        self.started += 1
        self.transport.send(outgoing, self.on_end)

    def on_end(self, exchange: Exchange) -> None:
        """Books an ended request and sends the next."""
        if self.slices is not None:
            self.slices.add(self.digest(exchange))
        self.ended.append(exchange)
        self.freed += 1
        if self.freed == 1:  # as the runner does it: reads first, then sends
            asyncio.get_running_loop().call_soon(self.fill)
        if len(self.ended) == self.args.requests:
            self.finished.set_result(None)

    def fill(self) -> None:
        """Sends the next request of every slot that has become free."""
        freed, self.freed = self.freed, 0
        for _ in range(min(freed, self.args.requests - self.started)):
            self.launch()

    def digest(self, exchange: Exchange) -> Iterator[None]:
        """Decodes as a run does, between reads."""
        answer = yield from decode_steps(exchange, "chat", keep_text=False)
        self.lines.append(to_journal(record_of(exchange, answer)))
        self.answers.append((exchange, answer))
        exchange.chunks = []


async def run_transport(args: argparse.Namespace, tally: Tally) -> None:
    """One of llmbench's transports, from the first request to the last end; then what was left to decode."""
    loop = ClosedLoop(args)
    await loop.transport.open(args.streams)
    stop = tally.window()
    for _ in range(min(args.streams, args.requests)):
        loop.launch()
    await loop.finished
    if loop.slices is not None:
        loop.slices.finish()
    stop()
    await loop.transport.close()
    before = cpu_seconds()
    if loop.slices is None:
        loop.answers = [(one, decode(one, "chat", keep_text=False)) for one in loop.ended]
    tally.decode_s = cpu_seconds() - before
    for exchange, answer in loop.answers:
        assert answer.outcome == "ok", answer.error
        tally.sent.append(exchange.sent_ns or 0)
        tally.stamps.append(answer.event_ns)


def record_of(exchange: Exchange, answer: Answer) -> RequestRecord:
    """The record a run would keep."""
    return RequestRecord(
        index=exchange.index,
        phase="measure",
        outcome=Outcome(answer.outcome),
        sent_ns=exchange.sent_ns,
        headers_ns=exchange.headers_ns,
        event_ns=answer.event_ns,
        event_tokens=answer.event_tokens,
        end_ns=answer.end_ns,
        output_tokens=answer.output_tokens,
        http_status=exchange.status,
        request_id=exchange.request_id,
    )


async def run_bare(args: argparse.Namespace, tally: Tally) -> None:
    """A task a slot, each on the library's own session: stamps and counts, nothing else."""
    url = f"http://127.0.0.1:{args.port}/v1/chat/completions"
    style = BodyStyle(api="chat", model="truth", usage=False, extra={})
    payload = render_body(style, prompt="hello " * 20, max_tokens=args.tokens)
    left = args.requests

    async def slot(one: Callable[[], Awaitable[None]]) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await one()

    if args.client == "bare-aiohttp":
        import aiohttp

        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None)
        ) as session:

            async def one() -> None:
                sent, stamps = time.monotonic_ns(), []
                async with session.post(
                    url, data=payload, headers={"Content-Type": "application/json"}
                ) as response:
                    async for data in response.content.iter_any():
                        stamps += [time.monotonic_ns()] * data.count(b"data: {")
                tally.sent.append(sent)
                tally.stamps.append(stamps)

            stop = tally.window()
            await asyncio.gather(*(slot(one) for _ in range(args.streams)))
            stop()
        return
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None) as client:

        async def one_line_by_line() -> None:
            sent = time.monotonic_ns()
            async with client.stream(
                "POST", url, content=payload, headers={"Content-Type": "application/json"}
            ) as response:
                stamps = [
                    time.monotonic_ns() async for line in response.aiter_lines() if line.startswith("data: {")
                ]
            tally.sent.append(sent)
            tally.stamps.append(stamps)

        stop = tally.window()
        await asyncio.gather(*(slot(one_line_by_line) for _ in range(args.streams)))
        stop()


def main() -> None:
    """Runs one client loop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("client")
    parser.add_argument("port", type=int)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--requests", type=int, default=768)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    args = parser.parse_args()
    tally = Tally()
    if not args.client.startswith("bare-"):
        quiet_collector()  # as a run does it; the bare loops are as one would write them
    work = run_bare(args, tally) if args.client.startswith("bare-") else run_transport(args, tally)
    if args.loop == "uvloop":
        import uvloop

        uvloop.run(work)
    else:
        asyncio.run(work)
    sys.stdout.write(json.dumps({"client": args.client, **tally.figures()}) + "\n")


if __name__ == "__main__":
    main()
