"""The kernel's stamps: true however late the loop is, and on the run's clock."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import subprocess
import sys
import time

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from llmbench.bench import run_scenario
from llmbench.client import kernel_stamps
from llmbench.client.kernel_stamps import (
    STEP_NS,
    StampedSockets,
    WallClock,
    ask_for_stamps,
    wall_offset_ns,
    why_not,
)
from llmbench.replay.self_probe import SelfProbe
from llmbench.scenario.address import parse_address
from llmbench.scenario.load import parse_scenario

NEAR = parse_address("http://127.0.0.1:8000")
HAS_STAMPS = why_not("fast", NEAR) is None
needs_stamps = pytest.mark.skipif(not HAS_STAMPS, reason=str(why_not("fast", NEAR)))
both_loops = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


# ---- the clock


def test_the_offset_joins_the_two_clocks():
    assert abs(time.time_ns() - time.monotonic_ns() - wall_offset_ns()) < 1_000_000


@given(
    st.integers(min_value=-(10**12), max_value=10**12),
    st.integers(min_value=0, max_value=10**15),
)
def test_nothing_arrives_after_it_was_read(lag_ns, read_ns):
    wall = WallClock()
    assert wall.arrival_ns(read_ns - lag_ns + wall.offset_ns, read_ns) <= read_ns


@given(st.integers(min_value=0, max_value=10**10), st.integers(min_value=0, max_value=10**15))
def test_a_late_read_keeps_the_arrival(lag_ns, read_ns):
    wall = WallClock()
    assert wall.arrival_ns(read_ns - lag_ns + wall.offset_ns, read_ns) == read_ns - lag_ns


@pytest.mark.parametrize("step_ns", [2_000_000_000, -2_000_000_000, 3_600_000_000_000])
def test_a_clock_that_was_set_moves_no_arrival(monkeypatch, step_ns):
    wall = WallClock()
    before = wall.offset_ns
    monkeypatch.setattr(kernel_stamps, "wall_offset_ns", lambda: before + step_ns)
    # arrived 0.1 ms before it was read, by a wall clock that was set in between looks
    assert wall.arrival_ns(10**12 - 100_000 + before + step_ns, 10**12) == 10**12
    assert wall.largest_step_ns == step_ns
    assert wall.arrival_ns(10**12 - 100_000 + before + step_ns, 10**12) == 10**12 - 100_000


def test_slewing_is_no_step(monkeypatch):
    wall = WallClock()
    before = wall.offset_ns
    monkeypatch.setattr(kernel_stamps, "wall_offset_ns", lambda: before + STEP_NS // 2)
    assert wall.look() == 0
    assert (wall.offset_ns, wall.largest_step_ns) == (before, 0)


# ---- where it can be done


@pytest.mark.parametrize(
    ("transport", "url", "unix_socket", "said"),
    [
        ("fast", "https://host", None, "TLS"),
        ("fast", "http://localhost", "/run/server.sock", "Unix socket"),
        ("aiohttp", "http://host", None, "aiohttp"),
        ("httpx", "http://host", None, "httpx"),
    ],
)
def test_why_it_cannot_be_done_is_said(transport, url, unix_socket, said):
    reason = why_not(transport, parse_address(url, unix_socket))
    assert reason is not None
    assert said in reason or sys.platform != "linux"


# ---- a socket


class Listener:
    """A receiver that notes what it is told."""

    def __init__(self):
        self.reads = []
        self.lost = []
        self.num_drained = 0
        self.ended = asyncio.get_running_loop().create_future()

    def received(self, data, read_ns, arrived_ns):
        self.reads.append((data, read_ns, arrived_ns))

    def resume_writing(self):
        self.num_drained += 1

    def connection_lost(self, exc):
        self.lost.append(exc)
        self.ended.set_result(None)


@contextlib.contextmanager
def connected():
    """(ours, theirs): two ends of a TCP connection; ours non-blocking and stamped."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.socket()
        ask_for_stamps(ours)
        ours.connect(server.getsockname())
        ours.setblocking(False)
        theirs = server.accept()[0]
        with ours, theirs:
            yield ours, theirs


def stamped(ours):
    listener = Listener()
    return listener, StampedSockets(WallClock(), time.monotonic_ns).attach(ours, listener)


@needs_stamps
@both_loops
@pytest.mark.alone
def test_what_waits_for_a_sleeping_loop_bears_the_time_it_came(new_loop):
    async def main():
        with connected() as (ours, theirs):
            listener, wire = stamped(ours)
            theirs.send(b"warm")
            await asyncio.sleep(0.05)
            sent_ns = time.monotonic_ns()
            theirs.send(b"late")
            time.sleep(0.08)  # noqa: ASYNC251 -- the loop sleeps through the arrival
            await asyncio.sleep(0.02)
            wire.abort()
            data, read_ns, arrived_ns = listener.reads[-1]
            assert data == b"late"
            assert -50_000 <= arrived_ns - sent_ns < 5_000_000
            assert read_ns - arrived_ns > 70_000_000

    run(main, new_loop)


@needs_stamps
@both_loops
def test_bytes_come_whole_in_both_directions(new_loop):
    async def main():
        loop = asyncio.get_running_loop()
        with connected() as (ours, theirs):
            listener, wire = stamped(ours)
            theirs.setblocking(False)
            much = bytes(range(256)) * 40_000
            wire.write(much[:5_000_000])
            wire.write(much[5_000_000:])
            assert wire.get_write_buffer_size() > 0
            got = bytearray()
            while len(got) < len(much):
                got += await loop.sock_recv(theirs, 1 << 20)
            assert got == much
            assert (listener.num_drained, wire.get_write_buffer_size()) == (1, 0)
            await loop.sock_sendall(theirs, much)
            theirs.shutdown(socket.SHUT_WR)
            await listener.ended
            assert b"".join(data for data, _, _ in listener.reads) == much
            assert listener.lost == [None]
            stamps = [arrived for _, _, arrived in listener.reads]
            assert all(a <= b for a, b in itertools.pairwise(stamps))
            assert wire.is_closing()

    run(main, new_loop)


@needs_stamps
@both_loops
@pytest.mark.parametrize("is_writing", [False, True])
def test_a_reset_is_told_once(new_loop, is_writing):
    async def main():
        with connected() as (ours, theirs):
            listener, wire = stamped(ours)
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            theirs.send(b"said before")  # libuv would never tell of the reset behind it
            if is_writing:
                wire.write(b"x" * 10_000_000)
                await asyncio.sleep(0.01)
            theirs.close()
            await listener.ended
            wire.abort()
            await asyncio.sleep(0.01)
            assert [data for data, _, _ in listener.reads] == [b"said before"]
            assert len(listener.lost) == 1
            assert isinstance(listener.lost[0], ConnectionError)
            wire.write(b"nobody hears this")
            assert wire.get_write_buffer_size() == 0

    run(main, new_loop)


def run(main, new_loop):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


# ---- a whole run whose loop is slow on purpose


@contextlib.contextmanager
def mock_process(*flags):
    """The mock in a process of its own: one in a thread would wait for the busy loop's interpreter."""
    command = [sys.executable, "-m", "llmbench.mock", "--port", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child.stdout.readline().split()[-1]
        finally:
            child.terminate()


def slow_run(monkeypatch, tmp_path, timestamps):
    """A run against exact 100 ms / 10 ms, with 20 ms of busy wait in every 100."""
    usual = SelfProbe._tick
    ticks = itertools.count()

    def busy(probe):
        if next(ticks) % 4 == 0:
            until = time.perf_counter() + 0.02
            while time.perf_counter() < until:
                pass
        usual(probe)

    monkeypatch.setattr(SelfProbe, "_tick", busy)
    with mock_process("--ttft", "100ms", "--itl", "10ms") as url:
        scenario = {
            "name": "slow-loop",
            "target": {"url": url},
            "load": {"arrivals": "constant", "rate": "20/s", "duration": "3s"},
            "workload": {"kind": "inline", "prompts": ["Hi"], "output_tokens": 30},
            "instrument": {"timestamps": timestamps},
        }
        return run_scenario(parse_scenario(scenario), out=tmp_path).summary


@needs_stamps
@pytest.mark.alone
def test_a_slow_loop_does_not_move_what_the_kernel_stamped(monkeypatch, tmp_path):
    summary = slow_run(monkeypatch, tmp_path, "kernel")
    assert summary["instrument"]["timestamps"] == "kernel"
    assert summary["metrics"]["itl"]["p50"] == pytest.approx(0.010, abs=0.001)
    assert summary["metrics"]["ttft"]["p50"] == pytest.approx(0.100, abs=0.005)
    assert summary["instrument"]["read_lag_p99_s"] > 0.005
    assert "loop_late" not in {reason["code"] for reason in summary["verdict"]["reasons"]}


@pytest.mark.alone
def test_a_slow_loop_that_stamps_itself_is_not_to_be_believed(monkeypatch, tmp_path):
    summary = slow_run(monkeypatch, tmp_path, "loop")
    assert summary["instrument"]["timestamps"] == "loop"
    assert summary["instrument"]["read_lag_p99_s"] is None
    assert summary["verdict"]["status"] == "INVALID"
    late = [reason for reason in summary["verdict"]["reasons"] if reason["code"] == "loop_late"]
    assert late
    assert late[0]["measured"] > 1
    assert "instrument.timestamps: auto" in late[0]["hint"]


@pytest.mark.parametrize(
    ("target", "transport"),
    [({"url": "https://127.0.0.1:1"}, "fast"), ({"url": "http://127.0.0.1:1"}, "aiohttp")],
)
def test_stamps_that_are_asked_for_and_cannot_be_are_a_mistake(target, transport, tmp_path):
    scenario = {
        "target": target,
        "load": {"arrivals": "constant", "rate": "20/s", "duration": "3s"},
        "workload": {"kind": "inline", "prompts": ["Hi"], "output_tokens": 30},
        "instrument": {"timestamps": "kernel", "transport": transport},
    }
    with pytest.raises(Exception, match=r"instrument\.timestamps"):
        run_scenario(parse_scenario(scenario), out=tmp_path)
