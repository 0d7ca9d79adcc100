"""Made-up text of a wanted number of tokens, cut out of one long seeded story; and tags that make it unique.

The story is written once a run. A request's text is a stretch of it from a seeded place on: a slice of one
string, so that long prompts cost next to nothing to make. What makes a prompt unlike every other is its tag,
the first few words: they spell a number in words of the vocabulary, least digit first, so that already the
first word differs from the neighbours'.
"""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np

from llmbench.workload.fit import TextFit
from llmbench.workload.seeds import stream
from llmbench.workload.vocabulary import CLAUSE_WORDS

STORY_WORDS = 32_768
_UNIQUE_BITS = 22  # tags of this many bits: four million requests without a repetition


class Story:
    """An endless text (a story told again and again) with the token cost of every stretch of it."""

    def __init__(self, fit: TextFit, *, seed: int, purpose: str) -> None:
        words = fit.vocabulary.prose(STORY_WORDS, stream(seed, purpose))
        costs = {word: fit.tokens_of([word]) for word in fit.vocabulary.words}
        self._text = " ".join(words) + " "
        lengths = np.array([len(word) + 1 for word in words])
        self._character = np.concatenate(([0], np.cumsum(lengths)))
        self._tokens = np.concatenate(([0.0], np.cumsum([costs[word] for word in words])))
        self._fillers = sorted({cost: word for word, cost in costs.items()}.items())
        self._filler_tokens = [cost for cost, _ in self._fillers]

    @property
    def num_starts(self) -> int:
        """Places at which a clause begins."""
        return STORY_WORDS // CLAUSE_WORDS

    def stretch(self, start: int, tokens: float) -> tuple[str, float]:
        """Text from clause `start` on of at most `tokens`, and its cost in tokens.

        A last word fills up what is left, as nearly as a word can.
        """
        first = start * CLAUSE_WORDS
        total = float(self._tokens[-1])
        rounds, target = divmod(float(self._tokens[first]) + max(tokens, 0.0), total)
        # The small allowance keeps sums of fractions from losing a word to rounding.
        last = int(np.searchsorted(self._tokens, target + 1e-6, side="right")) - 1
        cost = rounds * total + float(self._tokens[last] - self._tokens[first])
        filler, filler_tokens = self._filler(tokens - cost)
        if rounds == 0:
            return self._text[self._character[first] : self._character[last]] + filler, cost + filler_tokens
        pieces = (self._text[self._character[first] :], self._text * (int(rounds) - 1))
        return "".join(pieces) + self._text[: self._character[last]] + filler, cost + filler_tokens

    def _filler(self, tokens: float) -> tuple[str, float]:
        """The word whose cost is nearest to `tokens`, or nothing where that is nearer."""
        right = min(bisect_left(self._filler_tokens, tokens), len(self._fillers) - 1)
        nearest = min(self._fillers[max(right - 1, 0) : right + 1], key=lambda item: abs(item[0] - tokens))
        return (nearest[1], nearest[0]) if abs(nearest[0] - tokens) < abs(tokens) else ("", 0.0)


class Tags:
    """A few words for every number: unlike for unlike numbers, and other ones under another salt."""

    def __init__(self, fit: TextFit, *, salt: str, seed: int, purpose: str) -> None:
        nouns = fit.vocabulary.nouns
        words = np.array(nouns if len(nouns) >= 32 else fit.vocabulary.words)
        self._num_digits = max(4, math.ceil(_UNIQUE_BITS / math.log2(len(words))))
        rng = stream(seed, f"{purpose}/{salt}")
        self._digits: list[list[str]] = [
            rng.permutation(words).tolist() for _ in range(self._num_digits)
        ]  # digit, value
        self._costs = {word: fit.tokens_of([word]) for word in words.tolist()}

    def tag(self, number: int, at_most: float = math.inf) -> tuple[str, float]:
        """The tag of `number` (from 0) and its cost; at least one word, and no more than `at_most` tokens
        allow.
        """
        words: list[str] = []
        tokens = 0.0
        for digit in self._digits:
            number, value = divmod(number, len(digit))
            word = digit[value]
            if words and tokens + self._costs[word] > at_most:
                break
            words.append(word)
            tokens += self._costs[word]
        return " ".join(words), tokens
