"""`python -m llmbench` and the `llmbench` script."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    gc.set_threshold(100_000)  # imports make hardly any garbage; looking for it is a tenth of the start
    from llmbench.cli.app import main as run_command_line

    sys.exit(run_command_line())


if __name__ == "__main__":
    main()
