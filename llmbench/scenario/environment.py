"""`${VAR}` and `${VAR:-default}` in the values of a scenario; `$${` writes a literal `${`."""

from __future__ import annotations

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}|\$\{")
_IN_YAML = re.compile(r"\$?\$\{[^{}\n]*\}")
# References pass through the YAML parser as private-use characters, one for one so that columns stay true:
# the braces of an unquoted ${VAR} would otherwise end a flow mapping.
_FIRST_HIDDEN = 0xF700
_HIDE = {code: _FIRST_HIDDEN + code for code in range(128)}
_SHOW = {hidden: code for code, hidden in _HIDE.items()}


def hide_references(text: str) -> str:
    """`text` with every reference spelled in characters that mean nothing to YAML."""
    if any(_FIRST_HIDDEN <= ord(character) < _FIRST_HIDDEN + 128 for character in text):
        return text
    return _IN_YAML.sub(lambda match: match[0].translate(_HIDE), text)


def show_references(text: str) -> str:
    """Undoes `hide_references`."""
    return text.translate(_SHOW)


def has_reference(text: str) -> bool:
    """Whether `text` takes anything from the environment."""
    return any(match["name"] for match in _REFERENCE.finditer(text))


def expand(text: str, env: Mapping[str, str]) -> tuple[str, list[str]]:
    """`text` with its references replaced, and what is wrong with them."""
    problems: list[str] = []

    def replace(match: re.Match[str]) -> str:
        name, default = match["name"], match["default"]
        if match[0] == "$${":
            return "${"
        if name is None:
            problems.append("not a reference; write ${NAME}, ${NAME:-default}, or $${ for a literal ${")
            return match[0]
        value = env.get(name)
        if default is not None:
            return value or default  # as in a shell, :- also replaces an empty value
        if value is None:
            problems.append(f"{name} is not set; export {name}=…, or write ${{{name}:-default}}")
            return match[
                0
            ]  # stands in for the value, so that the rest of the file is judged as if it were set
        return value

    return _REFERENCE.sub(replace, text), problems
