"""`python -m llmbench.mock`: the mock without the rest of llmbench's command line."""

from __future__ import annotations

import sys

from llmbench.mock.program import main

if __name__ == "__main__":
    sys.exit(main())
