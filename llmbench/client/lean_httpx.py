"""httpx without its command line.

`import httpx` also loads the `httpx` command, and with it rich, pygments and click: three quarters of its
import time, and for nothing. Where that module cannot be imported, httpx puts a stub in its place, which is
what happens here. Where httpx has been imported already, it stays as it is.
"""

from __future__ import annotations

import sys

__all__ = ["httpx"]

_COMMAND = "httpx._main"
_is_first = _COMMAND not in sys.modules
if _is_first:
    sys.modules[_COMMAND] = None  # type: ignore[assignment]  # Python's own sign for: cannot be imported
try:
    import httpx
finally:
    if _is_first:
        del sys.modules[_COMMAND]
