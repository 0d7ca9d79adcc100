"""When requests are sent, and that every one of them is accounted for, on a real loop in short runs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbench.client.exchange import Exchange, Outgoing
from llmbench.load.arrivals import ConcurrencySteps
from llmbench.load.plan import Plan, make_plan
from llmbench.records import Outcome
from llmbench.replay.runner import READY_AHEAD, Prepared, Runner, RunnerOptions
from llmbench.scenario.model import Scenario
from tests.llmbench.exchanges import DONE, delta, event
from tests.llmbench.scripted import WHOLE, Caller, Scripted, run_on

MS = 1_000_000
BODY = event(delta(content="Hi")) + event(delta(finish="stop")) + DONE
BUSY_S = 0.08  # what a loaded machine may add


@dataclass(frozen=True)
class Spec:
    index: int
    tenant: str | None = None
    session: str | None = None
    turn: int | None = None
    input_tokens_asked: int | None = 3
    output_tokens_asked: int | None = 1


def prepare(index):
    return Prepared(Outgoing(index=index, request_id=f"r-{index}", message=b"{}", body_start=0), Spec(index))


class Line:
    """A transport whose exchanges take `takes_s(index)` and end as `how(index)` says: ok or a breakage;
    "never" ends only by `abort`.
    """

    name = "line"

    def __init__(self, takes_s=lambda _: 0.0, how=lambda _: "ok", clock=time.monotonic_ns):
        self._takes_s, self._how, self._clock = takes_s, how, clock
        self._live = {}
        self.sent = []  # (index, instant)
        self.peak = 0
        self.warmed = []  # (connections, instant)

    async def open(self, connections): ...

    async def warm(self, connections):
        self.warmed.append((connections, self._clock()))

    async def close(self): ...

    def send(self, outgoing, done):
        exchange = Exchange(outgoing.index, outgoing.request_id, self._clock())
        exchange.sent_ns = exchange.start_ns
        self.sent.append((outgoing.index, exchange.start_ns))
        self._live[exchange] = done
        self.peak = max(self.peak, len(self._live))
        how = self._how(outgoing.index)
        if how != "never":
            asyncio.get_running_loop().call_later(self._takes_s(outgoing.index), self._end, exchange, how)

    def _end(self, exchange, how):
        if exchange not in self._live:
            return
        now = self._clock()
        if how == "ok":
            exchange.status = 200
            exchange.headers_ns = exchange.end_ns = now
            exchange.raw_headers = {b"content-type": b"text/event-stream"}
            exchange.chunks, exchange.read_ns, exchange.read_chunks = [BODY], [now], [1]
        else:
            exchange.break_off(how, "as the test says", now)
        self._live.pop(exchange)(exchange)

    def abort(self, detail):
        for exchange in list(self._live):
            exchange.break_off("cancelled", detail, self._clock())
            self._live.pop(exchange)(exchange)


def plan_of(**load):
    return make_plan(
        Scenario.model_validate(
            {
                "name": "t",
                "target": {"url": "http://h"},
                "load": load,
                "workload": {"kind": "inline", "prompts": ["Hi"]},
            }
        )
    )


def due_at(*instants_ms, warmup_ms=0):
    """An open-loop plan with these due instants."""
    due = np.array([round(at * MS) for at in instants_ms], dtype=np.int64)
    return Plan(
        arrivals="trace",
        seed=0,
        warmup_ns=warmup_ms * MS,
        duration_ns=None,
        num_requests=int((due >= warmup_ms * MS).sum()),
        num_warmup=int((due < warmup_ms * MS).sum()),
        due_ns=due,
        schedule_hash="",
        headline="",
    )


def slots(users, *, at_ms=(0,), requests=None, duration_ms=None, warmup_ms=0, think=None):
    """A closed-loop plan: `users` from `at_ms` on."""
    users = (users,) if isinstance(users, int) else users
    steps = ConcurrencySteps(
        at_ns=np.array([at * MS for at in at_ms], dtype=np.int64), users=np.array(users, dtype=np.int64)
    )
    return Plan(
        arrivals="closed",
        seed=0,
        warmup_ns=warmup_ms * MS,
        duration_ns=None if duration_ms is None else duration_ms * MS,
        num_requests=requests,
        concurrency=steps,
        think_times=think,
        schedule_hash="",
        headline="",
    )


class Ended:
    """A run that is over."""

    def __init__(self, runner, line, records):
        self.runner, self.line = runner, line
        self.records = sorted(records, key=lambda record: record.index)
        self.outcomes = Counter(record.outcome.value for record in records)
        self.sent_ms = {index: (at - runner.epoch_ns) / MS for index, at in line.sent}


def go(plan, line=None, *, meanwhile=None, loop="uvloop", prepare=prepare, start=None, **options):
    line = line or Line()
    records = []
    settings_ = {"api": "chat", "stream": True, "max_in_flight": 10**6, "drain_timeout_s": 5.0, **options}

    async def main():
        runner = Runner(plan, prepare, line, records.append, RunnerOptions(**settings_))
        task = asyncio.ensure_future(meanwhile(runner)) if meanwhile else None
        await asyncio.wait_for(runner.run(start), 20)
        if task is not None:
            await task
        return Ended(runner, line, records)

    return run_on(loop, main)


def indices_are_whole(ended):
    return [record.index for record in ended.records] == list(range(len(ended.records)))


# ---- open loop


@pytest.mark.alone
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_requests_are_sent_when_they_are_due(loop):
    """A quiet loop sends within a fraction of a millisecond. A busy machine gets three tries and keeps its
    slower half.
    """
    due = [0.0, 1.5, 3.7, *np.linspace(10, 300, 100)]
    typical = []
    while len(typical) < 3 and not any(lag < 0.5 for lag in typical):
        ended = go(due_at(*due), loop=loop)
        lags = sorted(ended.sent_ms[index] - at for index, at in enumerate(due))
        assert lags[0] >= 0
        assert [record.due_ns for record in ended.records] == [round(at * MS) for at in due]
        assert all(record.sent_ns >= record.due_ns for record in ended.records)
        typical.append(lags[len(lags) // 4])
    assert min(typical) < 1.0


@pytest.mark.alone
def test_a_loop_that_stalled_catches_up_at_once_and_shifts_nothing():
    async def stall(runner):
        await asyncio.sleep(0.05)
        time.sleep(0.1)  # noqa: ASYNC251 -- the stall is the point

    due = list(range(0, 300, 10))
    ended = go(due_at(*due), meanwhile=stall)
    sent = ended.sent_ms
    stalled = [index for index, at in enumerate(due) if 60 <= at <= 145]
    assert max(sent[index] for index in stalled) - min(sent[index] for index in stalled) < 20
    assert min(sent[index] - due[index] for index in sent if due[index] > 160) < 2
    assert ended.outcomes == {"ok": 30}


@pytest.mark.alone
def test_the_answers_of_a_slow_server_delay_no_request():
    ended = go(due_at(*range(0, 100, 5)), Line(takes_s=lambda _: 0.15))
    assert ended.line.peak == 20
    assert max(ended.sent_ms[index] - 5 * index for index in range(20)) < BUSY_S * 1000


def test_arrivals_above_the_limit_are_recorded_as_dropped():
    ended = go(due_at(*range(10)), Line(takes_s=lambda _: 0.1), max_in_flight=3)
    assert ended.outcomes == {"ok": 3, "dropped": 7}
    dropped = [record for record in ended.records if record.outcome is Outcome.DROPPED]
    assert all(record.sent_ns is None and record.due_ns is not None for record in dropped)
    assert all("max_in_flight" in record.error for record in dropped)
    assert ended.line.peak == 3


def test_warm_up_requests_are_told_by_their_due_time():
    ended = go(due_at(0, 10, 20, 29.999, 30, 40, warmup_ms=30))
    assert [record.phase for record in ended.records] == ["warmup"] * 4 + ["measure"] * 2


def test_a_long_plan_is_rendered_ahead_and_in_order():
    count = READY_AHEAD * 3
    ended = go(due_at(*np.linspace(0, 300, count)))
    assert ended.outcomes == {"ok": count}
    assert [index for index, _ in ended.line.sent] == list(range(count))


# ---- closed loop


@pytest.mark.parametrize("users", [1, 3, 17])
def test_exactly_as_many_as_asked_are_in_flight(users):
    ended = go(slots(users, requests=60), Line(takes_s=lambda index: 0.002 + index % 3 * 0.003))
    assert ended.line.peak == users
    assert ended.outcomes == {"ok": 60}
    assert indices_are_whole(ended)
    assert all(record.due_ns is None for record in ended.records)


def test_more_users_than_requests():
    assert go(slots(50, requests=7)).outcomes == {"ok": 7}


@pytest.mark.alone
def test_the_time_ends_a_closed_loop():
    ended = go(slots(2, duration_ms=150), Line(takes_s=lambda _: 0.02))
    assert max(ended.sent_ms.values()) < 150
    assert 8 <= len(ended.records) <= 16
    assert set(ended.outcomes) == {"ok"}


@pytest.mark.alone
def test_warm_up_comes_on_top_of_the_requests_asked():
    ended = go(slots(2, requests=6, warmup_ms=60), Line(takes_s=lambda _: 0.01))
    phases = Counter(record.phase for record in ended.records)
    assert phases["measure"] == 6
    assert phases["warmup"] >= 2
    for record in ended.records:
        assert (record.sent_ns < 60 * MS) == (record.phase == "warmup")


@pytest.mark.alone
def test_a_ramp_starts_and_stops_users():
    plan = slots((1, 4, 2), at_ms=(0, 100, 200), duration_ms=300)
    ended = go(plan, Line(takes_s=lambda _: 0.02))
    spans = [(record.sent_ns / MS, record.end_ns / MS) for record in ended.records]

    def most_together(from_ms, until_ms):
        sends = [start for start, _ in spans if from_ms <= start < until_ms]
        return max(sum(start <= at < end for start, end in spans) for at in sends)

    assert most_together(0, 100) == 1
    assert most_together(100, 200) == 4
    assert most_together(250, 300) <= 2


def test_users_may_come_only_later():
    ended = go(slots((0, 2), at_ms=(0, 80), requests=4), Line(takes_s=lambda _: 0.01))
    assert min(ended.sent_ms.values()) >= 80
    assert ended.outcomes == {"ok": 4}


class Thinking:
    def at_s(self, index):
        return 0.03


@pytest.mark.alone
def test_a_user_thinks_between_an_answer_and_the_next_request():
    ended = go(slots(1, requests=4, think=Thinking()), Line(takes_s=lambda _: 0.01))
    starts = [at for _, at in sorted(ended.sent_ms.items())]
    gaps = np.diff(starts)
    assert (gaps >= 38).all()
    assert (gaps < 40 + BUSY_S * 1000).all()


def test_the_end_does_not_wait_for_thoughts():
    class Long:
        def at_s(self, index):
            return 30.0

    started = time.monotonic()
    ended = go(slots(2, duration_ms=100, think=Long()))
    assert time.monotonic() - started < 5
    assert ended.outcomes == {"ok": 2}


# ---- the end


@pytest.mark.alone
def test_what_does_not_end_is_cancelled_after_the_drain_timeout():
    line = Line(how=lambda index: "never" if index == 1 else "ok")
    ended = go(due_at(0, 1, 2), line, drain_timeout_s=0.1)
    assert ended.outcomes == {"ok": 2, "cancelled": 1}
    (record,) = [record for record in ended.records if record.outcome is Outcome.CANCELLED]
    assert "0.1 s after the last send" in record.error
    assert 0.1 <= record.end_ns / 1e9 < 0.1 + 2 * BUSY_S


@pytest.mark.parametrize(
    "plan",
    [due_at(*range(0, 2000, 10)), slots(3, requests=200), slots(3, duration_ms=60_000)],
    ids=["open", "closed with requests", "closed with a duration"],
)
def test_an_interrupted_run_accounts_for_every_planned_request(plan):
    async def interrupt(runner):
        await asyncio.sleep(0.1)
        runner.stop(interrupted=True)

    ended = go(plan, Line(takes_s=lambda _: 0.03), meanwhile=interrupt)
    assert ended.runner.interrupted
    assert indices_are_whole(ended)
    assert ended.outcomes["ok"] >= 6
    if plan.num_requests is not None:
        assert len(ended.records) == 200
        assert ended.outcomes == {"ok": len(ended.line.sent), "cancelled": 200 - len(ended.line.sent)}
        assert ended.records[-1].error == "the run was stopped before this request was sent"


def test_an_interrupt_while_the_run_drains_is_an_interrupt_too():
    """A first Ctrl-C in the drain was once ignored, and so was every one after it: nobody could leave."""

    async def interrupt(runner):
        await asyncio.sleep(0.05)
        assert runner.is_stopped
        runner.stop(interrupted=True)

    ended = go(due_at(0, 1), Line(takes_s=lambda _: 0.15), meanwhile=interrupt)
    assert ended.runner.interrupted
    assert ended.outcomes == {"ok": 2}


def test_a_run_whose_time_was_up_is_not_short_of_requests_when_interrupted_late():
    async def interrupt(runner):
        await asyncio.sleep(0.15)
        runner.stop(interrupted=True)

    ended = go(slots(1, requests=50, duration_ms=50), Line(takes_s=lambda _: 0.3), meanwhile=interrupt)
    assert ended.outcomes == {"ok": 1}


# ---- what goes wrong on our side


def failing(index):
    if index == READY_AHEAD + 5:
        raise ZeroDivisionError("a fault of ours")
    return prepare(index)


@pytest.mark.parametrize(
    "plan", [due_at(*np.linspace(0, 500, 600)), slots(4, requests=600)], ids=["open", "closed"]
)
def test_a_fault_of_our_own_ends_the_run_instead_of_hanging_it(plan):
    """Once a callback that raised was only logged; nothing woke the run again."""
    with pytest.raises(ZeroDivisionError, match="a fault of ours"):
        go(plan, Line(takes_s=lambda _: 0.001), prepare=failing)


def test_a_missing_page_is_told_with_its_address():
    class Missing(Line):
        def _end(self, exchange, how):
            exchange.status, exchange.end_ns = 404, self._clock()
            exchange.raw_headers = {b"Content-Type": b"text/plain"}
            self._live.pop(exchange)(exchange)

    ended = go(due_at(0), Missing(), url="http://h:1/v1/v1/chat/completions")
    assert ended.records[0].error == "HTTP 404 (POST http://h:1/v1/v1/chat/completions)"


def test_secrets_are_taken_out_of_what_the_server_says():
    class Echo(Line):
        def _end(self, exchange, how):
            exchange.status, exchange.end_ns = 401, self._clock()
            exchange.raw_headers = {b"x-request-id": b"for-k-secret"}
            exchange.chunks = [b'{"error": {"message": "bad key k-secret"}}']
            self._live.pop(exchange)(exchange)

    ended = go(due_at(0), Echo(), scrub=lambda text: text.replace("k-secret", "***"), save_text=True)
    assert "k-secret" not in repr(ended.records[0])


# ---- planned = the sum of outcomes

ENDS = st.sampled_from(
    ["ok", "ok", "connect", "reset", "closed", "protocol", "timeout", "no_progress", "never"]
)


@settings(max_examples=40)
@given(
    st.one_of(
        st.lists(st.integers(0, 60), min_size=1, max_size=30).map(lambda due: due_at(*sorted(due))),
        st.builds(slots, st.integers(1, 5), requests=st.integers(1, 30)),
        st.builds(
            slots, st.integers(1, 5), requests=st.none() | st.integers(1, 9), duration_ms=st.integers(1, 60)
        ),
    ),
    st.lists(st.tuples(ENDS, st.integers(0, 30)), min_size=1, max_size=8),
    st.integers(1, 8),
    st.none() | st.integers(0, 60),
    st.booleans(),
)
def test_planned_is_always_the_sum_of_outcomes(plan, ends, limit, stop_ms, interrupted):
    async def stop(runner):
        if stop_ms is not None:
            await asyncio.sleep(stop_ms / 1000)
            runner.stop(interrupted=interrupted)

    if plan.due_ns is None and plan.duration_ns is None and stop_ms is None:
        ends = [("timeout" if how == "never" else how, ms) for how, ms in ends]  # as a transport would
    line = Line(lambda index: ends[index % len(ends)][1] / 1000, lambda index: ends[index % len(ends)][0])
    ended = go(plan, line, meanwhile=stop, max_in_flight=limit, drain_timeout_s=0.04)
    assert indices_are_whole(ended)
    assert ended.runner.num_ended == len(ended.records) == sum(ended.outcomes.values())
    assert ended.outcomes["dropped"] + ended.runner.num_sent <= len(ended.records)
    if plan.due_ns is not None:
        assert len(ended.records) == len(plan.due_ns)
    elif plan.num_requests is not None and plan.duration_ns is None and (stop_ms is None or interrupted):
        assert len(ended.records) == plan.num_requests
    assert ended.runner.in_flight == 0


def test_plans_made_from_scenarios_run_too():
    ended = go(plan_of(arrivals="poisson", rate="300/s", duration="200ms", warmup="50ms"))
    assert ended.outcomes == {"ok": len(ended.records)}
    ended = go(plan_of(arrivals="closed", concurrency=3, think_time="1ms", requests=20))
    assert ended.outcomes == {"ok": 20}


# ---- bursts


@pytest.mark.alone
def test_connections_are_made_before_a_burst_is_due():
    ended = go(due_at(*[0.0] * 8, 500, *[1000.0] * 32))
    assert [size for size, _ in ended.line.warmed] == [8, 32]
    at_once, ahead = ((at - ended.runner.epoch_ns) / MS for _, at in ended.line.warmed)
    assert at_once <= 0  # before the run's clock starts
    assert 600 <= ahead < 1000
    assert len(ended.records) == 41


def test_no_more_connections_are_made_than_may_be_used():
    assert [size for size, _ in go(due_at(*[0.0] * 100), max_in_flight=20).line.warmed] == [20]


@pytest.mark.parametrize("size", [32, 100])
def test_a_burst_waits_for_no_connection(size):
    """A burst of 32 was late by all its connects: 10 ms and more, the first request like the last."""
    exchanges = []

    async def main():
        async with Scripted(lambda _: [WHOLE]) as server, Caller("fast", server.url) as caller:
            send = caller.transport.send

            def noted_send(outgoing, done):
                def noted(exchange):
                    exchanges.append(exchange)
                    done(exchange)

                send(outgoing, noted)

            caller.transport.send = noted_send
            options = RunnerOptions(api="chat", stream=True, max_in_flight=512, drain_timeout_s=5)
            runner = Runner(
                due_at(0.0, *[900.0] * size),
                lambda index: Prepared(caller.outgoing(index), Spec(index)),
                caller.transport,
                [].append,
                options,
            )
            await asyncio.wait_for(runner.run(), 20)

    run_on("uvloop", main)
    assert len(exchanges) == size + 1
    assert {exchange.connect_ns for exchange in exchanges} == {None}


# ---- one start for several


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("plan", [due_at(0, 0, 20), slots(3, requests=9)], ids=["open", "closed"])
def test_a_start_that_lies_ahead_is_waited_for(plan, loop):
    async def start():
        return time.monotonic_ns() + 150 * MS

    ended = go(plan, start=start, loop=loop)
    assert min(ended.sent_ms.values()) >= 0
    assert min(ended.sent_ms.values()) < 1000 * BUSY_S
    assert ended.outcomes == {"ok": len(ended.records)}


def test_all_is_ready_before_the_start_is_asked_for():
    line = Line()
    prepared = []

    def noted(index):
        prepared.append(index)
        return prepare(index)

    async def start():
        assert len(prepared) == READY_AHEAD
        assert line.warmed
        assert not line.sent
        return time.monotonic_ns()

    go(due_at(*[0] * 300), line, start=start, prepare=noted)
    assert len(line.sent) == 300


@pytest.mark.parametrize("plan", [due_at(0, 20, 40), slots(3, requests=9)], ids=["open", "closed"])
def test_a_run_that_is_stopped_before_its_start_sends_nothing(plan):
    line = Line()

    async def main():
        records = []
        options = RunnerOptions(api="chat", stream=True, max_in_flight=9, drain_timeout_s=5)
        runner = Runner(plan, prepare, line, records.append, options)

        async def start():
            runner.stop(interrupted=True)
            return time.monotonic_ns()

        await asyncio.wait_for(runner.run(start), 10)
        return records

    records = run_on("uvloop", main)
    assert not line.sent
    assert [record.outcome for record in records] == ["cancelled"] * (3 if plan.is_open else 9)


@pytest.mark.parametrize("worker", [0, 1, 2])
def test_a_share_keeps_the_indices_of_the_whole(worker):
    whole = due_at(*range(0, 80, 10))
    line = Line()
    ended = go(whole.share(worker, 3), line)
    expected = list(range(worker, 8, 3))
    assert [record.index for record in ended.records] == expected
    assert [record.due_ns for record in ended.records] == [10 * MS * index for index in expected]
    assert {record.worker for record in ended.records} == {worker}
    assert [index for index, _ in line.sent] == expected
