"""GGUF files (llama.cpp's format): metadata and tensors, read in bulk.

In: a path. Out: plain Python values and float32 arrays. The layout is that of the specification in the
ggml repository (docs/gguf.md); the block formats are those of `ggml-common.h`. The plain ones are here
(F32, F16, Q8_0, Q4_1), all others are left to the `gguf` package.

The reader of that package is not used: it makes several numpy views, and keeps them, for every single
token, merge and number of the vocabulary, where strings can be sliced from the bytes and numbers read as
one array. On SmolLM2's file, with 98,000 such strings, it takes 4 s, and this one 0.15 s.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference_engine.errors import ModelError

Floats = NDArray[np.float32]

_SCALARS = dict(
    zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), (f"<{code}" for code in "BbHhIif?Qqd"), strict=True)
)
_STRING, _ARRAY = 8, 9
_BLOCK = 32  # weights that share one scale
# type number -> (name, bytes, for how many weights)
_TENSOR_TYPES = {0: ("F32", 4, 1), 1: ("F16", 2, 1), 3: ("Q4_1", 20, _BLOCK), 8: ("Q8_0", 34, _BLOCK)}


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


_COUNT, _WHOLE, _NUMBER = "a whole number above 0", "a whole number", "a number"
_TEXT, _FLAG = "text", "true or false"
_TEXTS, _NUMBERS = "a list of texts", "a list of numbers"
_WANTED: Mapping[str, str] = {
    **dict.fromkeys(("general.alignment", "embedding_length", "feed_forward_length", "block_count"), _COUNT),
    **dict.fromkeys(("attention.head_count", "attention.head_count_kv", "attention.key_length"), _COUNT),
    **dict.fromkeys(("context_length", "attention.sliding_window"), _COUNT),
    **dict.fromkeys(("rope.scaling.original_context_length",), _COUNT),
    "expert_count": _WHOLE,
    **dict.fromkeys(("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor"), _NUMBER),
    **dict.fromkeys(("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"), _NUMBER),
    **dict.fromkeys(("rope.scaling.attn_factor",), _NUMBER),
    **dict.fromkeys(("general.architecture", "rope.scaling.type", "tokenizer.chat_template"), _TEXT),
    **dict.fromkeys(("tokenizer.ggml.model", "tokenizer.ggml.pre"), _TEXT),
    **dict.fromkeys(("tokenizer.ggml.tokens", "tokenizer.ggml.merges"), _TEXTS),
    **dict.fromkeys(("tokenizer.ggml.scores", "tokenizer.ggml.token_type"), _NUMBERS),
    **{f"tokenizer.ggml.{kind}_token_id": _WHOLE for kind in ("bos", "eos", "eot", "unknown")},
    **{f"tokenizer.ggml.add_{kind}": _FLAG for kind in ("bos_token", "eos_token", "space_prefix")},
}
"""What is read of the metadata, by key or by the end of a family's key, and what it must be."""
_IS: Mapping[str, Callable[[Any], bool]] = {
    _COUNT: lambda value: _is_whole(value) and value > 0,
    _WHOLE: _is_whole,
    _NUMBER: _is_number,
    _TEXT: lambda value: isinstance(value, str),
    _FLAG: lambda value: isinstance(value, bool),
    _TEXTS: lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
    _NUMBERS: lambda value: isinstance(value, list) and all(_is_number(one) for one in value),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """Where a tensor lies; `shape` has rows first, as numpy does (GGUF writes it the other way round)."""

    shape: tuple[int, ...]
    type_number: int
    offset: int  # bytes from the start of the file


class GgufFile:
    """An open file: `metadata` is parsed, tensors are read when asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: an empty file
            raise ModelError(f"{path}: cannot be read: {error}") from None
        self._at = 0
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorEntry] = {}
        try:
            self._read_header()
        except (struct.error, LookupError, ValueError, TypeError, ArithmeticError, MemoryError) as error:
            raise ModelError(f"{path}: damaged GGUF header at byte {self._at}: {error!r}") from None
        for key, value in self.metadata.items():
            if (wanted := _not_as_wanted(key, value)) is not None:
                raise ModelError(f"{path}: metadata {key} is {_shown(value)}; it must be {wanted}")

    def tensor(self, name: str) -> Floats:
        """Dequantize one tensor. Raises ModelError for a missing one or an unknown type."""
        if name not in self.tensors:
            raise ModelError(f"{self.path}: no tensor {name}")
        entry = self.tensors[name]
        try:
            kind, num_bytes, per = _tensor_type(entry.type_number)
        except LookupError as error:
            raise ModelError(f"{self.path}: {name} is of {error.args[0]}") from None
        count = math.prod(entry.shape)
        if count % per or entry.offset + count // per * num_bytes > len(self._bytes):
            raise ModelError(f"{self.path}: {name} does not fit into the file; is it complete?")
        raw = np.frombuffer(self._bytes, np.uint8, count // per * num_bytes, entry.offset)
        try:
            return dequantize(kind, raw).reshape(entry.shape)
        except NotImplementedError:
            raise ModelError(
                f"{self.path}: {name} is of type {kind}, which `gguf` cannot dequantize"
            ) from None

    def _read_header(self) -> None:
        if self._bytes[:4] != b"GGUF":
            raise ModelError(f"{self.path}: not a GGUF file")
        self._at = 4
        version = self._take("<I")
        if version not in (2, 3):
            raise ModelError(f"{self.path}: GGUF version {version}; supported: 2 and 3")
        num_tensors, num_pairs = self._take("<Q"), self._take("<Q")
        for _ in range(num_pairs):
            key = self._string()
            self.metadata[key] = self._value(self._take("<I"))
        found = [(self._string(), self._entry()) for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        start = -(-self._at // alignment) * alignment
        for name, (shape, type_number, offset) in found:
            self.tensors[name] = TensorEntry(shape=shape, type_number=type_number, offset=start + offset)

    def _entry(self) -> tuple[tuple[int, ...], int, int]:
        dims = [self._take("<Q") for _ in range(self._take("<I"))]
        return tuple(reversed(dims)), self._take("<I"), self._take("<Q")

    def _take(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._bytes, self._at)
        self._at += struct.calcsize(form)
        return value

    def _string(self) -> str:
        length = self._take("<Q")
        self._at += length
        return self._bytes[self._at - length : self._at].decode("utf-8")

    def _value(self, type_number: int) -> Any:
        if type_number == _STRING:
            return self._string()
        if type_number != _ARRAY:
            return self._take(_SCALARS[type_number])
        item, count = self._take("<I"), self._take("<Q")
        if item in (_STRING, _ARRAY):
            return [self._value(item) for _ in range(count)]
        values = np.frombuffer(self._bytes, _SCALARS[item], count, self._at)  # in one go: these are long
        self._at += values.nbytes
        return values.tolist()


def _not_as_wanted(key: str, value: Any) -> str | None:
    """What the value of a key that is read here must be, where it is something else."""
    wanted = next((words for end, words in _WANTED.items() if key == end or key.endswith(f".{end}")), None)
    return None if wanted is None or _IS[wanted](value) else wanted


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _tensor_type(number: int) -> tuple[str, int, int]:
    """Name, bytes of a block and weights in it. Raises LookupError with a sentence's end."""
    if number in _TENSOR_TYPES:
        return _TENSOR_TYPES[number]
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError:
        known = ", ".join(kind for kind, _, _ in _TENSOR_TYPES.values())
        raise LookupError(f"GGUF type {number}; without the package `gguf` only {known} are read") from None
    try:
        kind = GGMLQuantizationType(number)
        per, num_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise LookupError(f"GGUF type {number}, which is not known") from None
    return kind.name, num_bytes, per


def dequantize(kind: str, raw: NDArray[np.uint8]) -> Floats:
    """Bytes of one tensor -> its weights in order, flat.

    Q8_0: a block is a half-precision scale d and 32 signed bytes q; a weight is d * q.
    Q4_1: a block is d, a minimum m (both half) and 16 bytes, whose low halves are weights 0 to 15 and
    high halves weights 16 to 31; a weight is d * q + m. The others are those of the package `gguf`.
    """
    match kind:
        case "F32":
            return raw.view("<f4").astype(np.float32)
        case "F16":
            return raw.view("<f2").astype(np.float32)
        case "Q8_0":
            blocks = raw.reshape(-1, 2 + _BLOCK)
            scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
            return (scale * blocks[:, 2:].view(np.int8)).reshape(-1)
        case "Q4_1":
            blocks = raw.reshape(-1, 4 + _BLOCK // 2)
            scale, least = np.split(blocks[:, :4].copy().view("<f2").astype(np.float32), 2, axis=1)
            nibbles = np.concatenate((blocks[:, 4:] & 0xF, blocks[:, 4:] >> 4), axis=1)
            return (scale * nibbles + least).reshape(-1)
        case _:
            from gguf.constants import GGMLQuantizationType
            from gguf.quants import dequantize as others

            with np.errstate(all="ignore"):  # blocks of nonsense give nonsense, as above
                flat: Floats = others(raw, GGMLQuantizationType[kind]).reshape(-1)
            return flat


def unpermute(weight: Floats, num_heads: int) -> Floats:
    """Undo llama.cpp's order of q and k rows, of matrices and biases.

    It interleaves the two halves of each head, because its rotary embedding turns neighbours, where
    Hugging Face's turns i and i + D/2.
    """
    pairs = weight.reshape(num_heads, weight.shape[0] // num_heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)
