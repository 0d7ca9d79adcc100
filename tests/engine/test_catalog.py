"""Models by name, by path, and from a hub: a real one, over HTTP, if a small one."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

from reference_engine import hub, listing
from reference_engine.catalog import BUNDLED, cache_folder, hub_folder, model_folder
from reference_engine.errors import FetchError, ModelError
from reference_engine.model_config import ModelConfig
from reference_engine.tokenizer import TextTokenizer
from reference_engine.weights import load_decoder

COMMIT = "c0ffee" + "0" * 34
CARD = "---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n"


def test_an_unknown_model_lists_the_known_ones():
    with pytest.raises(
        ModelError, match=r"--model gpt-17: neither one of tiny, tiny-draft, smollm2-135m nor a "
    ):
        model_folder("gpt-17")


def test_the_cache_lies_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("LLMBENCH_CACHE", str(tmp_path))
    assert cache_folder().parent == tmp_path
    monkeypatch.delenv("LLMBENCH_CACHE")
    assert cache_folder().parts[-3:] == (".cache", "llmbench", "models")


def test_the_draft_of_tiny_is_a_model_with_the_same_tokenizer(tokenizer):
    folder = model_folder("tiny-draft")
    config = ModelConfig.from_folder(folder)
    load_decoder(folder, config, device="cpu", dtype=torch.float32)
    assert config.vocab_size == ModelConfig.from_folder(BUNDLED["tiny"]).vocab_size
    assert TextTokenizer.from_folder(folder).encode("To be") == tokenizer.encode("To be")


# --------------------------------------------------------------------------------------------- the hub


@dataclass
class Hub:
    """What it has, what it was asked, and how it misbehaves."""

    files: dict[str, bytes]
    url: str = ""
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    breaks_after: dict[str, int] = field(default_factory=dict)  # bytes of a file, once
    wrong: set[str] = field(default_factory=set)  # files whose checksum it tells wrongly
    token: str | None = None
    has_range: bool = True

    def names(self):
        return [path.rpartition("/")[2] for path, _ in self.asked]


def serve(pages):
    class Server(BaseHTTPRequestHandler):
        def do_GET(self):
            answer(self, pages)

        do_HEAD = do_GET  # noqa: N815  # http.server's names

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


def answer(request, pages):
    status, headers, body = pages(request.path, dict(request.headers), request.command)
    whole = headers.pop("Whole", len(body))
    request.send_response(status)
    for name, value in {"Content-Length": str(whole), **headers}.items():
        request.send_header(name, value)
    request.end_headers()
    if request.command == "GET":
        request.wfile.write(body)
    if whole > len(body):
        request.close_connection = True


def pages_of(state, store_url):
    """The hub itself: small files at once, large ones by a redirect to the store."""

    def pages(path, headers, _method):
        state.asked.append((path, headers))
        if state.token and headers.get("Authorization") != f"Bearer {state.token}":
            return 401, {"X-Error-Message": "gated"}, b""
        start, _, name = path.rpartition("/")
        if (
            start not in {"/org/model/resolve/main", f"/org/model/resolve/{COMMIT}"}
            or name not in state.files
        ):
            return 404, {"X-Error-Message": "Entry not found"}, b""
        body = state.files[name]
        told = {"X-Repo-Commit": COMMIT}
        if name.endswith((".safetensors", ".gguf")):
            digest = "0" * 64 if name in state.wrong else hashlib.sha256(body).hexdigest()
            return 302, {**told, "X-Linked-Etag": f'"{digest}"', "Location": f"{store_url()}/{name}"}, b""
        digest = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
        return 200, {**told, "ETag": f'"{"0" * 40 if name in state.wrong else digest}"'}, body

    return pages


def store_of(state):
    def pages(path, headers, method):
        state.asked.append((f"/store{path}", headers))
        name = path.rpartition("/")[2]
        body, start = state.files[name], 0
        if state.has_range and "Range" in headers:
            start = int(headers["Range"].removeprefix("bytes=").rstrip("-"))
            if start >= len(body):
                return 416, {}, b""
        rest = body[start:]
        extra = {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"} if start else {}
        cut = state.breaks_after.pop(name, None) if method == "GET" else None
        return (206 if start else 200), {"ETag": '"of the store"', "Whole": len(rest), **extra}, rest[:cut]

    return pages


@pytest.fixture
def fake_hub(tmp_path, monkeypatch, tiny_folder):
    names = ("config.json", "tokenizer.json", "tokenizer_config.json")
    files = {name: (tiny_folder / name).read_bytes() for name in names}
    files |= {
        "model.safetensors": (tiny_folder / "model.safetensors").read_bytes(),
        "README.md": CARD.encode(),
    }
    state = Hub(files)
    store = serve(store_of(state))
    main = serve(pages_of(state, lambda: f"http://localhost:{store.server_address[1]}"))
    state.url = f"http://127.0.0.1:{main.server_address[1]}"
    monkeypatch.setenv("HF_ENDPOINT", state.url + "/")
    monkeypatch.setenv("LLMBENCH_CACHE", str(tmp_path / "cache"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    yield state
    for server in (main, store):
        server.shutdown()
        server.server_close()


def test_a_model_is_fetched_once_and_needs_no_hub_after_that(fake_hub, monkeypatch):
    folder = model_folder("org/model")
    assert {path.name for path in folder.iterdir()} == {*fake_hub.files, "source.json"}
    for name, body in fake_hub.files.items():
        assert (folder / name).read_bytes() == body
    assert all(f"/resolve/{COMMIT}/" in path for path, _ in fake_hub.asked[1:] if "/store/" not in path)
    load_decoder(folder, ModelConfig.from_folder(folder), device="cpu", dtype=torch.float32)
    asked = len(fake_hub.asked)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert model_folder("org/model") == folder
    assert len(fake_hub.asked) == asked
    (entry,) = [entry for entry in listing.listing() if entry["name"] == "org/model"]
    assert (entry["licence"], entry["parameters"]) == ("apache-2.0", "3.4M")
    assert entry["source"] == f"{fake_hub.url}/org/model"
    assert entry["bytes"] == entry["download_bytes"] > 6_000_000


def test_several_weight_files_are_those_that_the_index_names(fake_hub):
    whole = fake_hub.files.pop("model.safetensors")
    names = {f"tensor {i}": f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}
    fake_hub.files |= dict.fromkeys(names.values(), whole) | {"unwanted.safetensors": b"", "pytorch.bin": b""}
    fake_hub.files["model.safetensors.index.json"] = json.dumps({"weight_map": names}).encode()
    folder = model_folder("org/model")
    assert {path.name for path in folder.glob("*.safetensors")} == set(names.values())
    assert not {"pytorch.bin", "unwanted.safetensors"} & set(fake_hub.names())


def test_an_index_cannot_write_elsewhere(fake_hub):
    del fake_hub.files["model.safetensors"]
    fake_hub.files["model.safetensors.index.json"] = b'{"weight_map": {"x": "../../x.safetensors"}}'
    with pytest.raises(FetchError, match=r"names '\.\./\.\./x\.safetensors', which is no file beside it"):
        model_folder("org/model")


@pytest.mark.parametrize("has_range", [True, False])
def test_what_broke_off_is_gone_on_with(fake_hub, has_range):
    fake_hub.has_range = has_range
    fake_hub.breaks_after["model.safetensors"] = 1_000_000
    with pytest.raises(FetchError, match=r"model\.safetensors.* broke off after 1,000,000 "):
        model_folder("org/model")
    assert not hub_folder("org/model").exists()
    fake_hub.asked.clear()
    folder = model_folder("org/model")
    assert (folder / "model.safetensors").read_bytes() == fake_hub.files["model.safetensors"]
    ranges = [headers.get("Range") for path, headers in fake_hub.asked if path == "/store/model.safetensors"]
    assert ranges[-1] == "bytes=1000000-"
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_wrong_checksum_is_noticed_and_the_file_not_kept(fake_hub, name):
    fake_hub.wrong.add(name)
    with pytest.raises(FetchError, match=rf"{name}: the file does not have the size and checksum"):
        model_folder("org/model")
    fake_hub.wrong.clear()
    assert (model_folder("org/model") / name).read_bytes() == fake_hub.files[name]


def test_the_token_goes_to_the_hub_and_not_to_its_store(fake_hub, monkeypatch):
    fake_hub.token = "secret"
    with pytest.raises(
        FetchError, match=r"org/model is private, gated or .* HF_TOKEN is not set: .* \(gated\)"
    ):
        model_folder("org/model")
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with pytest.raises(FetchError, match="the token in HF_TOKEN is not allowed to"):
        model_folder("org/model")
    monkeypatch.setenv("HF_TOKEN", "secret")
    model_folder("org/model")
    told = [headers for path, headers in fake_hub.asked if path.startswith("/store/")]
    assert told
    assert not any("Authorization" in headers for headers in told)


def test_two_at_once_fetch_it_once(fake_hub):
    folders = []
    threads = [threading.Thread(target=lambda: folders.append(model_folder("org/model"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 3
    assert len(set(folders)) == 1
    assert fake_hub.names().count("config.json") == 1


def test_what_the_hub_lacks_is_said(fake_hub, monkeypatch):
    with pytest.raises(
        FetchError, match=r"the hub has no .*/org/nothing/resolve/main/config\.json \(Entry not"
    ):
        model_folder("org/nothing")
    del fake_hub.files["model.safetensors"]
    with pytest.raises(FetchError, match="org/model has no weights in safetensors"):
        model_folder("org/model")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FetchError, match="org/model is not on this machine, and HF_HUB_OFFLINE forbids"):
        model_folder("org/model")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(FetchError, match=r"the hub cannot be reached: .*config\.json"):
        model_folder("org/model")
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")
    with pytest.raises(FetchError, match="HF_ENDPOINT is file:///etc, which is no"):
        model_folder("org/model")


def test_progress_of_large_files_is_logged(fake_hub, caplog):
    fake_hub.files["large.gguf"] = bytes(20_000_000)
    caplog.set_level(logging.INFO)
    path = hub_folder("org/model") / "large.gguf"
    path.parent.mkdir(parents=True)
    hub.fetch_file("org/model", "large.gguf", path)
    lines = [record.message for record in caplog.records if "large.gguf" in record.message]
    assert 8 <= len(lines) <= 10
    assert lines[-1] == "org/model/large.gguf: 20 of 20 MB"


def test_a_card_without_a_licence_has_none(tmp_path):
    card = tmp_path / "README.md"
    assert hub.licence_of(card) is None
    for text, wanted in (
        ("no header", None),
        ("---\nx: 1\n---\nlicense: mit", None),
        ("---\nlicense: 'mit'\n", "mit"),
    ):
        card.write_text(text)
        assert hub.licence_of(card) == wanted
