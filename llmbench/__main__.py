"""`python -m llmbench` and the `llmbench` script."""

from __future__ import annotations

import sys


def main() -> None:
    from llmbench.cli.app import main as run_command_line

    sys.exit(run_command_line())


if __name__ == "__main__":
    main()
