"""The mock's tokenizer and its text: counts that are known before anything is sent.

Counting: each run of bytes without ASCII whitespace is one token, and one more for every further 16 bytes
of it (in UTF-8). A chat prompt costs 4 tokens a message (its markers) and 3 at the end (the start of the
answer) on top of its words. Every generated token is a blank and one word, so an answer of N tokens counts
N again by this rule.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from hashlib import blake2b

MESSAGE_OVERHEAD_TOKENS = 4
ANSWER_OVERHEAD_TOKENS = 3
_BYTES_PER_TOKEN = 16

_ONSETS = "bdfghklmnprstvwz"
_MIDDLES = ("a", "e", "i", "o", "u", "ar", "en", "il")
_ENDINGS = ("ba", "da", "ke", "lin", "mo", "ra", "su", "tor")
_ODD_WORDS = ("你好", "naïve", "🙂", "a\u2028b", "c\u0085d", "👩‍🔬", "Ωmega", "łódź")

# Words need no JSON escape: they can be pasted into a JSON string as they are.
ASCII_WORDS = tuple(f" {a}{b}{c}".encode() for a in _ONSETS for b in _MIDDLES for c in _ENDINGS)
UNICODE_WORDS = tuple(
    word if i % 4 else f" {_ODD_WORDS[i // 4 % len(_ODD_WORDS)]}".encode()
    for i, word in enumerate(ASCII_WORDS)
)
assert len(ASCII_WORDS) == 1024


def pieces(text: str) -> list[bytes]:
    """The tokens of `text` as bytes, without the whitespace between them."""
    found: list[bytes] = []
    for word in text.encode("utf-8", "replace").split():
        found.extend(word[i : i + _BYTES_PER_TOKEN] for i in range(0, len(word), _BYTES_PER_TOKEN))
    return found


def count_tokens(text: str) -> int:
    """How many tokens `text` has under the rule above; the same as `len(pieces(text))`, but quick."""
    words = text.encode("utf-8", "replace").split()
    if not words:
        return 0
    if max(map(len, words)) <= _BYTES_PER_TOKEN:
        return len(words)
    return sum((len(word) + _BYTES_PER_TOKEN - 1) // _BYTES_PER_TOKEN for word in words)


def token_id(piece: bytes) -> int:
    """A made-up but stable id of a token, below 32,768."""
    return zlib.crc32(piece) & 0x7FFF


def prompt_state(seed: int, prompt: str) -> int:
    """A 64-bit number out of seed and prompt: the same prompt gets the same answer, streamed or not."""
    digest = blake2b(f"{seed}/{prompt}".encode("utf-8", "replace"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def words_from(state: int, words: Sequence[bytes]) -> Iterator[bytes]:
    """Words without end from a 64-bit linear congruential walk (Knuth's MMIX constants, top ten bits)."""
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        yield words[state >> 54]
