"""`llmbench serve`: the bundled engine, under llmbench's name. Every option is the engine's."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import typer

from llmbench.replay.engine_process import require_engine

CONTEXT_SETTINGS: Final[dict[str, Any]] = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],  # --help is the engine's too
}


def command(ctx: typer.Context) -> None:
    """Serve a model with the bundled reference engine.

    The same as `python -m reference_engine`, which takes the process over: its options, output and signals.
    """
    require_engine()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "reference_engine", *ctx.args])  # noqa: S606 - no shell wanted
