"""Every error the engine raises on purpose.

    EngineError                 something the user can mend; the message says what to do next
    ├── ConfigError             a switch or a combination of switches that cannot work
    ├── ModelError              a model folder or file that cannot be loaded; names file and key
    ├── FetchError              a model that could not be downloaded or failed its checksum
    └── RequestError            a request that cannot be served; names the parameter at fault

Anything else that escapes is a bug of ours.
"""

from __future__ import annotations


class EngineError(Exception):
    """A problem that the user can mend. `str(error)` is the whole message."""


class ConfigError(EngineError):
    """A switch, or a combination of switches, that cannot work."""


class ModelError(EngineError):
    """A model that cannot be loaded: missing file, unsupported architecture, wrong shape."""


class FetchError(EngineError):
    """A model that could not be downloaded, or whose checksum is wrong."""


class RequestError(EngineError):
    """A request that this engine cannot serve; `param` names the field at fault, if one is."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
