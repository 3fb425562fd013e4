"""The best sentences of several passages with their neighbours, up to a budget: what a language model is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

COSINE_WEIGHT = 4.0
"""What a sentence's cosine with the question weighs beside its passage's log-odds."""
SENTENCES_BEFORE = 1
"""Sentences before a chosen one that come along where they fit."""
SENTENCES_AFTER = 2
"""Sentences after it: an answer follows what announces it."""
MISSES = 8
"""Sentences that may be too long for what is left of the budget before the search for shorter ones ends."""


class Candidate(NamedTuple):
    """A passage that a search gave, with its sentences."""

    document: str
    """Id of the document that the passage is from."""
    log_odds: float
    """The passage's score, as log-odds."""
    sentences: Sequence[tuple[int, int]]
    """Characters of the document, in order."""
    cosines: Sequence[float]
    """Of each sentence with the question."""


@dataclass(frozen=True)
class DocumentSpan:
    """Characters ``start`` to ``end`` of a document."""

    document: str
    start: int
    end: int


def choose_excerpts(
    candidates: Sequence[Candidate], budget: int, count: Callable[[str, int, int], int]
) -> list[DocumentSpan]:
    """Choose the sentences of passages that answer best within a budget, joined where they follow each other.

    A sentence is worth its passage's log-odds, less four times what its cosine lacks of that of the passage's best
    sentence. It comes with one sentence before it and two after it. Whole passages spend the budget on what the
    question did not ask, and single sentences miss what stands beside them (benchmarks/results/passages.md).

    Args:
        candidates: Passages, best first.
        budget: Tokens, or words, of all excerpts together.
        count: Tokens or words of a document's characters: ``count(document, start, end)``.

    Returns:
        Excerpts of the document of the best sentence first, each document's in the order of its text.
    """
    taken: dict[str, dict[int, int]] = {}  # start → end of a sentence, by document, the document of the best one first
    left, missed = budget, 0
    for passage, at in _by_worth(candidates):
        one = candidates[passage]
        held = taken.setdefault(one.document, {})
        for neighbour in _with_neighbours(at, len(one.sentences)):
            start, end = one.sentences[neighbour]
            if start in held:
                continue
            cost = count(one.document, start, end)
            if cost > left:
                missed += 1
                if neighbour == at:  # what stands beside it says little without it
                    break
            else:
                held[start] = end
                left -= cost
        if missed > MISSES:
            break
    return [DocumentSpan(name, start, end) for name, held in taken.items() for start, end in _joined(name, held, count)]


def _by_worth(candidates: Sequence[Candidate]) -> list[tuple[int, int]]:
    """Return (passage, sentence) pairs, best first."""
    worth: list[tuple[float, int, int]] = []
    for number, one in enumerate(candidates):
        best = max(one.cosines, default=0.0)
        worth += [
            (-one.log_odds - COSINE_WEIGHT * (cosine - best), number, at) for at, cosine in enumerate(one.cosines)
        ]
    return [(number, at) for _, number, at in sorted(worth)]


def _with_neighbours(at: int, length: int) -> Iterator[int]:
    """Yield the numbers of a sentence, of those after it and of those before it, the nearest first."""
    for distance in range(max(SENTENCES_BEFORE, SENTENCES_AFTER) + 1):
        if distance <= SENTENCES_AFTER and at + distance < length:
            yield at + distance
        if 0 < distance <= SENTENCES_BEFORE and at - distance >= 0:
            yield at - distance


def _joined(
    document: str, chosen_sentences: dict[int, int], count: Callable[[str, int, int], int]
) -> Iterator[tuple[int, int]]:
    """Yield the runs of chosen sentences with nothing but blanks between them."""
    start = end = -1
    for first, last in sorted(chosen_sentences.items()):
        if start >= 0 and first > end and count(document, end, first):
            yield start, end
            start = -1
        start, end = (first if start < 0 else start), max(end, last)
    if start >= 0:
        yield start, end
