"""The baseline beside a model: BM25."""

from __future__ import annotations

import numpy as np
import pytest

from palmette.evaluation import BM25
from palmette.types import Document

pytest.importorskip("bm25s")
TEXTS = {"cat": "the cats were sleeping on a mat", "dog": "a dog barks", "tax": "taxes are paid in spring"}
DOCUMENTS = [Document(key, text) for key, text in TEXTS.items()]


def test_bm25_finds_by_stem():
    found = BM25(DOCUMENTS).search(["sleeping cat", "pay tax", "barking"], k=2)
    assert [ids[0] for ids in found] == ["cat", "tax", "dog"]
    assert [len(ids) for ids in found] == [2, 2, 2]


def test_bm25_scores_are_those_of_the_formula():
    documents = [Document(str(n), text) for n, text in enumerate(["red red blue", "blue", "green grey blue blue"])]
    scores = next(BM25(documents).scores(["red"]))
    idf = np.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    assert scores[0] == pytest.approx(idf * 2 / (2 + 1.2 * (1 - 0.75 + 0.75 * 3 / (8 / 3))), rel=1e-5)


def test_unknown_words_find_nothing_in_particular():
    baseline, queries = BM25(DOCUMENTS), ["zzz", "..."]
    assert [scores.tolist() for scores in baseline.scores(queries)] == [[0, 0, 0]] * 2
    assert baseline.search(queries, k=9) == [["cat", "dog", "tax"]] * 2
