"""Distributions of lengths (tokens) and of times, as the scenario file spells them.

    512                                             fixed
    {uniform: {min: 100, max: 900}}
    {normal: {mean: 512, std: 64}, min: 16}
    {lognormal: {mean: 512, sigma: 0.6}, min: 16, max: 4096}
    {empirical: [10, 20, 20, 400]}                  or {values: […], weights: […]}

`mean` of a lognormal is the arithmetic mean of the unclipped distribution and `sigma` the standard
deviation of the natural logarithm, so the median is mean / exp(sigma² / 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from pydantic import ConfigDict, Field, model_validator

from llmbench.scenario import rules
from llmbench.scenario.fields import (
    Count,
    CountFromZero,
    DurationS,
    NumberFromZero,
    PositiveDurationS,
    PositiveNumber,
)
from llmbench.scenario.frozen import Frozen
from llmbench.scenario.rules import Broken

LengthShape = Literal["fixed", "uniform", "normal", "lognormal", "empirical"]
TimeShape = Literal["fixed", "uniform", "normal", "lognormal", "exponential"]

_SHAPE_EXAMPLES = {
    "uniform": "{uniform: {min: 100, max: 900}}",
    "normal": "{normal: {mean: 512, std: 64}}",
    "lognormal": "{lognormal: {mean: 512, sigma: 0.6}}",
    "empirical": "{empirical: [16, 64, 256]}",
}


class UniformLength(Frozen):
    """Every whole number from min to max, both included, equally likely."""

    min: CountFromZero = Field(description="Smallest length in tokens.")
    max: Count = Field(description="Largest length in tokens.")


class NormalLength(Frozen):
    """A normal distribution, rounded to whole tokens."""

    mean: PositiveNumber = Field(description="Mean length in tokens.")
    std: NumberFromZero = Field(description="Standard deviation in tokens.")


class LognormalLength(Frozen):
    """A lognormal distribution, rounded to whole tokens."""

    mean: PositiveNumber = Field(description="Arithmetic mean in tokens, before clipping.")
    sigma: NumberFromZero = Field(description="Standard deviation of the natural logarithm of the length.")


class EmpiricalLength(Frozen):
    """Given values, drawn with given weights."""

    values: tuple[CountFromZero, ...] = Field(min_length=1, description="Lengths in tokens.")
    weights: tuple[NumberFromZero, ...] | None = Field(
        None, description="One weight a value; equal where it is left out."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        return {"values": value} if isinstance(value, list | tuple) else value


class LengthDistribution(Frozen):
    """A number of tokens, fixed or drawn; exactly one of the shapes, optionally clipped."""

    model_config: ClassVar[ConfigDict] = ConfigDict(title="Length")

    fixed: CountFromZero | None = Field(None, description="Always this many tokens.")
    uniform: UniformLength | None = Field(None, description="Equally likely from min to max.")
    normal: NormalLength | None = Field(None, description="Normal with mean and std.")
    lognormal: LognormalLength | None = Field(None, description="Lognormal with mean and sigma.")
    empirical: EmpiricalLength | None = Field(None, description="A list of lengths, or values with weights.")
    min: CountFromZero | None = Field(None, description="Shorter draws are raised to this.")
    max: Count | None = Field(None, description="Longer draws are cut to this.")

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            raise ValueError("a list of lengths; write {empirical: [16, 64, 256]}")  # noqa: TRY004 - for pydantic
        if isinstance(value, str) and value.strip() in _SHAPE_EXAMPLES:
            raise ValueError(f"a shape needs its numbers; write {_SHAPE_EXAMPLES[value.strip()]}")
        return value if isinstance(value, Mapping | LengthDistribution) else {"fixed": value}

    @classmethod
    def broken_rules(cls, present: Mapping[str, Any]) -> list[Broken]:
        """Exactly one shape; bounds the right way round; as many weights as values."""
        return rules.distribution(present)

    @property
    def shape(self) -> LengthShape:
        """Which of the shapes is set."""
        return next(name for name in get_args(LengthShape) if getattr(self, name) is not None)


class UniformTime(Frozen):
    """Equally likely from min to max."""

    min_s: DurationS = Field(alias="min", description="Shortest time.")
    max_s: PositiveDurationS = Field(alias="max", description="Longest time.")


class NormalTime(Frozen):
    """A normal distribution; negative draws become 0."""

    mean_s: PositiveDurationS = Field(alias="mean", description="Mean time.")
    std_s: DurationS = Field(alias="std", description="Standard deviation.")


class LognormalTime(Frozen):
    """A lognormal distribution of times."""

    mean_s: PositiveDurationS = Field(alias="mean", description="Arithmetic mean, before clipping.")
    sigma: NumberFromZero = Field(description="Standard deviation of the natural logarithm of the time.")


class ExponentialTime(Frozen):
    """An exponential distribution of times."""

    mean_s: PositiveDurationS = Field(alias="mean", description="Mean time.")


class TimeDistribution(Frozen):
    """A time, fixed or drawn; exactly one of the shapes, optionally clipped."""

    model_config: ClassVar[ConfigDict] = ConfigDict(title="Time")

    fixed_s: DurationS | None = Field(None, alias="fixed", description="Always this long.")
    uniform: UniformTime | None = Field(None, description="Equally likely from min to max.")
    normal: NormalTime | None = Field(None, description="Normal with mean and std.")
    lognormal: LognormalTime | None = Field(None, description="Lognormal with mean and sigma.")
    exponential: ExponentialTime | None = Field(None, description="Exponential with a mean.")
    min_s: DurationS | None = Field(None, alias="min", description="Shorter draws are raised to this.")
    max_s: PositiveDurationS | None = Field(None, alias="max", description="Longer draws are cut to this.")

    @model_validator(mode="before")
    @classmethod
    def _from_duration(cls, value: Any) -> Any:
        return value if isinstance(value, Mapping | TimeDistribution) else {"fixed": value}

    @classmethod
    def broken_rules(cls, present: Mapping[str, Any]) -> list[Broken]:
        """Exactly one shape; bounds the right way round; as many weights as values."""
        return rules.distribution(present)

    @property
    def shape(self) -> TimeShape:
        """Which of the shapes is set."""
        attributes = {name: "fixed_s" if name == "fixed" else name for name in get_args(TimeShape)}
        return next(name for name, attribute in attributes.items() if getattr(self, attribute) is not None)
