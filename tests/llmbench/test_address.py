"""Base URLs as people paste them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmbench.scenario.address import parse_address


@pytest.mark.parametrize(
    ("url", "chat_url"),
    [
        ("http://h:8000", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1/", "http://h:8000/v1/chat/completions"),
        ("http://h:8000//v1//", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1/chat/completions", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1/completions/", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1/responses", "http://h:8000/v1/chat/completions"),
        ("http://h:8000/v1/models", "http://h:8000/v1/chat/completions"),
        ("http://h/q/B59", "http://h/q/B59/v1/chat/completions"),
        ("http://h/q/B59/", "http://h/q/B59/v1/chat/completions"),
        ("http://h/q/B59/v1", "http://h/q/B59/v1/chat/completions"),
        ("http://h/q/B59/v1/", "http://h/q/B59/v1/chat/completions"),
        ("http://h/v1beta", "http://h/v1beta/v1/chat/completions"),
        ("https://h", "https://h/v1/chat/completions"),
        ("https://h:443", "https://h/v1/chat/completions"),
        ("https://h:8443", "https://h:8443/v1/chat/completions"),
        ("h:8000", "http://h:8000/v1/chat/completions"),
        ("  http://h:8000 ", "http://h:8000/v1/chat/completions"),
        ("HTTP://H:8000", "http://h:8000/v1/chat/completions"),
        ("http://[::1]:8378/q/B00/v1", "http://[::1]:8378/q/B00/v1/chat/completions"),
        ("[::1]:8000", "http://[::1]:8000/v1/chat/completions"),
    ],
)
def test_every_form_reaches_the_same_path(url, chat_url):
    address = parse_address(url)
    assert address.url("chat") == chat_url
    assert address.url("completions") == chat_url.replace("/chat/", "/")
    assert address.base + "/v1/chat/completions" == chat_url


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://h", "must be http or https"),
        ("http://", "no host; write http://127"),
        ("http:///v1", "no host; write http://127"),
        ("/foo", "no host; write http://127"),
        (":8000", "no host; write http://127"),
        ("", "not a URL; write http://127"),
        ("http:/h:8000", "a scheme ends in ://; write http://h:8000"),
        ("https:h", "a scheme ends in ://; write https://h"),
        ("localhost", "no port; write localhost:8000"),
        ("::1", "brackets"),
        ("::1:8000", "brackets"),
        ("http://::1:8000", "brackets"),
        ("http://fe80::1/v1", "brackets"),
        ("http://h:99999", "port"),
        ("http://h:eight", "port"),
        ("h:eight", "port"),
        ("api.test/v1", "no scheme; write https://api.test/v1, or http://api.test/v1"),
        ("api.test:443/v1", "no scheme; write https://api.test/v1, or http://api.test:443/v1"),
        (None, "not a URL"),
        (8000, "not a URL"),
    ],
)
def test_what_is_no_address_is_refused_with_the_remedy(url, says):
    with pytest.raises(ValueError, match=says):
        parse_address(url)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("h:8000/v1/", "http://h:8000/v1"),
        ("[::1]:8000/v1/chat/completions", "http://[::1]:8000/v1"),
        ("user:hunter2@h:8000", "http://h:8000"),
    ],
)
def test_host_and_port_alone_mean_http(url, text):
    """measure() and the plugin took them, the command refused them."""
    assert parse_address(url).text == text


@pytest.mark.parametrize("url", ["user:hunter2@api.test", "http:user:hunter2@h", "user:hunter2@/x"])
def test_no_refusal_repeats_a_password(url):
    with pytest.raises(ValueError, match="write") as refused:
        parse_address(url)
    assert "hunter2" not in str(refused.value)


@given(st.text(max_size=30))
def test_no_text_crashes_it(text):
    with suppress(ValueError):
        parse_address(text)


def test_a_unix_socket_is_kept_beside_the_host():
    address = parse_address("http://localhost/v1", "/run/llm.sock")
    assert (address.unix_socket, address.authority) == ("/run/llm.sock", "localhost")


def test_a_query_goes_with_every_request():
    """It was dropped without a word: gateways that want an api-version answered 404."""
    address = parse_address("https://gateway.test/llm/v1/?api-version=2026-10-01")
    assert address.path("chat") == "/llm/v1/chat/completions?api-version=2026-10-01"
    assert address.url("chat") == "https://gateway.test/llm/v1/chat/completions?api-version=2026-10-01"
    assert address.base == "https://gateway.test/llm"
