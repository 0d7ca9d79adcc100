"""Text comes out whole, in pieces that add up, and never beyond a stop string."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reference_engine.errors import ModelError, RequestError
from reference_engine.tokenizer import IncrementalDecoder, StopStrings, TextTokenizer

ids = st.lists(st.integers(0, 3071), max_size=40)


def pieces(tokenizer, token_ids):
    decoder = IncrementalDecoder(tokenizer)
    return [*(decoder.push(token_id) for token_id in token_ids), decoder.flush()]


@given(text=st.text())
@example(text="naïve café 🙂👩‍👩‍👧 日本 \ufffd end")
def test_text_survives_encoding_and_no_piece_holds_half_a_character(tokenizer, text):
    token_ids = tokenizer.encode(text)
    shown = pieces(tokenizer, token_ids)
    assert "".join(shown) == text == tokenizer.decode(token_ids)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in shown)


@given(token_ids=ids)
def test_pieces_of_any_tokens_add_up_to_the_whole(tokenizer, token_ids):
    assert "".join(pieces(tokenizer, token_ids)) == tokenizer.decode(token_ids)


def test_a_character_in_three_tokens_appears_with_the_last(tokenizer):
    token_ids = tokenizer.encode("☃")
    assert len(token_ids) == 3
    assert pieces(tokenizer, token_ids) == ["", "", "☃", ""]


@given(
    st.lists(st.text("abc", max_size=4), max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
)
def test_stop_strings_cut_exactly_where_they_first_begin(parts, stop):
    filter_, shown, is_stopped, seen = StopStrings(stop), "", False, ""
    for part in parts:
        text, is_stopped = filter_.push(part)
        shown, seen = shown + text, seen + part
        if is_stopped:
            break
    if not is_stopped:
        shown += filter_.flush()
    found = [seen.index(one) for one in stop if one in seen]
    assert is_stopped == bool(found)
    assert shown == (seen[: min(found)] if found else seen)


@given(st.lists(st.text("ab", max_size=3), max_size=8), st.text("ab", min_size=1, max_size=4))
def test_text_is_held_back_only_while_it_may_begin_a_stop_string(parts, stop):
    filter_, shown, seen = StopStrings([stop]), "", ""
    for part in parts:
        text, is_stopped = filter_.push(part)
        if is_stopped:
            return
        shown, seen = shown + text, seen + part
        held = seen[len(shown) :]
        assert stop.startswith(held)
        assert held != stop


def test_the_chat_template_is_the_models_own(tokenizer):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hail!"}]
    token_ids = tokenizer.encode_chat(messages)
    text = tokenizer.tokenizer.decode(token_ids, skip_special_tokens=False)
    assert text == "<|system|>\nBe brief.<|end|>\n<|user|>\nHail!<|end|>\n<|assistant|>\n"
    assert len(tokenizer.encode_chat(messages, add_generation_prompt=False)) == len(token_ids) - 2


def test_a_template_may_refuse_and_a_model_may_have_none(tokenizer):
    strict = TextTokenizer(tokenizer.tokenizer, "{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(RequestError, match="roles must alternate"):
        strict.encode_chat([{"role": "user", "content": "x"}])
    with pytest.raises(RequestError, match="no chat template"):
        TextTokenizer(tokenizer.tokenizer, None, {}).encode_chat([])


@pytest.mark.parametrize("content", [None, "{", '{"model": 5}'])
def test_a_missing_or_broken_file_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        TextTokenizer.from_folder(tmp_path)


def settings_with(tmp_path, tiny_folder, template):
    (tmp_path / "tokenizer.json").write_bytes((tiny_folder / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": template, "eos_token": "<|end|>"})
    )
    return tmp_path


def test_a_template_may_be_one_of_several_and_use_what_templates_use(tmp_path, tiny_folder):
    template = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{{ m | tojson }}{{ strftime_now('%Y')[:1] }}{{ eos_token }}"
        "{% endfor %}{% if tools %}never{% endif %}"
    )
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": template}]
    own = TextTokenizer.from_folder(settings_with(tmp_path, tiny_folder, named))
    ids = own.encode_chat([{"content": "<é>"}, {"content": "second"}])
    assert own.tokenizer.decode(ids, skip_special_tokens=False) == '{"content": "<é>"}2<|end|>'


def test_a_broken_template_is_named_with_its_file(tmp_path, tiny_folder):
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: the chat template cannot be read"):
        TextTokenizer.from_folder(settings_with(tmp_path, tiny_folder, "{% if %}"))
    (tmp_path / "chat_template.jinja").write_text("{{")
    with pytest.raises(ModelError, match=r"chat_template\.jinja: the chat template cannot be read"):
        TextTokenizer.from_folder(tmp_path)
