"""Text to token ids and back: the model's own tokenizer and chat template, incremental decoding that
never shows half a character, and stop strings. Knows nothing of models or requests.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tokenizers import Tokenizer

from reference_engine.errors import ModelError, RequestError
from reference_engine.model_config import read_json

REPLACEMENT = "\ufffd"  # what a decoder shows for bytes that are not (yet) a character


class TextTokenizer:
    """`tokenizer.json` and, where the folder has one, the chat template."""

    def __init__(self, tokenizer: Tokenizer, chat_template: str | None, special: Mapping[str, str]) -> None:
        self.tokenizer = tokenizer
        self._special = special
        self._template = None if chat_template is None else _compile(chat_template)
        added = tokenizer.get_added_tokens_decoder()
        self.control_ids = tuple(sorted(token_id for token_id, token in added.items() if token.special))

    @classmethod
    def from_folder(cls, folder: Path) -> TextTokenizer:
        """Read a Hugging Face folder. Raises ModelError naming the file.

        A draft, in a folder of that name within its model's, has the tokenizer of the model.
        """
        if folder.name == "draft" and not (folder / "tokenizer.json").exists():
            folder = folder.parent
        path = folder / "tokenizer.json"
        if not path.exists():
            raise ModelError(f"{path}: no such file; a model folder needs it")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001  # tokenizers raises no narrower one
            raise ModelError(f"{path}: not a readable tokenizer: {error}") from None
        settings_path = folder / "tokenizer_config.json"
        settings = read_json(settings_path) if settings_path.exists() else {}
        own_file = folder / "chat_template.jinja"
        template = own_file.read_text(encoding="utf-8") if own_file.exists() else _template_of(settings)
        special = ("bos_token", "eos_token", "unk_token", "pad_token")
        named = {key: _content(settings.get(key)) for key in special}
        try:
            return cls(tokenizer, template, named)
        except Exception as error:  # noqa: BLE001  # what the template's compiler raises is its own affair
            where = own_file if own_file.exists() else settings_path
            raise ModelError(f"{where}: the chat template cannot be read: {error}") from None

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, with a beginning-of-sequence token where the model wants one."""
        return self._encode(text, add_special_tokens=True)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
    ) -> list[int]:
        """Token ids of a conversation under the chat template. Raises RequestError if it refuses."""
        if self._template is None:
            raise RequestError("this model has no chat template; use /v1/completions", param="messages")
        try:
            text = self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, **self._special
            )
        except Exception as error:  # noqa: BLE001  # a template is a program and raises what it likes
            raise RequestError(f"the chat template refused the messages: {error}", param="messages") from None
        return self._encode(text, add_special_tokens=False)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        # A batch of one takes as long as one, but lets other threads run meanwhile.
        return self.tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, without control tokens."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True)


class IncrementalDecoder:
    """Token ids in, text out as soon as it is whole; the pieces add up to `decode` of all ids.

    Decoding one token alone is wrong for most tokenizers (a character may span tokens, a leading
    space may depend on what came before), so a window is decoded with and without the new token:

        ids:  ... | already shown, kept as context | held back + new |
                  ^ _context                       ^ _shown
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._num_shown = 0  # tokens of the window whose text is out
        self._shown_text = ""

    def push(self, token_id: int) -> str:
        """Text completed by this token; empty while a character is incomplete."""
        self._window.append(token_id)
        text = self._tokenizer.decode(self._window)
        if text.endswith(REPLACEMENT) or len(text) <= len(self._shown_text):
            return ""
        return self._take(text)

    def flush(self) -> str:
        """What is held back, broken characters and all: for the end of the sequence."""
        return self._take(self._tokenizer.decode(self._window))

    def _take(self, text: str) -> str:
        new = text[len(self._shown_text) :]
        self._window = self._window[self._num_shown :]
        self._num_shown = len(self._window)
        self._shown_text = self._tokenizer.decode(self._window)
        return new


class StopStrings:
    """Passes text on until a stop string appears; neither it nor any part of it is ever shown."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Text that may be shown, and whether a stop string was found (nothing comes after it)."""
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """The held start of a stop string that never came."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a proper start of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


def _compile(template: str) -> Any:
    # Sandboxed: a template comes with the weights, from wherever those came.
    from jinja2.exceptions import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    def now(form: str) -> str:
        return dt.datetime.now().astimezone().strftime(form)

    def as_json(value: Any, indent: int | None = None, **_: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    # What templates on the hub rely on: transformers gives them the same.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals |= {"raise_exception": refuse, "strftime_now": now}
    environment.filters["tojson"] = as_json  # jinja's own escapes for HTML
    return environment.from_string(template)


def _template_of(settings: Mapping[str, Any]) -> str | None:
    """The chat template in `tokenizer_config.json`: one, or the default one of several with names."""
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return None if found is None else str(found)


def _content(token: Any) -> str:
    """A special token as `tokenizer_config.json` spells it: a string, an object, or null."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")
