"""The command line as a whole: help, exit codes, streams. Each command is tested beside its own module."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib import import_module

import pytest

from llmbench import __version__, errors
from llmbench.cli import app
from llmbench.cli.console import PLAIN, degrade

LLMBENCH = [sys.executable, "-m", "llmbench"]


def llmbench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LLMBENCH, *arguments],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, **environment},
        check=False,
        timeout=60,
    )


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Makes every command raise `error`, in this process."""

    def command() -> None:
        raise error

    module = type("module", (), {"command": staticmethod(command)})
    monkeypatch.setattr(app, "import_module", lambda _: module)


def test_help_lists_every_command():
    result = llmbench("--help")
    assert result.returncode == 0
    assert result.stderr == ""
    for name in app.COMMANDS:
        assert f"  {name} " in result.stdout


def test_help_costs_less_than_a_blink_of_an_eye():
    # CPU time, not wall time: the promise is 0.3 s on an idle machine (measured: 0.13); this one may be busy.
    cpu_s = []
    for _ in range(5):
        process = subprocess.Popen([*LLMBENCH, "--help"], stdout=subprocess.DEVNULL)
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
        cpu_s.append(usage.ru_utime + usage.ru_stime)
    assert min(cpu_s) < 0.25, cpu_s


@pytest.mark.parametrize("name", list(app.COMMANDS))
def test_a_commands_own_help_begins_with_its_line_in_the_list(name):
    module = import_module(f"llmbench.cli.{name}")
    assert inspect.getdoc(module.command).splitlines()[0] == app.COMMANDS[name]


def test_the_version_is_the_packages():
    assert llmbench("--version").stdout == f"llmbench {__version__}\n"


def test_without_a_command_the_help_is_shown_as_wrong_usage():
    result = llmbench()
    assert result.returncode == 2
    assert "Commands:" in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["rum"], "no command 'rum'; did you mean run?"),
        (["qqqq"], "there are run, check,"),
        (["run"], "Missing argument"),
        (["run", "x.yaml", "--frob"], "No such option: --frob"),
        (["--frob"], "No such option: --frob"),
    ],
)
def test_wrong_usage_is_two_and_says_what_to_do(arguments, remedy):
    result = llmbench(*arguments)
    assert result.returncode == 2
    assert remedy in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("m"), 2),
        (errors.ScenarioError("m"), 2),
        (errors.CannotMeasure("m"), 3),
        (errors.TargetUnreachable("m"), 3),
        (errors.TargetRefused("m"), 3),
    ],
)
def test_what_a_user_can_mend_is_a_message_and_no_traceback(monkeypatch, capsys, error, code):
    raising(monkeypatch, error)
    assert app.main(["run"]) == code
    assert capsys.readouterr() == ("", "m\n")


def test_every_error_of_the_tree_has_its_code():
    tree = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, Exception)]
    assert {app.exit_code_of(kind("m")) for kind in tree} == {2, 3}


def test_a_crash_is_one_with_a_traceback_and_a_hint(monkeypatch, capsys):
    raising(monkeypatch, ZeroDivisionError("division by zero"))
    assert app.main(["run"]) == 1
    stdout, stderr = capsys.readouterr()
    assert stdout == ""
    assert "ZeroDivisionError: division by zero" in stderr
    assert "please report it" in stderr


def test_an_interrupt_is_130_without_a_traceback(monkeypatch, capsys):
    raising(monkeypatch, KeyboardInterrupt())
    assert app.main(["run"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_crash():
    with subprocess.Popen(
        [*LLMBENCH, "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # before anything is written
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_a_locale_without_unicode_degrades_and_never_fails():
    script = (
        "from llmbench.cli.console import prepare_streams\n"
        "prepare_streams()\n"
        "print('\\u2581\\u2588 p95 \\u2264 500 ms \\u00b1 1 \\u00b5s \\u4f60')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        check=True,
    )
    assert result.stdout == b".# p95 <= 500 ms +/- 1 us ?\n"


@pytest.mark.parametrize("character", PLAIN)
def test_every_plain_form_is_ascii(character):
    error = UnicodeEncodeError("ascii", f"a{character}b", 1, 2, "ordinal not in range")
    plain, resume = degrade(error)
    assert isinstance(plain, str)
    assert plain.isascii()
    assert resume == 2


# ---- output that cannot be written


def run_shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = f'llmbench() {{ {" ".join(LLMBENCH)} "$@"; }}\n{line}'
    return subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, **environment},
        check=False,
        timeout=60,
    )


WRITERS = [
    "schema",
    "scenarios",
    "models",
    "models --json",
    "--help",
    "run --help",
    "--version",
    "check quickstart",
]


@pytest.mark.parametrize("arguments", WRITERS)
def test_a_full_disk_is_a_message_and_no_crash(arguments):
    result = run_shell(f"llmbench {arguments} > /dev/full")
    assert result.stderr == "stdout cannot be written (No space left on device)\n"
    assert result.returncode == 2


@pytest.mark.parametrize("arguments", WRITERS)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_ends_a_command_quietly(arguments, unbuffered):
    """The reader has left before anything is written, and the writer is told."""
    line = f"llmbench {arguments} > >(exec true); wait $!"
    line = f"{{ sleep 0.01; llmbench {arguments}; echo $? >&2; }} | true"
    result = run_shell(line, PYTHONUNBUFFERED=unbuffered)
    assert result.stderr == "141\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "2> /dev/full", "> /dev/null 2> /dev/full"])
def test_streams_that_are_closed_or_full_are_no_crash(closed):
    assert run_shell(f"llmbench scenarios {closed}").returncode == 0
    assert run_shell(f"llmbench run no-such-scenario {closed}").returncode == 2


# ---- eighty columns


@pytest.mark.parametrize(
    "arguments",
    [
        ("qqqq",),
        ("run", "no-such-scenario"),
        ("run", "quickstart", "--out", "/proc/no/such/folder"),
        ("run", "quickstart", "--set", "target.engine.model=foo"),
        ("report", "pyproject.toml"),
        ("mock", "--fault", "status,cod=3", "--usage", "maybe", "--port", "99999"),
        ("models",),
    ],
    ids=lambda arguments: " ".join(arguments[:3]),
)
def test_no_message_is_wider_than_eighty_columns(arguments):
    result = llmbench(*arguments)
    text = result.stdout + result.stderr
    assert text
    assert [line for line in text.splitlines() if len(line) > 80 and " " in line.strip()] == []
