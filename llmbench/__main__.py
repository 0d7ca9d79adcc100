"""`python -m llmbench` and the `llmbench` script."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress


def main() -> None:
    gc.set_threshold(100_000)  # imports make hardly any garbage; looking for it is a tenth of the start
    try:
        from llmbench.cli.app import main as run_command_line

        code = run_command_line()
    except KeyboardInterrupt:  # while importing, or once more while leaving
        code = 130
    if code == 130:
        leave_interrupted()
    sys.exit(code)


def leave_interrupted() -> None:
    """Ends with 130. The interpreter's own way out may end with SIGINT instead: when one more signal comes,
    or when the first fell into an `exec` of text (as dataclasses do), which Python never forgets.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(130)


if __name__ == "__main__":
    main()
