"""The mock as a program: flags out of the option fields, signals, and the lines it prints."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import errno
import gc
import signal
import socket
import ssl
import textwrap
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


def flag_mistakes(error: ValueError) -> str:
    """What `options_from_flags` found, a line each, under the flags' names."""
    return "\n".join(f"--{line}" for line in str(error).split("\n"))


def folded(message: str) -> str:
    """A message for a terminal of 80 columns; long words (paths) stay whole."""
    return "\n".join(
        textwrap.fill(line, 80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for line in message.split("\n")
    )


def why_it_cannot_serve(options: MockOptions, error: Exception) -> str:
    """What stood in the way of listening, by the flag that can mend it."""
    told = getattr(error, "strerror", None) or str(error)
    filename = getattr(error, "filename", None)
    if isinstance(error, ImportError):
        return "--loop: uvloop is not installed here; write auto or asyncio, or pip install uvloop"
    if filename is not None and filename == options.log:
        return f"--log: {options.log} cannot be written ({told})"
    if isinstance(error, ssl.SSLError) or (options.tls and isinstance(error, FileNotFoundError)):
        return (
            f"--tls: {' and '.join(options.tls or ())} are no certificate and its key in PEM files ({told})"
        )
    if options.unix is not None:
        return f"--unix: cannot listen on {options.unix} ({told}); name a path whose folder is there"
    where = f"{options.host}:{options.port}"
    if isinstance(error, socket.gaierror):
        return f"--host: {options.host} is no address of this machine ({told}); write 127.0.0.1 or 0.0.0.0"
    number = getattr(error, "errno", None)
    if number == errno.EADDRINUSE:
        return f"--port: {where} is in use; choose another port, or 0 for a free one"
    if number == errno.EACCES:
        return f"--port: {where} needs more rights than you have; choose a port from 1024 on"
    if number == errno.EADDRNOTAVAIL:
        return f"--host: {options.host} is no address of this machine; write 127.0.0.1 or 0.0.0.0"
    return f"the mock cannot listen on {where}: {told}"


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
