"""Fitting made-up text to a length in tokens without a tokenizer: from a few counts of the server's own.

The unknowns are the tokens around the text (chat template, BOS) and what each word costs. Every probe is the
base word followed by some words; the difference to the base word alone is the cost of those words, whatever
surrounds them. The commonest case needs four probes: the base, all words at once (each one token: done), and
two stretches of prose as a check. Where words cost more, smaller and commoner vocabularies are tried; then a
cost per character; then fifteen words are measured one by one, five a probe, by repeating them 1, 4, 16, 64
and 256 times.

The solver is pure: a generator that yields texts and is sent their counts. `fit_text` drives it with any way
of counting: `/tokenize`, `usage.prompt_tokens` of a one-token request, or a local tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from llmbench.errors import UsageError
from llmbench.workload.seeds import stream
from llmbench.workload.vocabulary import CORE, FEW, VOCABULARY, Vocabulary

FitSource = Literal["tokenize", "usage", "tokenizer", "estimate"]
FitMethod = Literal["one cost", "per character", "per word", "average", "stated"]

CountTokens: TypeAlias = Callable[[str], Awaitable[int | None]]
CountWithSystem: TypeAlias = Callable[[str, str], Awaitable[int | None]]
Probing: TypeAlias = Generator[str, int | None, "TextFit"]
Sample: TypeAlias = tuple[int, int, int]  # words, characters, tokens

BASE = "the"
# What is assumed where nothing can count: common words are one token each in today's tokenizers, and a chat
# template adds about eight tokens (BOS, role markers, the answer's header).
STATED_TOKENS_PER_WORD = 1.0
STATED_CHAT_OVERHEAD = 8.0
STATED_MESSAGE_OVERHEAD = 4.0
STATED_CHARACTERS_PER_TOKEN = 4.0

_REPEATS = (1, 4, 16, 64, 256)
_WIDE_REPEATS = (1, 8, 64)
# Above this mean, some words cost more than the four tokens that powers of four can tell apart.
_COSTLY_TOKENS_PER_WORD = 2.5
_CHECK_WORDS = (40, 200)
_TOLERANCE = 0.02
_TOLERANCE_TOKENS = 2.0
_LEAST_TOKENS_PER_WORD = 0.05


class _CannotCount(Exception):
    """A probe had no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """How lengths were fitted, for the run's record.

    `overhead_tokens`: around the text. `tokens_per_word`: mean over the words in use. `expected_error`: the
    largest share by which a checked text was off its predicted length; None when nothing was checked.
    """

    source: FitSource
    method: FitMethod
    overhead_tokens: float
    tokens_per_word: float
    num_words: int
    num_probes: int
    expected_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFit:
    """What words cost in tokens, and what a request costs beside them.

    A word with the blank before it costs `per_word + per_character · (length + 1)`, or what `word_tokens`
    says of it. `system_tokens` holds measured system messages: the tokens a request grows by when it carries
    one.
    """

    source: FitSource
    method: FitMethod
    vocabulary: Vocabulary
    overhead_tokens: float
    per_word: float = 0.0
    per_character: float = 0.0
    word_tokens: Mapping[str, float] = field(default_factory=dict)
    lead: str = ""
    system_tokens: Mapping[str, float] = field(default_factory=dict)
    num_probes: int = 0
    expected_error: float | None = None

    def tokens_of(self, words: Iterable[str]) -> float:
        """The tokens that `words` add to a text, each with a blank before it."""
        return sum(self._tokens_of_word(word) for word in words)

    def _tokens_of_word(self, word: str) -> float:
        known = self.word_tokens.get(word)
        return known if known is not None else self.per_word + self.per_character * (len(word) + 1)

    def tokens_of_system(self, system: str | None) -> float:
        """The tokens that a system message adds to a request; stated, not measured, for an unknown one."""
        if not system:
            return 0.0
        stated = len(system) / STATED_CHARACTERS_PER_TOKEN + STATED_MESSAGE_OVERHEAD
        return self.system_tokens.get(system, stated)

    @property
    def report(self) -> FitReport:
        """The fit in a few figures."""
        words = self.vocabulary.words
        return FitReport(
            source=self.source,
            method=self.method,
            overhead_tokens=self.overhead_tokens,
            tokens_per_word=self.tokens_of(words) / len(words),
            num_words=len(words),
            num_probes=self.num_probes,
            expected_error=self.expected_error,
        )


def stated_fit(*, is_chat: bool = True) -> TextFit:
    """The fit where nothing can count: one token a word, eight around a chat message."""
    return TextFit(
        source="estimate",
        method="stated",
        vocabulary=VOCABULARY,
        overhead_tokens=STATED_CHAT_OVERHEAD if is_chat else 0.0,
        per_word=STATED_TOKENS_PER_WORD,
    )


async def fit_text(
    count: CountTokens,
    *,
    source: FitSource,
    is_chat: bool = True,
    systems: Sequence[str] = (),
    count_with_system: CountWithSystem | None = None,
) -> TextFit:
    """Learn what text costs from at most eight counts, and one more for each of `systems`.

    `count(text)` is the number of prompt tokens of a request whose only message (or prompt) is `text`,
    template included, or None when it cannot be told; `count_with_system(system, text)` likewise with a
    system message, without which a system message is counted as text plus four tokens. Where counting fails
    or makes no sense, the fit is stated, and its source says `estimate`.
    """
    fit, num_probes = await _answered(solve(source), count)
    if fit.source == "estimate":
        return replace(stated_fit(is_chat=is_chat), num_probes=num_probes)
    measured: dict[str, float] = {}
    for system in dict.fromkeys(systems):
        num_probes += 1
        # Behind a word, as a salted system message stands behind its tag; not counting that word.
        if count_with_system is not None:
            counted = await count_with_system(f"{BASE} {system}", BASE)
            known = fit.overhead_tokens + fit.tokens_of([BASE, BASE])
        else:
            counted = await count(f"{BASE} {system}")
            known = (
                fit.overhead_tokens + fit.tokens_of([BASE]) - (STATED_MESSAGE_OVERHEAD if is_chat else 0.0)
            )
        if counted is not None:
            measured[system] = max(counted - known, 0.0)
    return replace(fit, num_probes=num_probes, system_tokens=measured)


async def _answered(probing: Probing, count: CountTokens) -> tuple[TextFit, int]:
    text, num_probes = next(probing), 0
    while True:
        answer = await count(text)
        num_probes += 1
        try:
            text = probing.send(answer)
        except StopIteration as end:
            return end.value, num_probes


def solve(source: FitSource) -> Probing:
    """The solver: yields texts, is sent their token counts (None: no answer), returns the fit."""
    base = yield BASE
    if base is None:
        return stated_fit()
    samples: list[Sample] = []
    try:
        fit = yield from _word_costs(source, base, samples)
        return (yield from _checked(fit, base, samples))
    except _CannotCount:
        return _average(source, base, samples, VOCABULARY)


def _word_costs(source: FitSource, base: int, samples: list[Sample]) -> Generator[str, int | None, TextFit]:
    """Try ever smaller vocabularies for one cost a word, then a cost per character, then words one by one."""
    larger = VOCABULARY
    for share in (1.0, 0.5, 0.25):
        vocabulary = VOCABULARY.first_share(share)
        words = vocabulary.words
        tokens = yield from _cost(words, base, samples)
        if tokens == len(words):
            return _one_cost(source, base, vocabulary, 1.0)
        if share < 1 and _is_one_cost(samples):
            return _one_cost(source, base, larger, tokens / len(words))
        if source == "tokenizer":  # counting is free here: learn every word
            return (yield from _every_word(source, base))
        larger = vocabulary
    if any(tokens < _LEAST_TOKENS_PER_WORD * words for words, _, tokens in samples):
        return stated_fit()
    per_character = samples[0][2] / samples[0][1]
    if all(abs(tokens - per_character * characters) <= 1.0 for _, characters, tokens in samples):
        return TextFit(
            source=source,
            method="per character",
            vocabulary=VOCABULARY,
            overhead_tokens=base - per_character * (len(BASE) + 1),
            per_character=per_character,
        )
    is_costly = samples[-1][2] > _COSTLY_TOKENS_PER_WORD * samples[-1][0]
    return (yield from _some_words(source, base, *((FEW, _WIDE_REPEATS) if is_costly else (CORE, _REPEATS))))


def _cost(words: Sequence[str], base: int, samples: list[Sample]) -> Generator[str, int | None, int]:
    text = " ".join((BASE, *words))
    count = yield text
    if count is None:
        raise _CannotCount
    samples.append((len(words), len(text) - len(BASE), count - base))
    return count - base


def _is_one_cost(samples: Sequence[Sample]) -> bool:
    """Whether the last two vocabularies agree on one whole number of tokens a word."""
    (words, _, tokens), (fewer_words, _, fewer_tokens) = samples[-2:]
    return tokens >= words and tokens % words == 0 and fewer_tokens * words == tokens * fewer_words


def _one_cost(source: FitSource, base: int, vocabulary: Vocabulary, per_word: float) -> TextFit:
    return TextFit(
        source=source,
        method="one cost",
        vocabulary=vocabulary,
        overhead_tokens=base - per_word,
        per_word=per_word,
    )


def _every_word(source: FitSource, base: int) -> Generator[str, int | None, TextFit]:
    costs: dict[str, float] = {}
    for word in VOCABULARY.words:
        costs[word] = float((yield from _cost((word,), base, [])))
    return _per_word(source, base, VOCABULARY, costs)


def _some_words(
    source: FitSource, base: int, vocabulary: Vocabulary, repeats: tuple[int, ...]
) -> Generator[str, int | None, TextFit]:
    """Measure a few words, several in a probe: repeated 1, r, r², … times, a total has one solution in costs
    of 1 to r tokens.
    """
    costs: dict[str, float] = {}
    words = vocabulary.words
    for first in range(0, len(words), len(repeats)):
        group = list(zip(words[first : first + len(repeats)], repeats, strict=False))
        tokens = yield from _cost([word for word, repeat in group for _ in range(repeat)], base, [])
        above_one = tokens - sum(repeat for _, repeat in group)
        for word, repeat in reversed(group):
            more, above_one = divmod(above_one, repeat)
            costs[word] = 1.0 + more
    return _per_word(source, base, vocabulary, costs)


def _per_word(source: FitSource, base: int, vocabulary: Vocabulary, costs: Mapping[str, float]) -> TextFit:
    return TextFit(
        source=source,
        method="per word",
        vocabulary=vocabulary,
        overhead_tokens=base - costs[BASE],
        word_tokens=costs,
        lead=BASE,  # at the beginning its cost was measured, in every probe
    )


def _checked(fit: TextFit, base: int, samples: list[Sample]) -> Generator[str, int | None, TextFit]:
    """Compare prose with its prediction: a constant difference belongs to the overhead, the rest is the
    error.
    """
    lengths = _CHECK_WORDS[1:] if fit.method == "per word" else _CHECK_WORDS  # stays within eight probes
    differences: list[tuple[float, float]] = []
    nouns = fit.vocabulary.nouns
    for num_words in lengths:
        # Prompts begin with a noun, and without the blank before it a word may cost more: so does the check.
        words = fit.vocabulary.prose(num_words, stream(0, "fit_check", num_words))
        words[0] = fit.lead or nouns[num_words % len(nouns)]
        count = yield " ".join(words)
        if count is None:
            raise _CannotCount
        predicted = fit.overhead_tokens + fit.tokens_of(words)
        differences.append((count - predicted, count))
        samples.append((num_words, sum(map(len, words)) + num_words, round(count - fit.overhead_tokens)))
    shift = sum(difference for difference, _ in differences) / len(differences)
    errors = [abs(difference - shift) for difference, _ in differences]
    is_off = any(
        error > max(_TOLERANCE * count, _TOLERANCE_TOKENS)
        for error, (_, count) in zip(errors, differences, strict=True)
    )
    if is_off or abs(shift) > _TOLERANCE_TOKENS:
        return _average(fit.source, base, samples, fit.vocabulary)
    longest = differences[-1][1]
    return replace(
        fit, overhead_tokens=fit.overhead_tokens + shift, expected_error=errors[-1] / max(longest, 1)
    )


def _average(source: FitSource, base: int, samples: Sequence[Sample], vocabulary: Vocabulary) -> TextFit:
    """One mean cost a word, from the last text counted; stated where even that makes no sense."""
    if not samples or samples[-1][2] < _LEAST_TOKENS_PER_WORD * samples[-1][0]:
        return stated_fit()
    words, _, tokens = samples[-1]
    per_word = tokens / words
    errors = [abs(per_word * words - tokens) / max(tokens, 1) for words, _, tokens in samples[:-1]]
    return TextFit(
        source=source,
        method="average",
        vocabulary=vocabulary,
        overhead_tokens=base - per_word,
        per_word=per_word,
        expected_error=max(errors) if errors else None,
    )


def tokenizer_count(path: Path, *, is_chat: bool = True) -> CountTokens:
    """Counts by a local tokenizer.json; a chat's template is not in that file, so eight tokens stand for it.

    Raises UsageError when the `tokenizers` library is missing or the file is not a tokenizer.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UsageError(
            "target.tokenizer: needs the tokenizers library; pip install tokenizers, or leave the key out: "
            "lengths are fitted through the server"
        ) from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises plain Exception for any broken file
        raise UsageError(f"target.tokenizer: {path} cannot be read as a tokenizer.json: {error}") from None
    overhead = round(STATED_CHAT_OVERHEAD) if is_chat else 0

    async def count(text: str) -> int:
        return len(tokenizer.encode(text).ids) + overhead

    return count
