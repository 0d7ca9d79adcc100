"""A scenario file as a tree of plain values that knows where each of them was written.

Reads YAML through PyYAML's composer only: no tag constructs anything. Each mistake that keeps a value from
being read (syntax, duplicate keys, unset variables) is collected, and the rest of the file is read on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from llmbench.scenario.environment import expand, has_reference, hide_references, show_references
from llmbench.scenario.rules import Path
from llmbench.scenario.scalars import resolve_plain

_MAX_DEPTH = 40
_MAX_NODES = 50_000  # aliases can multiply a small file without end
_CORE_TAGS = tuple(
    f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq")
)
_SYNTAX_REMEDIES = (
    ("found character '\\t'", "a tab; YAML is indented with blanks"),
    ("mapping values are not allowed", "a second colon in one line, or wrong indentation; quote the value"),
    ("could not find expected ':'", "a key without a colon, or wrong indentation"),
    ("found another document", "a second document (---); keep one scenario in a file"),
    ("found undefined alias", "an alias (*) without its anchor (&); quote the value if the * is meant"),
    ("found unexpected end of stream", "a quote that is never closed"),
    ("expected ',' or ']'", "a list [ that is never closed"),
    ("expected ',' or '}'", "a mapping { that is never closed, or a value with { or } to be quoted"),
)
_PATH_PART = re.compile(r"""\.?(?:"([^"]*)"|'([^']*)'|([^.\[\]"'=]+))|\[([0-9]+)\]""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a value was written: line and column (from 1) of a file, or a command line option."""

    origin: str = "file"
    line: int | None = None
    column: int | None = None
    written: str | None = None  # a scalar's own text, before expansion


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """Something that could not be read, at a place."""

    path: Path
    place: Place
    text: str


@dataclass(slots=True, kw_only=True)
class Document:
    """The tree, the place of every path in it, and what could not be read."""

    tree: Any = None
    places: dict[Path, Place] = field(default_factory=dict)
    flaws: list[Flaw] = field(default_factory=list)

    def place(self, path: Path) -> Place:
        """The place of `path`, or of the nearest thing around it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.places:
                return self.places[path[:length]]
        return Place(line=1, column=1) if self.places else Place()

    def is_from_environment(self, path: Path) -> bool:
        """Whether the value was taken from the environment, at least in part."""
        place = self.places.get(path)
        return place is not None and place.written is not None and has_reference(place.written)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """Where a scenario was read: for messages about it later on, when its files and its plan are looked at.

    All sources are equal, to none as well: where a scenario was written is no part of what it says.
    """

    label: str
    document: Document = field(repr=False)  # holds secrets

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, Source)

    def __hash__(self) -> int:
        return hash(Source)


class _NodeLoader(yaml.SafeLoader):
    """Leaves plain scalars untyped: their type is decided after the environment was expanded."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  (PyYAML declares it so)


def decode(content: bytes) -> tuple[str, Flaw | None]:
    """UTF-8 with or without a byte order mark; else what and where the first wrong byte is."""
    try:
        return content.decode("utf-8-sig"), None
    except UnicodeDecodeError as error:
        offset = error.start
        line = content.count(b"\n", 0, offset) + 1
        text = f"byte 0x{content[offset]:02X} at offset {offset} is not UTF-8; save the file as UTF-8"
        return "", Flaw(path=(), place=Place(line=line), text=text)


def read_yaml(text: str, env: Mapping[str, str], origin: str = "file") -> Document:
    """Composes `text` and expands `${VAR}` in its values; never raises for what the text says."""
    document = Document()
    try:
        node = yaml.compose(hide_references(text), Loader=_NodeLoader)
    except RecursionError:
        document.flaws.append(Flaw(path=(), place=Place(origin=origin, line=1), text="nested too deeply"))
        return document
    except yaml.YAMLError as error:
        document.flaws.append(_syntax_flaw(error, text, origin))
        return document
    if node is not None:
        document.tree = _TreeReader(document, env, origin).read(node, (), 0)
    return document


def _syntax_flaw(error: yaml.YAMLError, text: str, origin: str) -> Flaw:
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        problem = f"character U+{ord(str(error.character)[:1] or ' '):04X} is not allowed in YAML"
        if isinstance(error.character, int):
            problem = f"character U+{error.character:04X} is not allowed in YAML"
        return Flaw(path=(), place=Place(origin=origin, line=line), text=problem)
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = show_references(str(getattr(error, "problem", None) or "not YAML")).split("\n")[0]
    remedy = next((words for found, words in _SYNTAX_REMEDIES if found in problem), f"not YAML: {problem}")
    line = mark.line + 1 if mark is not None else 1
    column = mark.column + 1 if mark is not None else None
    return Flaw(path=(), place=Place(origin=origin, line=line, column=column), text=remedy)


class _TreeReader:
    """Turns composed nodes into values, noting places and flaws in the document."""

    def __init__(self, document: Document, env: Mapping[str, str], origin: str) -> None:
        self._document = document
        self._env = env
        self._origin = origin
        self._num_nodes = 0

    def read(self, node: yaml.Node, path: Path, depth: int) -> Any:
        self._num_nodes += 1
        if depth > _MAX_DEPTH or self._num_nodes > _MAX_NODES:
            if not any(flaw.text.startswith("nested too") for flaw in self._document.flaws):
                self._flaw(node, path, "nested too deeply or too large (an alias inside its own anchor?)")
            return None
        self._document.places.setdefault(path, self._place(node))
        if node.tag not in _CORE_TAGS and node.tag != "!":
            self._flaw(node, path, f"the tag {_short_tag(node.tag)} has no meaning here; remove it")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._read_mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, index), depth + 1) for index, item in enumerate(node.value)]
        return self._read_scalar(node, path) if isinstance(node, yaml.ScalarNode) else None

    def _read_scalar(self, node: yaml.ScalarNode, path: Path) -> Any:
        written = show_references(node.value)
        place = self._place(node, written)
        known = self._document.places.get(path)
        self._document.places[path] = place if known is None or known.written is None else known
        text, problems = expand(written, self._env)
        for problem in problems:
            self._document.flaws.append(Flaw(path=path, place=place, text=problem))
        return resolve_plain(text) if node.style is None else text

    def _read_mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._flaw(key_node, path, "a key must be text; quote a key that begins with { or [")
                continue
            key = show_references(key_node.value)
            if key == "<<" and key_node.style is None:
                merged += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
                continue
            if key in tree:
                first = self._document.places[(*path, key)].line
                where = f" (first on line {first})" if self._origin == "file" else ""
                self._flaw(key_node, (*path, key), f"duplicate key{where}; remove one")
                continue
            self._document.places[(*path, key)] = self._place(key_node)
            tree[key] = self.read(value_node, (*path, key), depth + 1)
            if isinstance(value_node, yaml.ScalarNode):
                self._document.places[(*path, key)] = self._place(key_node, show_references(value_node.value))
        for other in merged:
            self._merge(other, tree, path, depth)
        return tree

    def _merge(self, node: yaml.Node, tree: dict[str, Any], path: Path, depth: int) -> None:
        if not isinstance(node, yaml.MappingNode):
            self._flaw(node, path, "<< merges mappings only; write << : *anchor")
            return
        before = dict(self._document.places)
        for key, value in self._read_mapping(node, path, depth + 1).items():
            tree.setdefault(key, value)
        self._document.places.update(before)

    def _place(self, node: yaml.Node, written: str | None = None) -> Place:
        if self._origin != "file":
            return Place(origin=self._origin, written=written)
        mark = node.start_mark
        return Place(line=mark.line + 1, column=mark.column + 1, written=written)

    def _flaw(self, node: yaml.Node, path: Path, text: str) -> None:
        self._document.flaws.append(Flaw(path=path, place=self._place(node), text=text))


def _short_tag(tag: str) -> str:
    return show_references(tag).replace("tag:yaml.org,2002:", "!!")[:40]


def override(document: Document, setting: str, env: Mapping[str, str], origin: str = "--set") -> None:
    """Applies `path=value` (dotted, `[0]` or `.0` into lists); mistakes become flaws of `origin`."""
    path, value_text = _split_setting(setting)
    place = Place(origin=origin, written=value_text)
    if path is None:
        text = "write path=value, as in --set load.rate=8/s"
        document.flaws.append(Flaw(path=(), place=place, text=text))
        return
    value, places, flaws = _read_value(value_text, env, origin)
    resolved, problem = _assign(document, path, value)
    document.flaws += [Flaw(path=(*resolved, *flaw.path), place=flaw.place, text=flaw.text) for flaw in flaws]
    if problem:
        document.flaws.append(Flaw(path=resolved, place=place, text=problem))
        return
    for known in [known for known in document.places if known[: len(resolved)] == resolved]:
        del document.places[known]
    document.places.update({(*resolved, *below): item for below, item in places.items()})
    for length in range(1, len(resolved)):  # mappings made on the way come from the option too
        document.places.setdefault(resolved[:length], Place(origin=origin))
    document.places[resolved] = place


def _split_setting(setting: str) -> tuple[Path | None, str]:
    path: list[str | int] = []
    end = 0
    while end < len(setting) and setting[end] != "=":
        part = _PATH_PART.match(setting, end)
        if part is None or part.end() == end:
            return None, setting
        name = next((group for group in part.groups()[:3] if group is not None), None)
        path.append(name.strip() if name is not None else int(part[4]))
        end = part.end()
    if not path or end >= len(setting) or "" in path:
        return None, setting
    return tuple(path), setting[end + 1 :]


def _read_value(text: str, env: Mapping[str, str], origin: str) -> tuple[Any, dict[Path, Place], list[Flaw]]:
    """YAML where it opens a list, a mapping or a quote; else one scalar, whatever characters it holds."""
    if text.lstrip()[:1] in tuple("[{\"'"):
        inner = read_yaml(text, env, origin)
        return inner.tree, inner.places, inner.flaws
    expanded, problems = expand(text.strip(), env)
    place = Place(origin=origin, written=text)
    return resolve_plain(expanded), {}, [Flaw(path=(), place=place, text=problem) for problem in problems]


def _assign(document: Document, path: Path, value: Any) -> tuple[Path, str | None]:
    """Puts `value` at `path`, making mappings on the way; returns the path as it exists, and what hinders."""
    if not isinstance(document.tree, dict):
        document.tree = {} if document.tree is None else document.tree
    container, done = document.tree, ()
    resolved: Path = done
    for index, part in enumerate(path):
        is_last = index == len(path) - 1
        if isinstance(container, list):
            position = int(part) if str(part).isdecimal() and len(str(part)) < 9 else None
            if position is None or position > len(container):
                return (
                    *resolved,
                    part,
                ), f"is a list of {len(container)}; write an index from 0 to {len(container)}"
            if position == len(container):
                container.append({})
            key: str | int = position
        elif isinstance(container, dict):
            key = str(part)
        else:
            return resolved, "is a single value in the file; nothing can be set below it"
        resolved = (*resolved, key)
        if is_last:
            container[key] = value  # type: ignore[index]
        else:
            below = container.get(key) if isinstance(container, dict) else container[int(key)]
            if below is None:
                below = [] if isinstance(path[index + 1], int) else {}
                container[key] = below  # type: ignore[index]
            container = below
    return resolved, None
