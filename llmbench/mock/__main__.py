"""`python -m llmbench.mock`: the mock without the rest of llmbench's command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from llmbench.mock.program import (
    flag_mistakes,
    folded,
    options_from_flags,
    parser,
    serve,
    why_it_cannot_serve,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m llmbench.mock`: the exit code (0 stopped, 2 wrong flags, 3 the address cannot be had)."""
    given = vars(parser().parse_args(arguments))
    try:
        options = options_from_flags(given)
    except ValueError as error:
        print(folded(flag_mistakes(error)), file=sys.stderr)
        return 2
    try:
        summary = serve(options, lambda line: print(line, flush=True))
    except (OSError, ImportError) as error:
        print(folded(why_it_cannot_serve(options, error)), file=sys.stderr)
        return 3
    print(json.dumps(summary), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
