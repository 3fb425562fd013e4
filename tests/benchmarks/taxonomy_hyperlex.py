"""HyperLex: how well a model's scores follow people's ratings of "is X a type of Y?".

The public file (``hyperlex-all.txt`` or one of its splits) is not part of this repository.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from scipy.stats import spearmanr

COLUMNS = ("WORD1", "WORD2", "POS", "AVG_SCORE_0_10")


class Rating(NamedTuple):
    """How much ``word`` is a type of ``kind``, 0 … 10 on average; ``pos`` is N or V."""

    word: str
    kind: str
    pos: str
    score: float


def read_hyperlex(path: str | Path) -> list[Rating]:
    """Read the columns of the public file by its heading."""
    heading, *lines = (
        line.split() for line in Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    )
    at = [heading.index(name) for name in COLUMNS]
    rows = ([cells[column] for column in at] for cells in lines if cells)
    return [Rating(word, kind, pos, float(score)) for word, kind, pos, score in rows]


def hyperlex(
    ratings: Sequence[Rating],
    senses: Callable[[str], Sequence[str]],
    score: Callable[[str, str], float],
    pos: str = "N",
) -> tuple[float, int]:
    """Rank correlation of scores with ratings, and the number of pairs whose words are both known.

    Args:
        ratings: See :func:`read_hyperlex`.
        senses: A word's nodes; none for an unknown word.
        score: How much the second node lies above the first; of several senses the best pair counts.
        pos: Part of speech to keep.
    """
    given, scored = [], []
    for rating in ratings:
        pairs = [(w, k) for w in senses(rating.word) for k in senses(rating.kind)]
        if rating.pos == pos and pairs:
            given.append(rating.score)
            scored.append(max(score(w, k) for w, k in pairs))
    return float(spearmanr(given, scored).statistic), len(given)
