"""Short common English words, by part of speech: what made-up prompts are written with.

The text reads like a child's story without punctuation: clauses of eight words (`the old king went over the
small hill and`), so that a model finds something to answer. The words are common enough that most tokenizers
hold each of them, with the blank before it, as one token; in every list the commonest stand first, so that
the first half of a vocabulary is the safer half.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

_DETERMINERS = "the this his that her our my one each your another every"
_ADJECTIVES = """
old good new long little small great young white black red fair dear kind wise true noble honest holy best
safe whole same high full late open dark hot cold deep free rich poor strong quick soft hard quiet happy
clean sweet heavy wild gentle brave round plain proud golden big early green blue real slow warm cool wide
dry bright gray busy tall clear simple distant empty narrow ancient
"""
_NOUNS = """
man day house time water world boy woman year night way hand life city door book king tree head light river
prince queen crown sword earth law heart name son court army lord place ground people land judge servant
husband wife priest angel beast wine cross camp word friend power cause office wood south north country sun
moon father mother child morning dog horse ship town field fire wind stone sea hill wall captain soldier
brother sister bear lion bread letter bed hat ring car church cloud rain seed shadow voice dream secret lamb
family room road table street star window summer winter spring island forest village market doctor teacher
bird fish cat apple salt sugar paper song story corner box clock lamp chair coat shoe key knife cup plate
glass boat train wheel tower castle palace farm mountain lake beach desert snow evening flower grass leaf
root girl school garden bridge wolf milk picture bottle engine machine valley storm branch kitchen
"""
_VERBS = """
was went came ran sat stood lay rose fled spoke died called cried answered gathered departed hid turned fell
returned sang swam flew looked walked moved lived worked played waited stayed passed slept talked rested
rode stopped started danced traveled jumped climbed
"""
_PREPOSITIONS = "in to on by with from over near under after before behind into around beside across"
_CONJUNCTIONS = "and but so then while because"


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text.split()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Words by part of speech, the commonest first; none of the lists is empty."""

    determiners: tuple[str, ...]
    adjectives: tuple[str, ...]
    nouns: tuple[str, ...]
    verbs: tuple[str, ...]
    prepositions: tuple[str, ...]
    conjunctions: tuple[str, ...]

    @property
    def parts(self) -> tuple[tuple[str, ...], ...]:
        """The lists in the order of the fields."""
        return (
            self.determiners,
            self.adjectives,
            self.nouns,
            self.verbs,
            self.prepositions,
            self.conjunctions,
        )

    @property
    def words(self) -> tuple[str, ...]:
        """Every word once."""
        return tuple(dict.fromkeys(word for part in self.parts for word in part))

    def first_share(self, share: float) -> Vocabulary:
        """The commonest `share` (0 to 1) of every list, at least one word of each."""
        return self.of_sizes(max(1, round(len(part) * share)) for part in self.parts)

    def of_sizes(self, sizes: Iterable[int]) -> Vocabulary:
        """The first words of every list, as many as `sizes` say in the order of the fields."""
        cut = [part[:size] for part, size in zip(self.parts, sizes, strict=True)]
        return Vocabulary(
            determiners=cut[0],
            adjectives=cut[1],
            nouns=cut[2],
            verbs=cut[3],
            prepositions=cut[4],
            conjunctions=cut[5],
        )

    def prose(self, num_words: int, rng: np.random.Generator) -> list[str]:
        """`num_words` words, clause after clause."""
        determiners, adjectives, nouns, verbs, prepositions, conjunctions = self.parts
        clause = (determiners, adjectives, nouns, verbs, prepositions, determiners, nouns, conjunctions)
        num_clauses = -(-num_words // len(clause))
        drawn = rng.random((num_clauses, len(clause)))
        columns = [
            np.array(part)[(drawn[:, slot] * len(part)).astype(np.int64)] for slot, part in enumerate(clause)
        ]
        text: list[str] = np.column_stack(columns).ravel()[:num_words].tolist()
        return text


CLAUSE_WORDS = 8

VOCABULARY = Vocabulary(
    determiners=_words(_DETERMINERS),
    adjectives=_words(_ADJECTIVES),
    nouns=_words(_NOUNS),
    verbs=_words(_VERBS),
    prepositions=_words(_PREPOSITIONS),
    conjunctions=_words(_CONJUNCTIONS),
)

# Fifteen, and nine, of the commonest: few enough to learn the token count of each.
CORE = VOCABULARY.of_sizes((2, 3, 4, 2, 2, 2))
FEW = VOCABULARY.of_sizes((1, 1, 2, 2, 2, 1))
