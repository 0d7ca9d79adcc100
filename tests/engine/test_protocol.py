"""Bodies are checked field by field; what cannot be honoured is refused, never dropped."""

from __future__ import annotations

import json

import pytest

from reference_engine.errors import RequestError
from reference_engine.protocol import ChatBody, CompletionBody, TokenizeBody, parse_body

USER = {"role": "user", "content": "Hail"}


def chat(**fields):
    return parse_body(ChatBody, json.dumps({"messages": [USER], **fields}).encode())


def completion(**fields):
    return parse_body(CompletionBody, json.dumps(fields).encode())


def test_defaults_are_openais():
    sampling = chat().sampling(99)
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k, sampling.top_p) == (99, 1.0, 0, 1.0)
    assert chat().sampling(9).seed != chat().sampling(9).seed
    assert chat(seed=5).sampling(9).seed == 5


def test_fields_arrive():
    body = chat(
        max_tokens=7, temperature=0, top_k=-1, top_p=0.5, stop=["a", "b"], ignore_eos=True,
        stream=True, stream_options={"include_usage": True}, unheard_of=1,
    )  # fmt: skip
    sampling = body.sampling(99)
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k, sampling.top_p) == (7, 0.0, 0, 0.5)
    assert (sampling.stop, sampling.ignore_eos) == (("a", "b"), True)
    assert body.stream
    assert body.is_usage_streamed


def test_the_newer_name_of_max_tokens_wins():
    assert chat(max_tokens=7, max_completion_tokens=8).sampling(99).max_tokens == 8


def test_content_in_parts_is_joined():
    parts = [{"type": "text", "text": "Ha"}, {"type": "text", "text": "il"}]
    body = chat(messages=[{"role": "user", "content": parts}])
    assert body.messages[0].flat() == USER


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [("Hail", "Hail"), (["Hail"], "Hail"), ([5, 6], [5, 6]), ([[5, 6]], [5, 6]), ([], []), ("", "")],
)
def test_a_prompt_is_text_or_tokens(prompt, wanted):
    assert completion(prompt=prompt).one_prompt() == wanted


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"min_p": 0.1}, "min_p"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"stop": [1]}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"seed": 2**64}, "seed"),
        ({"messages": []}, "messages"),
        ({"messages": "Hail"}, "messages"),
        ({"messages": [{"role": "bard", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    ],
)
def test_a_field_at_fault_is_named(fields, param):
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert param in str(caught.value)


@pytest.mark.parametrize("neutral", [{"n": 1}, {"presence_penalty": 0.0}, {"logprobs": None}, {"tools": []}])
def test_asking_for_nothing_is_fine(neutral):
    chat(**neutral)


def test_empty_stop_strings_and_several_prompts_are_refused():
    with pytest.raises(RequestError, match="must not be empty"):
        chat(stop="").sampling(9)
    with pytest.raises(RequestError, match="only one prompt"):
        completion(prompt=["a", "b"]).one_prompt()


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"5", b"\xff", b'{"messages": "\\ud800"}', b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(raw):
    with pytest.raises(RequestError):
        parse_body(ChatBody, raw)


def test_all_faults_are_reported_together():
    with pytest.raises(RequestError, match=r"max_tokens: .*; temperature: .*; messages: "):
        parse_body(ChatBody, b'{"max_tokens": 0, "temperature": -1}')


@pytest.mark.parametrize("fields", [{}, {"prompt": "a", "messages": [USER]}])
def test_tokenize_wants_one_of_two(fields):
    with pytest.raises(RequestError, match="either prompt or messages"):
        parse_body(TokenizeBody, json.dumps(fields).encode())
