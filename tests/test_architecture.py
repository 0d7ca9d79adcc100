"""The shape of the code, kept by tables: who may import whom, what is pure, names, sizes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("llmbench", "reference_engine")

# A part (module or sub-package of llmbench) imports only from the rows above its own.
LEVELS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "fold"}),
    frozenset({"scenario"}),
    frozenset({"records", "stats", "context", "environment"}),
    frozenset({"columns"}),
    frozenset({"gaps", "parquet"}),
    frozenset({"workload"}),
    frozenset({"load"}),
    frozenset({"client"}),
    frozenset({"replay"}),
    frozenset({"slo"}),
    frozenset({"metrics"}),
    frozenset({"authenticity", "steady", "omission", "censored"}),
    frozenset({"trust"}),
    frozenset({"report", "preflight"}),
    frozenset({"definitions"}),
    frozenset({"bench", "measurement"}),
    frozenset({"pytest_plugin"}),
    frozenset({"cli"}),
    frozenset({"__main__"}),
)
STANDS_ALONE = frozenset({"mock"})  # it must be able to contradict us, so it shares nothing with us

# Parts that compute: no clock, no network, no chance but a seeded generator handed in.
PURE = frozenset(
    {
        "errors",
        "fold",
        "scenario",
        "stats",
        "columns",
        "gaps",
        "authenticity",
        "context",
        "workload",
        "load",
        "metrics",
        "steady",
        "omission",
        "censored",
        "slo",
        "trust",
    }
)
IMPURE_MODULES = frozenset(
    ["aiohttp", "asyncio", "http", "httpx", "multiprocessing", "requests", "select", "socket", "ssl"]
) | {"subprocess", "threading", "time"}

# Only the command line prints and exits; the view of a running run is part of it in spirit.
MAY_PRINT = frozenset({"cli", "__main__", "mock"})
MAY_EXIT = frozenset({"cli", "__main__", "mock"})

BANNED_NAMES = frozenset(["manager", "handler", "helper", "util", "misc", "processor", "factory"])
MAX_FUNCTION_LINES = 60
TYPICAL_FUNCTION_LINES = 30  # nine in ten stay below
MAX_MODULE_LINES = 600

HEAVY = frozenset(
    [
        "aiohttp",
        "arro3",
        "httpx",
        "matplotlib",
        "numpy",
        "pandas",
        "pyarrow",
        "pydantic",
        "rich",
        "torch",
        "yaml",
    ]
)


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def part_of(path: Path) -> str:
    """`llmbench/replay/live.py` belongs to the part `replay`, `llmbench/stats.py` to `stats`."""
    return path.relative_to(ROOT).with_suffix("").parts[1]


def imported_modules(path: Path) -> Iterator[str]:
    """Full names of all that a file imports, anywhere in it; `from llmbench import x` is `llmbench.x`."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module in PACKAGES:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module


def imported_parts(path: Path) -> set[str]:
    names = (name.split(".") for name in imported_modules(path))
    return {name[1] for name in names if name[0] == "llmbench" and len(name) > 1 and name[1] != "__version__"}


def functions(package: str) -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in modules(package):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def num_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def defined_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def words(name: str) -> list[str]:
    """`ChunkHandler2` and `chunk_handlers` both hold the word `handler`."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return [word.rstrip("0123456789").removesuffix("s") for word in spaced.split("_")]


def test_every_part_has_its_place_in_the_table():
    placed = frozenset().union(*LEVELS) | STANDS_ALONE | {"__init__"}
    assert {part_of(path) for path in modules("llmbench")} <= placed


def test_imports_point_down():
    level = {part: row for row, parts in enumerate(LEVELS) for part in parts}
    wrong = [
        f"{path.relative_to(ROOT)} imports {used}"
        for path in modules("llmbench")
        if (part := part_of(path)) in level
        for used in imported_parts(path) - {part}
        if used in STANDS_ALONE - {"mock"} or (used in level and level[used] >= level[part])
    ]
    assert not wrong


def test_only_the_command_line_knows_the_mock_server_and_the_mock_knows_nothing():
    users = {part_of(path) for path in modules("llmbench") if "mock" in imported_parts(path)}
    assert users <= {"mock", "cli"}
    knows = set().union(*(imported_parts(path) for path in modules("llmbench") if part_of(path) == "mock"))
    assert knows <= {"mock"}


def test_tester_and_engine_never_import_each_other():
    for package, other in (PACKAGES, PACKAGES[::-1]):
        wrong = [
            f"{path.relative_to(ROOT)} imports {name}"
            for path in modules(package)
            for name in imported_modules(path)
            if name.split(".")[0] == other
        ]
        assert not wrong


def test_pure_parts_know_no_clock_no_network_and_no_unseeded_chance():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules("llmbench")
        if part_of(path) in PURE
        for name in imported_modules(path)
        if name.split(".")[0] in IMPURE_MODULES
    ]
    assert not wrong


def test_only_the_command_line_prints_and_exits():
    wrong = []
    for path in modules("llmbench"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if (called == "print" and part_of(path) not in MAY_PRINT) or (
                    called in ("sys.exit", "exit") and part_of(path) not in MAY_EXIT
                ):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} calls {called}")
    assert not wrong


def test_chance_is_always_seeded():
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} uses the global generator: random.{node.attr}"
        for path in modules("llmbench")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "random" and node.attr != "Random"
    ]
    assert not wrong


@pytest.mark.parametrize("package", PACKAGES)
def test_names_say_what_a_thing_is(package: str):
    wrong = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in modules(package)
        for name, line in [*defined_names(tree_of(path)), (path.stem, 1), (path.parent.name, 1)]
        if BANNED_NAMES & set(words(name))
    ]
    assert not wrong


def test_the_name_check_finds_what_it_bans():
    code = ast.parse("class RunManager: pass\ndef f(chunk_handlers): utils = 1")
    found = [name for name, _ in defined_names(code)]
    assert [name for name in found if BANNED_NAMES & set(words(name))] == [
        "RunManager",
        "chunk_handlers",
        "utils",
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_functions_are_short(package: str):
    sizes = sorted(
        ((num_lines(function), path, function) for path, function in functions(package)),
        key=lambda entry: entry[0],
    )
    too_long = [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name} has {size} lines"
        for size, path, function in sizes
        if size > MAX_FUNCTION_LINES
    ]
    assert not too_long
    assert sizes[int(len(sizes) * 0.9)][0] < TYPICAL_FUNCTION_LINES


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_are_small(package: str):
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules(package)}
    assert not {str(path): size for path, size in sizes.items() if size > MAX_MODULE_LINES}


@pytest.mark.parametrize(
    "statement", ["import llmbench", "import llmbench.pytest_plugin", "import llmbench.cli.app"]
)
def test_what_everyone_imports_is_light(statement: str):
    listing = subprocess.run(
        [sys.executable, "-c", f"{statement}; import sys; print(*sys.modules)"],
        capture_output=True,
        encoding="utf-8",
        check=True,
    ).stdout.split()
    assert not HEAVY & {name.split(".")[0] for name in listing}
