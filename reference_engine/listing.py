"""The models on hand, as JSON: `python -m reference_engine.listing`. Knows no torch, fetches nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from reference_engine.catalog import BUNDLED, CONVERTED, GGUF_NUM_BYTES, SMOLLM2, smollm2_gguf

# What a folder does not say of itself: parameters, licence, one line for people.
DESCRIPTIONS = {
    "tiny": (
        "3.4M",
        "Apache-2.0, from public-domain text",
        "writes like Shakespeare; for tests and first steps",
    ),
    SMOLLM2: ("135M", "Apache-2.0", "SmolLM2-135M-Instruct; short, sensible answers"),
}


def listing() -> list[dict[str, Any]]:
    """One entry a model: name, parameters, licence, bytes to download and on disk, and where it lies."""
    bundled = [
        _entry(name, folder, num_bytes=_num_bytes(folder), download_bytes=0)
        for name, folder in BUNDLED.items()
    ]
    fetched = smollm2_gguf().parent / CONVERTED
    return [
        *bundled,
        _entry(SMOLLM2, fetched, num_bytes=_num_bytes(fetched), download_bytes=GGUF_NUM_BYTES),
    ]


def _entry(name: str, folder: Path, *, num_bytes: int | None, download_bytes: int) -> dict[str, Any]:
    parameters, licence, description = DESCRIPTIONS.get(name, (None, None, None))
    return {
        "name": name,
        "parameters": parameters,
        "licence": licence,
        "description": description,
        "download_bytes": download_bytes,
        "is_here": num_bytes is not None,
        "bytes": num_bytes,
        "folder": str(folder) if num_bytes is not None else None,
    }


def _num_bytes(folder: Path) -> int | None:
    """None when there is no complete model in the folder."""
    if not (folder / "model.safetensors").exists():
        return None
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(listing(), indent=2) + "\n")
