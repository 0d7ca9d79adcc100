"""The journal: lines are on disk soon and in order; a full disk is told once, and nothing is torn."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import time

import pytest

from llmbench.replay.journal import FLUSH_S, Journal


@pytest.mark.alone
async def test_lines_are_on_disk_within_a_fraction_of_a_second(tmp_path):
    path = tmp_path / "j.jsonl"
    journal = Journal(path, pytest.fail)
    journal.add(b"one\n")
    journal.add(b"two\n")
    started = time.monotonic()
    while path.read_bytes() != b"one\ntwo\n":
        assert time.monotonic() - started < 4 * FLUSH_S
        await asyncio.sleep(0.01)
    journal.add(b"three\n")
    await journal.close()
    assert path.read_bytes() == b"one\ntwo\nthree\n"


async def test_many_lines_keep_their_order(tmp_path):
    path = tmp_path / "j.jsonl"
    journal = Journal(path, pytest.fail)
    for number in range(5000):
        journal.add(b"%d\n" % number)
        if number % 500 == 0:
            await asyncio.sleep(0.05)
    await journal.close()
    assert path.read_bytes() == b"".join(b"%d\n" % number for number in range(5000))


async def test_flush_writes_before_leaving_at_once(tmp_path):
    journal = Journal(tmp_path / "j.jsonl", pytest.fail)
    journal.add(b"last words\n")
    journal.flush()
    assert (tmp_path / "j.jsonl").read_bytes() == b"last words\n"
    journal._timer.cancel()
    os.close(journal._file)


async def test_a_disk_that_refuses_is_told_once(tmp_path):
    if not os.path.exists("/dev/full"):  # noqa: PTH110
        pytest.skip("no /dev/full")
    told = []
    journal = Journal(os.fspath("/dev/full"), told.append)
    for _ in range(3):
        journal.add(b"x\n")
        await asyncio.sleep(1.5 * FLUSH_S)
    assert [error.strerror for error in told] == ["No space left on device"]
    with pytest.raises(OSError, match="No space left"):
        await journal.close()


CUT_AND_MENDED = """
    import asyncio, resource, sys
    from llmbench.replay.journal import FLUSH_S, Journal

    async def main():
        told = []
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
        journal = Journal(sys.argv[1], told.append)
        journal.add(b"first line, longer than the limit\\n")
        await asyncio.sleep(3 * FLUSH_S)
        assert len(told) == 1, told
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        journal.add(b"second line\\n")
        try:
            await journal.close()
        except OSError:
            return
        raise AssertionError("the fault was forgotten")

    asyncio.run(main())
"""


def test_a_line_the_disk_took_half_of_is_finished_when_there_is_room_again(tmp_path):
    """The rest of it was once dropped, and the next line was glued to the half: two records were lost."""
    path = tmp_path / "j.jsonl"
    script = textwrap.dedent(CUT_AND_MENDED)
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == b"first line, longer than the limit\nsecond line\n"
