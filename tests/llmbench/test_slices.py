"""Work between reads: in order, in thin slices, all of it done in the end."""

from __future__ import annotations

import asyncio
import time

from llmbench.replay.slices import SLICE_S, Slices


def job(name, steps, seen):
    for step in range(steps):
        seen.append((name, step))
        yield


async def test_jobs_are_done_one_after_the_other_in_order():
    slices, seen = Slices(), []
    for name in "abc":
        slices.add(job(name, 3, seen))
    assert seen == []  # nothing runs inside `add`
    while len(slices):
        await asyncio.sleep(0)
    assert seen == [(name, step) for name in "abc" for step in range(3)]


def spin(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
    yield


async def test_between_two_slices_the_loop_has_its_turn():
    """Forty jobs of half a slice each: other callbacks run in between, not after all of them."""
    slices, turns = Slices(), 0
    for _ in range(40):
        slices.add(spin(SLICE_S / 2))
    while len(slices):
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 10


async def test_a_backlog_makes_slices_thicker():
    def turns_for(jobs):
        async def count():
            slices, turns = Slices(), 0
            for _ in range(jobs):
                slices.add(spin(SLICE_S / 20))
            while len(slices):
                turns += 1
                await asyncio.sleep(0)
            return turns

        return count()

    few, many = await turns_for(100), await turns_for(3000)
    assert many < 30 * few / 2


async def test_finish_does_everything_now():
    slices, seen = Slices(), []
    slices.add(job("a", 2, seen))
    slices.add(job("b", 2, seen))
    slices.finish()
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    await asyncio.sleep(0)  # the turn that was scheduled finds nothing to do
    slices.add(job("c", 1, seen))
    await asyncio.sleep(0.01)
    assert seen[-1] == ("c", 0)


async def test_jobs_may_add_jobs():
    slices, seen = Slices(), []

    def adding():
        seen.append("first")
        slices.add(job("second", 1, seen))
        yield

    slices.add(adding())
    slices.finish()
    assert seen == ["first", ("second", 0)]
