"""`python -m llmbench` and the `llmbench` script."""

from __future__ import annotations

import gc
import signal
import sys


def main() -> None:
    gc.set_threshold(100_000)  # imports make hardly any garbage; looking for it is a tenth of the start
    try:
        from llmbench.cli.app import main as run_command_line

        code = run_command_line()
    except KeyboardInterrupt:  # while importing, or once more while leaving
        code = 130
    if code == 130:
        for number in (signal.SIGINT, signal.SIGTERM):  # one more would end us by itself, with another code
            signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


if __name__ == "__main__":
    main()
