"""What each leaf is about, in the words of the documents and of the queries that go there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from palmette.lexical.terms import log_odds, merged, occurrences, strongest
from palmette.methods.paths.explanation import name_of

if TYPE_CHECKING:
    from palmette.data import RetrievalData

__all__ = ["keywords_of", "leaf_terms"]

SAMPLE = 50_000
"""Texts of a training whose words are read."""

Ints = NDArray[np.int64]
Listed = dict[str, list[tuple[str, float]]]


def leaf_terms(texts: Sequence[str], leaves: Ints, name: Callable[[int], str], *, terms: int = 8) -> Listed:
    """The terms of every leaf that has any: ``leaves`` [n] is that of each text."""
    spelled, text, term = occurrences(texts)
    totals, texts_in = np.bincount(term, minlength=len(spelled)), np.bincount(leaves)
    leaf, term, count = merged(leaves[text], term, np.ones(len(term), np.int64), len(spelled))
    weight = log_odds(count, texts_in[leaf], totals[term], len(texts))
    return {name(at): chosen for at, chosen in strongest(leaf, term, weight, spelled, terms)}


def keywords_of(
    data: RetrievalData,
    leaves: Ints,
    asked: Ints,
    asked_leaves: Ints,
    path_of: Callable[[int], Sequence[int]],
) -> tuple[Listed, Listed]:
    """Of the documents and of some queries, by leaf (an even sample of very many).

    Args:
        data: Where they come from.
        leaves: [N] leaf of each document.
        asked: [Q] rows of the queries.
        asked_leaves: [Q] leaf of each.
        path_of: Leaf number → its path.
    """

    def listed(texts: Callable[[int], str], rows: Ints, fallen: Ints) -> Listed:
        some = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), SAMPLE)).astype(np.int64))
        read = [texts(row) for row in rows[some].tolist()]
        return leaf_terms(read, fallen[some], lambda leaf: name_of(path_of(leaf)))

    documents = listed(lambda row: data.corpus[row].content, np.arange(len(leaves)), leaves)
    return documents, listed(lambda row: data.query_texts[row], asked, asked_leaves)
