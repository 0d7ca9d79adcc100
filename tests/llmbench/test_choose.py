"""Which transport carries a run, and what proxies and certificates mean for it."""

from __future__ import annotations

import ssl
import subprocess
import sys

import pytest

from llmbench.client.choose import choose, make_transport, proxy_for, tls_context
from llmbench.client.exchange import Timeouts
from llmbench.client.wire import Destination
from llmbench.errors import UsageError
from llmbench.scenario.address import parse_address

PROXIES = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"]
FAR, SAFE, HERE = (parse_address(url) for url in ("http://far", "https://far", "http://127.0.0.1:8000"))


@pytest.fixture
def environment(monkeypatch):
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch.setenv


def test_without_a_proxy_the_fast_one_is_the_default(environment):
    for address in (FAR, SAFE, HERE):
        assert choose("auto", address) == "fast"
        for name in ("fast", "aiohttp", "httpx"):
            assert choose(name, address) == name


def test_a_proxy_is_for_aiohttp(environment):
    environment("HTTP_PROXY", "http://proxy:3128")
    assert choose("auto", FAR) == "aiohttp"
    assert choose("auto", SAFE) == "fast"  # that one has no proxy
    with pytest.raises(UsageError, match="NO_PROXY"):
        choose("fast", FAR)
    environment("NO_PROXY", "far")
    assert choose("fast", FAR) == "fast"


def test_this_machine_and_unix_sockets_have_no_proxy(environment):
    environment("HTTP_PROXY", "http://proxy:3128")
    assert proxy_for(FAR) == "http://proxy:3128"
    for address in (HERE, parse_address("http://localhost"), parse_address("http://[::1]:1"),
                    parse_address("http://far", "/run/x.sock")):  # fmt: skip
        assert proxy_for(address) is None


def test_the_scheme_chooses_the_proxy(environment):
    environment("HTTPS_PROXY", "http://safe:3128")
    assert proxy_for(FAR) is None
    assert proxy_for(SAFE) == "http://safe:3128"


def test_tls_is_checked_unless_told_otherwise():
    assert tls_context(FAR, True) is None
    checked = tls_context(SAFE, True)
    assert checked.verify_mode is ssl.CERT_REQUIRED
    assert checked.check_hostname
    unchecked = tls_context(SAFE, False)
    assert unchecked.verify_mode is ssl.CERT_NONE
    assert not unchecked.check_hostname


def test_a_ca_file_that_is_none_is_named(tmp_path):
    wrong = tmp_path / "ca.pem"
    wrong.write_text("no certificate", encoding="utf-8")
    for path in (wrong, tmp_path / "missing.pem"):
        with pytest.raises(UsageError, match=r"target\.tls_verify") as refused:
            tls_context(SAFE, str(path))
        assert str(path) in str(refused.value)


@pytest.mark.parametrize("name", ["fast", "aiohttp", "httpx"])
def test_each_name_makes_that_transport(name):
    destination = Destination(address=HERE, api="chat", headers=())
    assert make_transport(name, destination, Timeouts(), None).name == name


def test_only_the_library_that_is_used_is_imported():
    libraries = "{'aiohttp', 'httpx', 'httptools'}"
    script = f"import sys, llmbench.client.choose; print(sorted({libraries} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
