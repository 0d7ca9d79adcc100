"""The `llmbench` command: lists the commands, imports the one that is called, maps errors to exit codes.

This is the one place where an exception becomes an exit code: what a user can mend (`LlmbenchError`) is a
message without a traceback, anything else is a crash (1). The codes are those of `errors.py`; beside them 130
for an interrupt and 141 for a reader of our output that left (`llmbench … | head`), as shells count them.
"""

from __future__ import annotations

import io
import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from llmbench import __version__
from llmbench.cli.console import OutputLost, ReaderLeft, prepare_streams, say
from llmbench.errors import CannotMeasure, LlmbenchError, UsageError

EXIT_CRASH: Final = 1
EXIT_USAGE: Final = 2
EXIT_CANNOT_MEASURE: Final = 3
EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141

# What Typer raises for wrong usage; it brings a copy of Click, and exports only some of its classes.
WRONG_USAGE: Final[type[Exception]] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)

CONTEXT_SETTINGS: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

# In the order of the help text. The lines stand here, so that `--help` imports no command.
COMMANDS: Final[dict[str, str]] = {
    "run": "Replay a scenario against an endpoint, print the summary, write the run folder.",
    "check": "Validate scenario files without sending anything: every mistake at once.",
    "report": "Rebuild the reports of a run folder from its raw records.",
    "definitions": "Compute a run's figures by the formulas of another tool.",
    "selftest": "Prove the instrument on this machine, in less than a minute.",
    "trace": "Show what a trace holds, or convert it to llmbench's own format.",
    "serve": "Serve a model with the bundled reference engine.",
    "mock": "Serve a fake endpoint with exact delays, and faults on demand.",
    "models": "List the models of the reference engine.",
    "scenarios": "List the bundled scenarios.",
    "schema": "Print the JSON Schema of the scenario file.",
    "init": "Write a commented starter scenario.",
}


class LazyGroup(TyperGroup):
    """A group whose commands are the modules of this package, each imported when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(unknown_command(args[0]))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:  # Typer would drop what it says
            raise typer.Exit(tell(error)) from None


def load_command(name: str) -> Any:
    """The command that `llmbench/cli/<name>.py` defines."""
    module = import_module(f"llmbench.cli.{name}")
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    settings = getattr(module, "CONTEXT_SETTINGS", CONTEXT_SETTINGS)
    single.command(name, context_settings=settings, rich_help_panel=None)(module.command)
    return typer.main.get_command(single)


def unknown_command(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, COMMANDS, n=1)
    remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
    return f"no command '{name}'; {remedy}"


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llmbench {__version__}")
        raise typer.Exit


app = typer.Typer(
    cls=LazyGroup,
    name="llmbench",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=CONTEXT_SETTINGS,
)


@app.callback(epilog="llmbench COMMAND --help describes a command's options.")
def llmbench(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and leave."),
    ] = False,
) -> None:
    """Load tests for OpenAI-compatible LLM endpoints."""


def exit_code_of(error: BaseException) -> int:
    """The exit code of an error that ended the program (the tree of `errors.py`)."""
    match error:
        case ReaderLeft():
            return EXIT_BROKEN_PIPE
        case UsageError() | WRONG_USAGE():
            return EXIT_USAGE
        case CannotMeasure() | LlmbenchError():
            return EXIT_CANNOT_MEASURE
        case KeyboardInterrupt() | typer.Abort():
            return EXIT_INTERRUPTED
        case _:
            return EXIT_CRASH


def main(args: list[str] | None = None) -> int:
    """Run the command line and return its exit code; never raises."""
    prepare_streams()
    code = called(args)
    try:
        sys.stdout.flush()
    except OutputLost as error:
        return code or tell(error)
    return code


def called(args: list[str] | None) -> int:
    """The exit code of the command; whatever it raised has been told on stderr."""
    try:
        code = app(args, prog_name="llmbench", standalone_mode=False)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else EXIT_CRASH if leaving.code else 0
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last line of defence
        return tell(error)
    return code if isinstance(code, int) else 0


def tell(error: BaseException) -> int:
    """Says on stderr what ended the program; the exit code."""
    match error:
        case ReaderLeft() | typer.Abort():
            pass
        case LlmbenchError():
            say(str(error))
        case KeyboardInterrupt():
            if str(error):
                say(str(error))
        case WRONG_USAGE():
            tell_usage(error)
        case _:
            report_crash(error)
    return exit_code_of(error)


def tell_usage(error: Any) -> None:
    """Typer's own message, whose usage or help it has laid out already."""
    text = io.StringIO()
    error.show(file=text)
    layout, marker, problem = text.getvalue().rstrip("\n").rpartition("Error: ")
    sys.stderr.write(layout if marker else f"{problem}\n")
    if marker:
        say(f"{marker}{problem}")


def report_crash(error: BaseException) -> None:
    """The traceback, and what to do with it. Frames only: a local variable could hold an API key."""
    import traceback

    traceback.print_exception(error, file=sys.stderr)
    print(
        f"\nThis is a bug in llmbench {__version__}; please report it with the lines above and the scenario.",
        file=sys.stderr,
    )
