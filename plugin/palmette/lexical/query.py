"""The words and pairs of a query, and the phrases that documents must contain."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from palmette.lexical.analyser import Analyser, Word, WordKind, pair_terms

LONGEST = 1 << 14
"""Characters of a query whose words are searched."""
MOST_WORDS = 1 << 10
"""Words of a query that are searched, and twice as many parts of compounds and of scripts without spaces."""
_PHRASE = re.compile(  # a phrase in double quotes, of any shape
    r"""(?<!\S)["“„«]([^"“”„«»\n]+)["“”»](?!\w)"""
)


class QueryTerms(NamedTuple):
    """The distinct words of a query in order, then its pairs of neighbouring words."""

    words: list[str]
    terms: list[int]
    singles: int
    """Number of words among the terms."""
    skipped: list[int]
    """Terms of function words, which are not searched, but count in the query's reach."""
    required: frozenset[int]
    """Terms of the phrases in quotes; a match contains all of them."""


def searched_part(text: str) -> str:
    """Return the beginning of a query whose words are searched: the time of a search grows with their number."""
    text = text[:LONGEST]
    parts = text.split(None, MOST_WORDS)
    return text if len(parts) <= MOST_WORDS else text[: -len(parts[-1])]


@lru_cache(16)
def query_terms(analyser: Analyser, text: str) -> QueryTerms:
    """Split a query into words and pairs; function words count only where it has no others.

    Of a long query the first words count (:func:`searched_part`), as an encoder reads the beginning of a long text.

    A phrase in double quotes must match: the document contains each of its words, and each pair of its neighbours as
    neighbours, in this order. Function words may stand between them or lack; a phrase of nothing else needs each of
    them anywhere. A sentence that quotes something, with a question mark or
    function words outside the quotes, requires nothing: such phrases are names more often than conditions.
    """
    text = searched_part(text)
    words = analyser.words(text)[: 2 * MOST_WORDS]
    chosen = [word for word in words if word.kind != WordKind.FUNCTION] or words
    singles = {word.text: word.term for word in chosen}
    skipped = {word.term for word in words} - {word.term for word in chosen}
    required: set[int] = set()
    outside = _PHRASE.sub(" ", text)
    sentence = "?" in outside or any(word.kind == WordKind.FUNCTION for word in analyser.words(outside))
    for phrase in () if sentence else _PHRASE.findall(text):
        phrase_words = analyser.words(phrase)
        needed = [word for word in phrase_words if word.kind in (WordKind.WORD, WordKind.PIECE)] or phrase_words
        required.update([word.term for word in needed], _pairs(phrase_words).values())
    known = singles | _pairs(words)
    return QueryTerms(list(known), list(known.values()), len(singles), sorted(skipped), frozenset(required))


def _pairs(words: Sequence[Word]) -> dict[str, int]:
    linked = [word for word in words if word.kind == WordKind.WORD]
    terms = np.array([word.term for word in linked], np.uint64)
    named = (f"{first.text} {second.text}" for first, second in pairwise(linked))
    return dict(zip(named, pair_terms(terms[:-1], terms[1:]).tolist(), strict=True))
