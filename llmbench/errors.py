"""Every error llmbench raises on purpose.

    LlmbenchError                  anything a user can mend; the message says what to do next
    ├── UsageError                 wrong flags or arguments                               exit 2
    │   └── ScenarioError          a scenario that does not validate: all mistakes         exit 2
    └── CannotMeasure              nothing could be measured                               exit 3
        ├── TargetUnreachable      refused, unresolved, never ready
        └── TargetRefused          reachable, but every request was refused
    Interrupted                    Ctrl-C, or SIGTERM, and what became of the run          exit 130

A failed request is not an error: it is a record with an outcome.
"""

from __future__ import annotations


class LlmbenchError(Exception):
    """A problem that the user can mend. `str(error)` is the whole message for the terminal."""


class UsageError(LlmbenchError):
    """Wrong flags, arguments or files (exit code 2)."""


class ScenarioError(UsageError):
    """A scenario that does not validate; the message lists every mistake (exit code 2)."""


class CannotMeasure(LlmbenchError):
    """The run could not produce a measurement (exit code 3)."""


class TargetUnreachable(CannotMeasure):
    """The endpoint refused the connection, could not be resolved or never became ready."""


class TargetRefused(CannotMeasure):
    """The endpoint answered, but not one request succeeded."""


class Interrupted(KeyboardInterrupt):
    """A run that a person ended. A KeyboardInterrupt still, so that it ends whatever the run was part of;
    `str(error)` says what became of the run's folder.
    """
