"""The tokenizer of a GGUF file, rebuilt from `tokenizer.ggml.*` for the `tokenizers` library.

Two kinds: gpt2 (byte-level BPE with merges; `pre` says how text is cut before merging) and llama
(SentencePiece's BPE: pieces with scores, bytes for what is in no piece).
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from reference_engine.errors import ModelError
from reference_engine.gguf import GgufFile

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4  # tokenizer.ggml.token_type
_ENDS = "post_processor"  # the library's name for what adds tokens around a text
_SPACE = "\u2581"  # SentencePiece's mark for a space
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_NEWER_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{DIGITS}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How text is cut, one expression after the other, as the models' own tokenizers and llama.cpp do it.
_CUTS: dict[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2_WORDS + r"|\s+",),
    "smollm": (r"\p{N}", _GPT2_WORDS + r"|\s+"),
    "llama-bpe": (_NEWER_WORDS.replace("DIGITS", "1,3"),),
    "qwen2": (_NEWER_WORDS.replace("{DIGITS}", ""),),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
_SAME_CUT = {"llama3": "llama-bpe", "llama-v3": "llama-bpe"}


def tokenizer_of(file: GgufFile) -> Tokenizer:
    """Raises ModelError naming the file and the key for any other kind, or for missing metadata."""
    kind = _get(file, "tokenizer.ggml.model")
    if kind not in {"gpt2", "llama"}:
        raise ModelError(f"{file.path}: tokenizer {kind}; supported: gpt2 (byte-level BPE) and llama (SPM)")
    tokens, kinds = _get(file, "tokenizer.ggml.tokens"), _get(file, "tokenizer.ggml.token_type")
    if len(tokens) != len(kinds):
        raise ModelError(f"{file.path}: tokenizer.ggml.token_type has {len(kinds)} of {len(tokens)} entries")
    for end in ("bos", "eos", "eot", "unknown"):
        token_id = file.metadata.get(f"tokenizer.ggml.{end}_token_id", 0)
        if token_id >= len(tokens):
            key = f"tokenizer.ggml.{end}_token_id"
            raise ModelError(f"{file.path}: metadata {key} is {token_id}, of {len(tokens)} tokens")
    try:
        tokenizer = _byte_level(file, tokens) if kind == "gpt2" else _sentence_pieces(file, tokens)
    except ModelError:
        raise
    except Exception as error:  # noqa: BLE001  # tokenizers raises no narrower one
        raise ModelError(f"{file.path}: tokenizer.ggml: {error}") from None
    named = list(zip(tokens, kinds, strict=True))
    control = [AddedToken(token, special=True, normalized=False) for token, kind in named if kind == _CONTROL]
    tokenizer.add_special_tokens(control)
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False) for token, kind in named if kind == _USER_DEFINED]
    )
    _add_ends(file, tokenizer, tokens, kind)
    return tokenizer


def tokenizer_settings(file: GgufFile) -> dict[str, Any]:
    """`tokenizer_config.json`: the chat template, and the tokens that it may name."""
    tokens = _get(file, "tokenizer.ggml.tokens")
    ids = {kind: file.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos")}
    named = {f"{kind}_token": tokens[token_id] for kind, token_id in ids.items() if token_id is not None}
    return {"chat_template": file.metadata.get("tokenizer.chat_template"), **named}


def _byte_level(file: GgufFile, tokens: list[str]) -> Tokenizer:
    pre = str(file.metadata.get("tokenizer.ggml.pre", "default"))
    pre = _SAME_CUT.get(pre, pre)
    if pre not in _CUTS:
        raise ModelError(f"{file.path}: pre-tokenizer {pre}; supported: {', '.join([*_CUTS, *_SAME_CUT])}")
    merges = [tuple(merge.split(" ")) for merge in _get(file, "tokenizer.ggml.merges")]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    # Llama 3 has words that its merges do not reach; they are looked up before anything is merged.
    model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre == "llama-bpe")
    tokenizer = Tokenizer(model)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    cuts: list[Any] = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in _CUTS[pre]]
    cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_pieces(file: GgufFile, tokens: list[str]) -> Tokenizer:
    """SentencePiece joins the two neighbours whose joint piece has the best score.

    A BPE does the same if the merges come in the order of the scores: every way to make a piece of two.
    """
    scores = _get(file, "tokenizer.ggml.scores")
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    ranked = [
        (-score, vocabulary[piece[:at]], vocabulary[piece[at:]], piece[:at], piece[at:])
        for piece, score in zip(tokens, scores, strict=True)
        for at in range(1, len(piece))
        if piece[:at] in vocabulary and piece[at:] in vocabulary
    ]
    merges = [(left, right) for *_, left, right in sorted(ranked)]
    unknown = tokens[file.metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    has_prefix = bool(file.metadata.get("tokenizer.ggml.add_space_prefix", True))
    steps: list[Any] = [normalizers.Prepend(_SPACE)] if has_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    back: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*back, *([decoders.Strip(" ", 1, 0)] if has_prefix else [])])
    return tokenizer


def _add_ends(file: GgufFile, tokenizer: Tokenizer, tokens: list[str], kind: str) -> None:
    """A beginning (and end) of text where the model was trained with one; defaults are llama.cpp's."""
    pre = file.metadata.get("tokenizer.ggml.pre")
    has_bos = kind == "llama" or _SAME_CUT.get(str(pre), pre) == "llama-bpe"
    wanted = {
        "bos": file.metadata.get("tokenizer.ggml.add_bos_token", has_bos),
        "eos": file.metadata.get("tokenizer.ggml.add_eos_token", False),
    }
    ids = {
        end: file.metadata.get(f"tokenizer.ggml.{end}_token_id")
        for end, is_wanted in wanted.items()
        if is_wanted
    }
    given = {end: token_id for end, token_id in ids.items() if token_id is not None}
    if not given:
        return
    before, after = (f"{end}:0 " if end in given else "" for end in ("bos", "eos"))
    text = f"{before}$A:0 {after}".strip()
    names = {end: tokens[token_id] for end, token_id in given.items()}
    for end, name in names.items():
        text = text.replace(f"{end}:0", f"{name}:0")
    special = [(names[end], token_id) for end, token_id in given.items()]
    pair = f"{text} {text.replace(':0', ':1').replace('$A', '$B')}"
    template = processors.TemplateProcessing(single=text, pair=pair, special_tokens=special)
    setattr(tokenizer, _ENDS, template)


def _get(file: GgufFile, key: str) -> Any:
    if key not in file.metadata:
        raise ModelError(f"{file.path}: metadata {key} is missing")
    return file.metadata[key]
