"""The bytes that go out: heads of RFC 9112, bodies of the three APIs."""

from __future__ import annotations

import json

import pytest

from llmbench.client.wire import BodyStyle, Destination, render_body, request_headers
from llmbench.scenario.address import parse_address


def style(**changes):
    return BodyStyle(**{"api": "chat", "model": "m", "extra": {}, **changes})


def body(style_, **given):
    return json.loads(render_body(style_, **given))


MESSAGES = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
USER = [{"role": "user", "content": "Hi"}]
OPTIONS = {"include_usage": True}


@pytest.mark.parametrize(
    ("changes", "given", "expected"),
    [
        ({}, {"prompt": "Hi", "max_tokens": 3},
         {"model": "m", "messages": USER, "max_tokens": 3, "stream": True, "stream_options": OPTIONS}),
        ({"usage": False}, {"messages": MESSAGES}, {"model": "m", "messages": MESSAGES, "stream": True}),
        ({"stream": False}, {"prompt": "Hi"}, {"model": "m", "messages": USER, "stream": False}),
        ({"ignore_eos": True, "usage": False}, {"prompt": "Hi"},
         {"model": "m", "messages": USER, "ignore_eos": True, "stream": True}),
        ({"api": "completions"}, {"prompt": "Hi", "max_tokens": 3},
         {"model": "m", "prompt": "Hi", "max_tokens": 3, "stream": True, "stream_options": OPTIONS}),
        ({"api": "completions", "usage": False}, {"messages": MESSAGES},
         {"model": "m", "prompt": "S\nU", "stream": True}),
        ({"api": "responses"}, {"prompt": "Hi", "max_tokens": 3},
         {"model": "m", "input": "Hi", "max_output_tokens": 3, "stream": True}),
        ({"api": "responses"}, {"messages": MESSAGES}, {"model": "m", "input": MESSAGES, "stream": True}),
    ],
)  # fmt: skip
def test_bodies(changes, given, expected):
    assert body(style(**changes), **given) == expected


def test_what_the_user_put_under_body_wins():
    extra = {"temperature": 0, "max_tokens": 9, "stream_options": {"include_usage": False}}
    sent = body(style(extra=extra), prompt="Hi", max_tokens=3)
    assert {key: sent[key] for key in extra} == extra


def test_content_parts_become_text_where_only_a_prompt_fits():
    """Once they were sent as Python's repr of a list: `[{'type': 'text', …` was what the model read."""
    parts = [
        {"type": "text", "text": "Look"},
        {"type": "image_url", "image_url": {}},
        {"type": "text", "text": "!"},
    ]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    assert body(style(api="completions"), messages=messages)["prompt"] == "Look!\n"


def head_of(message):
    head, _, rest = message.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    return first, [tuple(line.split(": ", 1)) for line in lines], rest


def destination(url="http://h:8000/root/v1/", headers=()):
    return Destination(address=parse_address(url), api="chat", headers=headers)


def test_a_framed_request_is_whole_and_exact():
    headers = request_headers(api_key="k-1", extra={"X-Tenant": "a"}, stream=True, agent="llmbench/0")
    outgoing = destination(headers=headers).frame(3, "run-3", '{"é":1}'.encode())
    first, fields, payload = head_of(outgoing.message)
    assert first == "POST /root/v1/chat/completions HTTP/1.1"
    assert fields == [
        ("Host", "h:8000"), ("Content-Type", "application/json"), ("Accept", "text/event-stream"),
        ("Accept-Encoding", "identity"), ("User-Agent", "llmbench/0"), ("Authorization", "Bearer k-1"),
        ("X-Tenant", "a"), ("X-Request-Id", "run-3"), ("Content-Length", "8"),
    ]  # fmt: skip
    assert payload == outgoing.payload == '{"é":1}'.encode()


def test_the_users_own_headers_win_whatever_their_case():
    """A Host of the user's own (behind a tunnel, say) once went out beside ours: servers refuse two."""
    extra = {"accept": "x", "AUTHORIZATION": "Basic y", "host": "virtual", "x-request-id": "mine"}
    headers = request_headers(api_key="k-1", extra=extra, stream=True, agent="a")
    _, fields, _ = head_of(destination(headers=headers).frame(0, "run-0", b"{}").message)
    names = [name.lower() for name, _ in fields]
    assert len(names) == len(set(names))
    assert {name.lower(): value for name, value in fields} | extra_lower(extra) == {
        name.lower(): value for name, value in fields
    }


def extra_lower(extra):
    return {name.lower(): value for name, value in extra.items()}


def test_without_a_key_nothing_is_authorised():
    for key in (None, ""):
        headers = request_headers(api_key=key, extra={}, stream=False, agent="a")
        assert "Authorization" not in dict(headers)
        assert dict(headers)["Accept"] == "application/json"


def test_a_destination_never_prints_its_headers():
    assert repr(destination(headers=(("Authorization", "Bearer k-secret"),))) == (
        "Destination(http://h:8000/root/v1/chat/completions)"
    )
