"""What a calibration found out. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llmbench.calibration.shape import Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The errors in seconds by statistic, the shape they hold for, and how late the instrument was then (p99,
    in seconds). `note` says where they are a lower bound.
    """

    errors: Mapping[str, float | None]
    shape: Shape
    lag_s: float | None = None
    note: str | None = None
