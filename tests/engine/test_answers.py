"""What clients are told, event by event, whatever the text; and how single tokens look."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE

from reference_engine.answers import Answer, Head
from reference_engine.token_text import TokenText
from reference_engine.tokenizer import IncrementalDecoder, StopStrings
from reference_engine.types import RequestTimings, TokenEvent

TIMINGS = RequestTimings(queue_s=0.1, prefill_s=0.2, decode_s=0.3)


def answer(**extras):
    head = Head(**{"request_id": "r", "created_s": 5, "model": 'a "model"\n', "is_chat": True, **extras})
    return Answer(head, names=["r-0"], prompt_sizes=[3])


def event(text, at, *, is_last=False, **extras):
    return TokenEvent(
        request_id="r-0", token_id=at, text=text, num_output_tokens=at,
        finish_reason="stop" if is_last else None, timings=TIMINGS if is_last else None, **extras,
    )  # fmt: skip


def parsed(raw):
    """The JSON of each event; a line may end only where an event does."""
    lines = raw.decode("ascii").splitlines()
    assert lines[1::2] == [""] * (len(lines) // 2)
    return [json.loads(line.removeprefix("data: ")) for line in lines[::2] if line != "data: [DONE]"]


@given(st.lists(st.text(), min_size=1, max_size=8), st.booleans(), st.booleans())
def test_streamed_and_whole_texts_are_the_same(texts, is_chat, has_usage):
    streamed = answer(is_chat=is_chat, is_usage_streamed=has_usage)
    whole = answer(is_chat=is_chat)
    raw = b""
    for at, text in enumerate(texts, start=1):
        one = event(text, at, is_last=at == len(texts))
        raw += streamed.event(one)
        whole.add(one)
    assert streamed.num_unfinished == whole.num_unfinished == 0
    raw += streamed.ending()
    assert raw.endswith(b"data: [DONE]\n\n")
    chunks = parsed(raw)
    if has_usage:
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"] == whole.whole()["usage"]
        assert last["timings"] == {"queue_s": 0.1, "prefill_s": 0.2, "decode_s": 0.3}
    (wanted,) = whole.whole()["choices"]
    choices = [chunk["choices"][0] for chunk in chunks]
    if is_chat:
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in choices) == wanted["message"]["content"]
        assert choices[-1]["delta"] == {}
    else:
        assert "".join(c["text"] for c in choices) == wanted["text"]
    assert [c["finish_reason"] for c in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert {(chunk["id"], chunk["model"], chunk["created"]) for chunk in chunks} == {("r", 'a "model"\n', 5)}
    assert len(choices) == is_chat + sum(map(bool, texts)) + 1, "a token without text makes no event"


@given(st.text(min_size=1), st.data())
def test_a_stop_string_across_tokens_cuts_text_where_it_begins_and_never_within_a_character(
    tokenizer, text, data
):
    start = data.draw(st.integers(0, len(text) - 1))
    stop = text[start : start + data.draw(st.integers(1, 6))]
    decoder, strings, pieces = IncrementalDecoder(tokenizer), StopStrings([stop]), []
    for token_id in tokenizer.encode(text):
        shown, is_stopped = strings.push(decoder.push(token_id))
        pieces.append(shown)
        if is_stopped:
            break
    else:
        pieces.append(strings.push(decoder.flush())[0])
    assert "".join(pieces) == text[: text.index(stop)]
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_log_probabilities_of_tokens_without_text_come_with_the_next_that_shows_some(tokenizer):
    token_ids = tokenizer.encode("☃")
    stream = answer(token_text=TokenText(tokenizer.tokenizer))
    raw = b""
    for at, token_id in enumerate(token_ids):
        is_last = at == len(token_ids) - 1
        tops = ((token_id, -0.5), (token_ids[0], float("-inf")))
        raw += stream.event(
            TokenEvent(
                request_id="r-0",
                token_id=token_id,
                text="☃" if is_last else "",
                num_output_tokens=at + 1,
                logprob=-0.5,
                top_logprobs=tops,
                finish_reason="length" if is_last else None,
            )
        )
    _, piece, closing = parsed(raw)
    content = piece["choices"][0]["logprobs"]["content"]
    assert bytes(byte for token in content for byte in token["bytes"]).decode() == "☃"
    assert [token["logprob"] for token in content] == [-0.5] * 3
    assert content[0]["top_logprobs"][1]["logprob"] == -9999.0
    assert closing["choices"][0]["logprobs"] == {"content": []}


@given(st.text())
def test_bytes_of_tokens_are_those_of_the_text(tokenizer, text):
    look = TokenText(tokenizer.tokenizer)
    token_ids = tokenizer.encode(text)
    assert b"".join(look.raw(token_id) for token_id in token_ids) == text.encode()
    assert sum(look.num_chars(token_id) for token_id in token_ids) == len(text)
    assert all(len(look.raw(token_id)) <= look.most_bytes for token_id in token_ids)


def test_tokens_of_other_vocabularies():
    vocabulary = {"<0xE2>": 0, "\u2581the": 1, "é": 2}
    sentencepiece = Tokenizer(BPE(vocabulary, []))
    sentencepiece.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    sentencepiece.add_special_tokens(["</s>"])
    look = TokenText(sentencepiece)
    assert [look.raw(at) for at in (0, 1, 2, 3, 99)] == [b"\xe2", b" the", "é".encode(), b"</s>", b""]
    assert look.text(0) == "\ufffd"


@pytest.mark.parametrize("is_chat", [True, False])
def test_a_prompt_counts_once_for_all_its_choices(is_chat):
    head = Head(request_id="r", created_s=5, model="m", is_chat=is_chat)
    names = ["a0", "a1", "b0", "b1"]
    two = Answer(head, names=names, prompt_sizes=[10, 20])
    for at, name in enumerate(names):
        two.add(
            TokenEvent(
                request_id=name,
                token_id=5,
                text="x",
                num_output_tokens=1,
                finish_reason="stop",
                num_cached_tokens=[4, 10, 8, 20][at],
                timings=TIMINGS,
            )
        )
    assert two.whole()["usage"] == {
        "prompt_tokens": 30,
        "completion_tokens": 4,
        "total_tokens": 34,
        "prompt_tokens_details": {"cached_tokens": 12},
    }
