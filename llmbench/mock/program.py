"""The mock as a program: flags out of the option fields, signals, and the lines it prints."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import signal
from collections.abc import Callable, Mapping
from typing import Any

from llmbench.mock.options import MockOptions, changed, flag_name


def takes_several(field: dataclasses.Field[Any]) -> bool:
    """Whether the flag of this field may be repeated."""
    return isinstance(field.default, tuple)


def options_from_flags(flags: Mapping[str, object]) -> MockOptions:
    """Options from given flags (field name to text, bool or list of text); ValueError lists all mistakes."""
    names = {field.name: flag_name(field) for field in dataclasses.fields(MockOptions)}
    return changed(
        MockOptions(), {names[name]: value for name, value in flags.items() if value not in (None, [], ())}
    )


def parser() -> argparse.ArgumentParser:
    """The same flags as `llmbench mock`, for `python -m llmbench.mock`."""
    result = argparse.ArgumentParser(
        prog="python -m llmbench.mock",
        description="A fake OpenAI-compatible server, exact and faulty on demand.",
    )
    groups: dict[str, Any] = {}
    for field in dataclasses.fields(MockOptions):
        meta = field.metadata
        group = groups.setdefault(meta["group"], result.add_argument_group(meta["group"]))
        flag, text = f"--{flag_name(field)}", meta["text"].replace("%", "%%")
        if isinstance(field.default, bool):
            group.add_argument(
                flag, dest=field.name, action=argparse.BooleanOptionalAction, default=None, help=text
            )
        elif field.name == "tls":
            group.add_argument(flag, nargs=2, metavar=("CERT", "KEY"), help=text)
        elif takes_several(field):
            group.add_argument(flag, dest=field.name, action="append", metavar=meta["metavar"], help=text)
        else:
            group.add_argument(flag, dest=field.name, metavar=meta["metavar"], help=text)
    return result


async def _serve(options: MockOptions, say: Callable[[str], None]) -> dict[str, Any]:
    from llmbench.mock.server import MockServer

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with MockServer(options) as server:
        where = server.url if options.unix is None else f"unix:{options.unix}"
        say(f"llmbench mock ready at {where}")
        # What was imported lives as long as the process: the collector need not look at it again and again.
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        await stop.wait()
        return server.summary()


def serve(options: MockOptions, say: Callable[[str], None]) -> dict[str, Any]:
    """Serve until SIGTERM or SIGINT; `say` gets the line that tells where. Returns the summary of the log."""
    from llmbench.mock.server import new_loop

    with asyncio.Runner(loop_factory=lambda: new_loop(options.loop)) as runner:
        return runner.run(_serve(options, say))
