"""HyperLex: how well a model's scores follow what people say of "is X a type of Y?"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from palmette.data.jsonl import read_lines
from palmette.errors import InputError

__all__ = ["Rating", "hyperlex", "read_hyperlex", "spearman"]

COLUMNS = ("WORD1", "WORD2", "POS", "AVG_SCORE_0_10")


class Rating(NamedTuple):
    """How much ``word`` is a type of ``kind``, 0 … 10 on average; ``pos`` is N or V."""

    word: str
    kind: str
    pos: str
    score: float


def read_hyperlex(path: str | Path) -> list[Rating]:
    """Read the public file (``hyperlex-all.txt`` or one of its splits): columns between blanks, with a heading."""
    lines = [(place, line.split()) for place, line in read_lines(Path(path).expanduser())]
    heading = lines[0][1] if lines else []
    if missing := [name for name in COLUMNS if name not in heading]:
        raise InputError(f"{path} is no HyperLex file: its heading lacks {missing[0]!r} (it has {heading})")
    at = [heading.index(name) for name in COLUMNS]
    ratings = []
    for place, cells in lines[1:]:
        try:
            word, kind, pos, score = (cells[column] for column in at)
            ratings.append(Rating(word, kind, pos, float(score)))
        except (IndexError, ValueError) as error:
            raise InputError(
                f"{place}: expected {len(heading)} columns and a number, got {cells!r:.80}"
            ) from error
    return ratings


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Rank correlation; ties share the mean of their ranks."""
    x, y = _ranks(np.asarray(a, np.float64)), _ranks(np.asarray(b, np.float64))
    if len(x) < 2 or x.std() == 0 or y.std() == 0:
        raise InputError("a rank correlation needs at least two values that differ on either side")
    return float(np.corrcoef(x, y)[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: NDArray[np.float64] = (ends - (counts - 1) / 2)[inverse]
    return means


def hyperlex(
    ratings: Sequence[Rating],
    senses: Callable[[str], Sequence[str]],
    score: Callable[[str, str], float],
    pos: str = "N",
) -> tuple[float, int]:
    """Correlation of scores with ratings, and how many pairs have both words.

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
    return spearman(given, scored), len(given)
