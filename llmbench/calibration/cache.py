"""What is known of this machine already: a small JSON file for each shape of load.

In $XDG_CACHE_HOME/llmbench/calibration, else ~/.cache/llmbench/calibration. A cache is a convenience: what
cannot be read is as good as absent, and what cannot be written is not kept. Neither is ever an error.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from llmbench import __version__
from llmbench.calibration.known import Known
from llmbench.calibration.shape import Shape
from llmbench.environment import describe_host
from llmbench.report.folder import write_json

SCHEMA: Final = "llmbench.calibration/1"
MAX_AGE_S: Final = 7 * 86_400.0  # kernels, governors and neighbours change


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where calibrations lie; None where there is neither XDG_CACHE_HOME nor a home."""
    base = environment.get("XDG_CACHE_HOME", "")
    if Path(base).is_absolute():  # the XDG specification: a relative path is to be ignored
        return Path(base) / "llmbench" / "calibration"
    try:
        return Path.home() / ".cache" / "llmbench" / "calibration"
    except RuntimeError:
        return None


def cache_key(shape: Shape, host: Mapping[str, Any], version: str = __version__) -> str:
    """The name under which a calibration is kept: machine, llmbench's version and the rounded shape."""
    known = {"host": host, "llmbench": version, "shape": shape.rounded()}
    return hashlib.sha256(orjson.dumps(known, option=orjson.OPT_SORT_KEYS)).hexdigest()[:24]


def load_calibration(shape: Shape, folder: Path | None = None) -> tuple[Known, float] | None:
    """What is known of this shape, and since how many seconds; None where nothing fits."""
    path = _path(shape, folder)
    if path is None:
        return None
    try:
        stored = orjson.loads(path.read_bytes())
        note = stored["note"]
        known = Known(
            errors={str(name): _number(value) for name, value in stored["errors"].items()},
            shape=Shape.from_json(stored["shape"]),
            lag_s=_number(stored["lag_s"]),
            note=note if isinstance(note, str) else None,
        )
        age_s = time.time() - float(stored["made"])
        is_ours = stored["schema"] == SCHEMA
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return (known, age_s) if is_ours and 0 <= age_s <= MAX_AGE_S and known.shape.covers(shape) else None


def store_calibration(known: Known, folder: Path | None = None) -> bool:
    """Keeps a calibration; whether it could."""
    path = _path(known.shape, folder)
    if path is None:
        return False
    document = {
        "schema": SCHEMA,
        "made": time.time(),
        "shape": known.shape.to_json(),
        "errors": dict(known.errors),
        "lag_s": known.lag_s,
        "note": known.note,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, document)
    except OSError:
        return False
    return True


def _path(shape: Shape, folder: Path | None) -> Path | None:
    folder = folder or cache_folder()
    return None if folder is None else folder / f"{cache_key(shape, describe_host())}.json"


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError("an error is a number of seconds")
    return float(value)
