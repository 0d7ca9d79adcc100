"""The common base of all scenario types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator

from llmbench.scenario.fields import is_from_file
from llmbench.scenario.rules import Broken


class Frozen(BaseModel):
    """Immutable; unknown keys are errors; built by YAML key or by attribute name."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
        defer_build=True,  # built once as part of Scenario when one is read, not type by type at import
    )

    @classmethod
    def broken_rules(cls, present: Mapping[str, Any]) -> list[Broken]:  # noqa: ARG003  (for subclasses)
        """The rules between this type's own fields that `present` breaks."""
        return []

    def present(self) -> dict[str, Any]:
        """What was set, in the file's own words: YAML keys, quantities with units, nothing absent."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, tree: Any) -> Any:
        """`key:` without a value, or with an empty `${VAR:-}`, means the default."""
        if not isinstance(tree, Mapping):
            return tree
        known = {field.alias or name for name, field in cls.model_fields.items()} | set(cls.model_fields)
        return {key: value for key, value in tree.items() if value is not None or key not in known}

    @model_validator(mode="after")
    def _follow_rules(self, info: ValidationInfo) -> Self:
        # The file's reader applies the rules itself, to report them beside the mistakes of single fields.
        if not is_from_file(info):
            broken = self.broken_rules(self.present())
            if broken:
                raise ValueError(
                    "; ".join(f"{'.'.join(map(str, path))}: {text}".lstrip(": ") for path, text in broken)
                )
        return self
