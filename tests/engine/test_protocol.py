"""Bodies are checked field by field; what cannot be honoured is refused, never dropped."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from reference_engine.errors import RequestError
from reference_engine.protocol import ChatBody, CompletionBody, TokenizeBody, parse_body
from reference_engine.types import SamplingParams

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
        stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}, unheard_of=1,
        min_p=0.1, presence_penalty=0.2, frequency_penalty=-0.3, repetition_penalty=1.4, seed=-5, n=3,
        stop_token_ids=[4, 5], logprobs=True, top_logprobs=3, priority=-2,
    )  # fmt: skip
    assert body.sampling(99) == SamplingParams(
        max_tokens=7, top_p=0.5, min_p=0.1, presence_penalty=0.2, frequency_penalty=-0.3,
        repetition_penalty=1.4, seed=-5, stop=("a", "b"), stop_token_ids=(4, 5), ignore_eos=True,
        num_logprobs=3,
    )  # fmt: skip
    assert (body.stream, body.n, body.priority) == (True, 3, -2)
    assert body.is_usage_streamed
    assert body.is_usage_continuous


def test_the_newer_name_of_max_tokens_wins():
    assert chat(max_tokens=7, max_completion_tokens=8).sampling(99).max_tokens == 8


def test_content_in_parts_is_joined():
    parts = [{"type": "text", "text": "Ha"}, {"type": "text", "text": "il"}]
    body = chat(messages=[{"role": "user", "content": parts}])
    assert body.messages[0].flat() == USER


@pytest.mark.parametrize(
    ("prompt", "wanted"),
    [
        ("Hail", ["Hail"]),
        (["Hail", "all"], ["Hail", "all"]),
        ([5, 6], [[5, 6]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
        (["Hail", [7]], ["Hail", [7]]),
        ([], [[]]),
        ("", [""]),
    ],
)
def test_prompts_are_text_or_tokens_one_or_several(prompt, wanted):
    assert completion(prompt=prompt).prompts() == wanted


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"logprobs": 3}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"min_p": 1.1}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"priority": "high"}, "priority"),
        ({"min_tokens": 4}, "min_tokens"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"max_tokens": 10**30}, "max_tokens"),
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


@pytest.mark.parametrize(
    "neutral",
    [{"n": 1}, {"best_of": 1}, {"logit_bias": {}}, {"logprobs": None}, {"tools": []}, {"stream": None}],
)
def test_asking_for_nothing_is_fine(neutral):
    chat(**neutral)


def test_null_is_the_default():
    nothing = dict.fromkeys(name for name in ChatBody.model_fields if name != "messages")
    assert replace(chat(**nothing).sampling(9), seed=0) == replace(chat().sampling(9), seed=0)


def test_logprobs_are_spelled_differently_in_chats_and_completions():
    assert chat(logprobs=True).num_logprobs == 0
    assert chat(logprobs=False, top_logprobs=0).num_logprobs is None
    assert completion(prompt="a", logprobs=5).num_logprobs == 5
    assert completion(prompt="a").num_logprobs is None
    with pytest.raises(RequestError, match="only together with logprobs"):
        chat(top_logprobs=2).sampling(9)


def test_empty_stop_strings_are_refused():
    with pytest.raises(RequestError, match="must not be empty"):
        chat(stop="").sampling(9)


@pytest.mark.parametrize(
    "prompt", [None, 5, {}, [1.5], [True], [None], ["a", 5], [-1], [2**31], [[["a"]]], [[5, "a"]]]
)
def test_a_prompt_of_another_kind_is_refused(prompt):
    with pytest.raises(RequestError, match="text, token ids, or a list") as caught:
        completion(prompt=prompt).prompts()
    assert caught.value.param == "prompt"


def test_prompts_times_n_are_limited():
    assert len(completion(prompt=["a"] * 64, n=2).prompts()) == 64
    with pytest.raises(RequestError, match="65 prompts, n 2; at most 128 choices"):
        completion(prompt=["a"] * 65, n=2).prompts()


def test_a_flood_of_faults_is_reported_by_its_first():
    with pytest.raises(RequestError) as caught:
        chat(messages=[5] * 100_000, stop=[5] * 1000, stop_token_ids=["x"] * 1000)
    assert len(str(caught.value)) < 1000


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
