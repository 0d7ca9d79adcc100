"""Where a run was made: host, versions, the process's own limits. Nothing here identifies a person."""

from __future__ import annotations

import gc
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("llmbench", "aiohttp", "httptools", "httpx", "numpy", "orjson", "pydantic", "uvloop")


def describe_host() -> dict[str, Any]:
    """Facts about the machine and the software, for run.json."""
    return {
        "system": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "cpus_usable": usable_cores(),
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
    }


def usable_cores() -> int:
    """The cores this process may use: those it is bound to, less where a container has a share of them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _container_cores() or cores)


def _container_cores() -> int | None:
    """The limit of a Linux container (cgroup v2, cpu.max: microseconds of CPU in each period), rounded up."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else max(1, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def allow_many_sockets() -> None:
    """Raises the soft limit of open files to the hard one: a stream is a socket."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def quiet_collector() -> None:
    """Keeps the garbage collector from pausing the run: what lives now is never scanned again, and young
    objects are looked at a hundred times less often. A run makes hardly any reference cycles.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(70_000, 50, 50)
