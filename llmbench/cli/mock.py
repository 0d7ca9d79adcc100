"""`llmbench mock`: reads flags and serves. The flags are the fields of `MockOptions`, one each."""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Annotated, Any

import typer

from llmbench.errors import CannotMeasure, UsageError
from llmbench.mock.options import MockOptions, flag_name
from llmbench.mock.program import (
    flag_mistakes,
    options_from_flags,
    serve,
    takes_several,
    why_it_cannot_serve,
)

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def command(**flags: Any) -> None:
    """Serve a fake endpoint with exact delays, and faults on demand.

    Speaks OpenAI's APIs until SIGTERM or Ctrl-C. Every setting of answer, timing, stream format and faults
    can also be set for one request, by the key "mock" of its JSON body:
    {"mock": {"ttft": "200ms", "fault": "reset,after=5"}}.
    """
    try:
        options = options_from_flags(flags)
    except ValueError as error:
        raise UsageError(flag_mistakes(error)) from None
    try:
        summary = serve(options, lambda line: print(line, flush=True))
    except (OSError, ImportError) as error:
        raise CannotMeasure(why_it_cannot_serve(options, error)) from error
    typer.echo(json.dumps(summary), err=True)


def _parameter(field: dataclasses.Field[Any]) -> inspect.Parameter:
    flag, meta = flag_name(field), field.metadata
    text = meta["text"]
    kind: Any
    if isinstance(field.default, bool):
        kind, names, metavar = bool | None, f"--{flag}/--no-{flag}", None
    elif field.name == "tls":
        kind, names, metavar = tuple[str, str] | None, f"--{flag}", meta["metavar"]
    else:
        kind = list[str] | None if takes_several(field) else str | None
        names, metavar = f"--{flag}", meta["metavar"]
    option = typer.Option(names, help=text, metavar=metavar, show_default=False)
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


# Typer reads a command's options from its signature; ours is made of the fields, so that neither drifts.
_PARAMETERS = [_parameter(field) for field in dataclasses.fields(MockOptions)]
command.__signature__ = inspect.Signature(_PARAMETERS)  # type: ignore[attr-defined]
command.__annotations__ = {parameter.name: parameter.annotation for parameter in _PARAMETERS}
mock = command
