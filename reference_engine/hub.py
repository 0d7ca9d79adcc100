"""Files from the Hugging Face hub, over plain HTTPS: only those that are needed, resumed, checked.

Environment, as in Hugging Face's own library: HF_ENDPOINT (a mirror), HF_TOKEN (for gated and private
models), HF_HUB_OFFLINE. The hub tells a file's checksum in the ETag: SHA-256 of large files, git's SHA-1
of small ones.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, NamedTuple

from reference_engine.errors import FetchError

logger = logging.getLogger(__name__)
MODEL_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
SOURCE_FILE = "source.json"  # written last: a folder that has it is complete
_TIMEOUT_S = 30.0
_PIECE = 1 << 20
_REQUIRED = ("config.json", "tokenizer.json")
_OPTIONAL = ("generation_config.json", "tokenizer_config.json", "chat_template.jinja", "README.md")
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class Answer(NamedTuple):
    """What the hub says of a file before its contents."""

    num_bytes: int | None  # of the whole file
    checksum: str | None  # 64 hexadecimal digits: SHA-256; 40: git's SHA-1
    commit: str | None


class NotThere(FetchError):
    """The hub has no such file, or no such model."""


def is_offline() -> bool:
    """Has the user forbidden to ask the hub?"""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def fetch_model(model_id: str, folder: Path) -> Path:
    """A model's `config.json`, tokenizer and safetensors, in `folder`, which is returned.

    What is there already is not asked for again. Raises FetchError saying what failed. Safe to run twice
    at once: the second waits for the first. Interrupted, it goes on where it stopped.
    """
    if (folder / SOURCE_FILE).exists():
        return folder
    if is_offline():
        raise FetchError(f"{model_id} is not on this machine, and HF_HUB_OFFLINE forbids to fetch it")
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    with _lock(partial.with_suffix(".lock")):
        if (folder / SOURCE_FILE).exists():  # by the one we waited for
            return folder
        partial.mkdir(exist_ok=True)
        commit = _fetch_all(model_id, partial)
        licence = licence_of(partial / "README.md")
        source = {"source": f"{_endpoint()}/{model_id}", "revision": commit, "licence": licence}
        (partial / SOURCE_FILE).write_text(json.dumps(source, indent=2) + "\n", encoding="utf-8")
        partial.rename(folder)
    return folder


def _fetch_all(model_id: str, folder: Path) -> str:
    """Every file of one commit, whatever is pushed meanwhile."""
    commit = fetch_file(model_id, "config.json", folder / "config.json").commit or "main"
    for name in _REQUIRED[1:]:
        fetch_file(model_id, name, folder / name, revision=commit)
    for name in _OPTIONAL:
        _fetch_if_there(model_id, name, folder, commit)
    if not _fetch_if_there(model_id, _INDEX, folder, commit):
        if not _fetch_if_there(model_id, _SINGLE, folder, commit):
            raise FetchError(f"{model_id} has no weights in safetensors ({_SINGLE} or {_INDEX})")
        return commit
    try:
        weight_map = json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise FetchError(f"{model_id}: {_INDEX} names no files") from None
    for name in names:
        if not re.fullmatch(r"[\w.-]+\.safetensors", str(name)):
            raise FetchError(f"{model_id}: {_INDEX} names {name!r}, which is no file beside it")
        fetch_file(model_id, name, folder / name, revision=commit)
    return commit


def _fetch_if_there(model_id: str, name: str, folder: Path, commit: str) -> bool:
    try:
        fetch_file(model_id, name, folder / name, revision=commit)
    except NotThere:
        return False
    return True


def fetch_file(model_id: str, name: str, path: Path, *, revision: str = "main") -> Answer:
    """One file of a repository, at `path` when complete and checked.

    An unfinished one lies beside it (`.part`) and is gone on with. Raises NotThere, FetchError.
    """
    url = f"{_endpoint()}/{model_id}/resolve/{revision}/{urllib.parse.quote(name)}"
    part = path.with_name(path.name + ".part")
    if path.exists():
        answer, body = _ask(url, model_id, method="HEAD")
        body.close()
        if _is_good(path, answer):
            return answer
        path.unlink()
    start = part.stat().st_size if part.exists() else 0
    answer, body = _ask(url, model_id, start=start)
    with body:
        is_rest = body.status == 206  # else the server sends all of it again
        with part.open("ab" if is_rest else "wb") as file:
            _copy(body, file, f"{model_id}/{name}", answer.num_bytes)
    if not _is_good(part, answer):
        have = part.stat().st_size
        is_short = answer.num_bytes is not None and have < answer.num_bytes
        if is_short:
            raise FetchError(f"{url} broke off after {have:,} of {answer.num_bytes:,} bytes; try again")
        part.unlink()
        raise FetchError(f"{url}: the file does not have the size and checksum that the hub tells; try again")
    part.replace(path)
    return answer


def licence_of(card: Path) -> str | None:
    """The `license:` of a model card's header, None where there is none."""
    if not card.exists():
        return None
    text = card.read_text(encoding="utf-8", errors="replace")
    header = text.split("---", 2)[1] if text.startswith("---") else ""
    found = re.search(r"^license:\s*['\"]?([\w.+-]+)", header, flags=re.MULTILINE)
    return found[1] if found else None


def _endpoint() -> str:
    url = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    if not url.startswith(("https://", "http://")):
        raise FetchError(f"HF_ENDPOINT is {url}, which is no https:// or http:// address")
    return url


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to the store where large files lie: the token stays behind, the checksum comes along."""

    def __init__(self) -> None:
        self.told: HTTPMessage | None = None

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        self.told = self.told or headers
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None:
            new.method = req.get_method()
            if urllib.parse.urlsplit(newurl).netloc != urllib.parse.urlsplit(req.full_url).netloc:
                new.headers.pop("Authorization", None)
        return new


def _ask(url: str, model_id: str, *, method: str = "GET", start: int = 0) -> tuple[Answer, Any]:
    """What the hub tells of a file, and the open response. Raises NotThere, FetchError."""
    request = urllib.request.Request(url, method=method)  # noqa: S310
    # Without this a proxy may compress, and the length is another.
    request.add_header("Accept-Encoding", "identity")
    if token := os.environ.get("HF_TOKEN"):
        request.add_header("Authorization", f"Bearer {token}")
    if start:
        request.add_header("Range", f"bytes={start}-")
    redirects = _Redirects()
    try:
        response = urllib.request.build_opener(redirects).open(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # the part is as long as the file, or longer: begin again
            return _ask(url, model_id, method=method)
        raise _refusal(url, model_id, error) from None
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise FetchError(f"the hub cannot be reached: {url}: {reason}") from None
    return _answer(response, redirects.told), response


def _answer(response: Any, told: HTTPMessage | None) -> Answer:
    headers = response.headers
    etag = (told or headers).get("X-Linked-Etag") or (told or headers).get("ETag") or ""
    checksum = etag.removeprefix("W/").strip('"').lower()
    length = headers.get("Content-Range", "").rpartition("/")[2] or headers.get("Content-Length")
    return Answer(
        num_bytes=int(length) if length and length.isdigit() else None,
        checksum=checksum if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", checksum) else None,
        commit=(told or headers).get("X-Repo-Commit"),
    )


def _refusal(url: str, model_id: str, error: urllib.error.HTTPError) -> FetchError:
    why = error.headers.get("X-Error-Message") or error.reason
    if error.code == 404:
        return NotThere(f"the hub has no {url} ({why})")
    if error.code in {401, 403}:
        has = (
            "the token in HF_TOKEN is not allowed to" if os.environ.get("HF_TOKEN") else "HF_TOKEN is not set"
        )
        return FetchError(f"{model_id} is private, gated or does not exist, and {has}: {url} ({why})")
    return FetchError(f"{url} answered {error.code} ({why})")


def _copy(body: Any, file: IO[bytes], what: str, num_bytes: int | None) -> None:
    """Piece by piece, with a line in the log for every tenth of a large file."""
    have = file.tell()
    try:
        while piece := body.read(_PIECE):
            file.write(piece)
            before, have = have, have + len(piece)
            if num_bytes and num_bytes > 10e6 and have * 10 // num_bytes > before * 10 // num_bytes:
                logger.info("%s: %.0f of %.0f MB", what, have / 1e6, num_bytes / 1e6)
    except (OSError, ValueError, HTTPException) as error:
        raise FetchError(
            f"{what} broke off after {have:,} bytes ({error}); the next try goes on there"
        ) from None


def _is_good(path: Path, answer: Answer) -> bool:
    size = path.stat().st_size
    if answer.num_bytes is not None and size != answer.num_bytes:
        return False
    if answer.checksum is None:
        return True
    digest = hashlib.sha256() if len(answer.checksum) == 64 else hashlib.sha1(b"blob %d\0" % size)  # noqa: S324
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest() == answer.checksum


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One process at a time; the system frees it when a process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
