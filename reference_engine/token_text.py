"""How a single token looks: its bytes and its text, for log-probabilities.

Text of a whole answer never comes from here: what `tokenizer` decodes is more than its tokens' texts.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tokenizers import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")  # how SentencePiece models spell a byte without a token


class TokenText:
    """Bytes and text of each token of a vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {
            token_id: token.content for token_id, token in tokenizer.get_added_tokens_decoder().items()
        }
        decoder = tokenizer.decoder
        state: bytes = decoder.__getstate__() if decoder is not None else b""
        self._bytes_by_letter = _byte_level() if b'"ByteLevel"' in state else None
        # A letter of a byte-level vocabulary is a byte; any other has at most 4.
        letters = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)
        self.most_bytes = letters * (1 if self._bytes_by_letter is not None else 4)
        self.raw = lru_cache(maxsize=65536)(self._raw)

    def text(self, token_id: int) -> str:
        """Readable text; part of a character shows as U+FFFD."""
        return self.raw(token_id).decode("utf-8", "replace")

    def num_chars(self, token_id: int) -> int:
        """Characters that begin in this token, so that those of several tokens add up."""
        return sum(byte & 0xC0 != 0x80 for byte in self.raw(token_id))

    def _raw(self, token_id: int) -> bytes:
        """UTF-8, or a part of it; empty for an id that the vocabulary does not use."""
        added = self._added.get(token_id)
        piece = self._tokenizer.id_to_token(token_id)
        if added is not None or piece is None:
            return (added or "").encode()
        if self._bytes_by_letter is not None:
            return b"".join(self._bytes_by_letter.get(letter, letter.encode()) for letter in piece)
        if found := _BYTE.fullmatch(piece):
            return bytes.fromhex(found[1])
        return piece.replace("\u2581", " ").encode()


def _byte_level() -> dict[str, bytes]:
    """GPT-2's letters for bytes (Radford et al. 2019): printable Latin-1 is itself, the rest from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): bytes([byte]) for byte in printable}
    return letters | {chr(256 + at): bytes([byte]) for at, byte in enumerate(others)}
