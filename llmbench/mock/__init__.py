"""A deterministic OpenAI-compatible server: exact delays, faults and quirks on demand, a log of the truth.

It imports nothing of llmbench outside this package, so that it can contradict the rest.

    async with MockServer(MockOptions(ttft_s=0.2, itl_s=0.01)) as server:   # in the running event loop
        ... server.url ...
    with serve_in_thread(MockOptions(tokens=5)) as server:                  # in a thread
        ... server.log() ...
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmbench.mock.faults import Fault
    from llmbench.mock.options import MockOptions
    from llmbench.mock.server import MockServer, ThreadedMock, serve_in_thread

__all__ = ["Fault", "MockOptions", "MockServer", "ThreadedMock", "serve_in_thread"]

_HOMES = {
    "Fault": "faults",
    "MockOptions": "options",
    "MockServer": "server",
    "ThreadedMock": "server",
    "serve_in_thread": "server",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
