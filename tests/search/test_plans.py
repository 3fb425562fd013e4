"""Every kind of score is its definition, over stored and given arrays: vectors, and parts with factors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from palmette import Document
from palmette.arrays import quantise
from palmette.search.kernels import best_parts
from palmette.search.plan import ArraySpec, Lists, Score, SearchPlan
from palmette.store.local.backend import LocalBackend
from palmette.store.memory import ArrayView
from palmette.store.protocols import View

COUNT, WIDTH, PARTS, QUERIES = 300, 16, 3, 4
DRAW = np.random.default_rng(0)
VECTORS = DRAW.standard_normal((COUNT, PARTS, WIDTH)).astype(np.float32)
CODES, FACTORS = quantise(VECTORS)
ARRAYS: dict[str, np.ndarray] = {
    "vector": VECTORS[:, 0].copy(),
    "half": VECTORS[:, 0].astype(np.float16),
    "parts": CODES,
    "factors": FACTORS,
    "half_parts": VECTORS.astype(np.float16),
    "whole_parts": VECTORS,
    "lists": DRAW.permuted(np.tile(np.arange(8, dtype=np.int32), (COUNT, 1)), axis=1)[:, :1].copy(),
}
ASKED = DRAW.standard_normal((QUERIES, WIDTH)).astype(np.float32)
WEIGHTS = np.array([1, 0, 2], np.float32)
VISITED = np.array([[0, 1, -1], [2, 3, 4], [5, -1, -1], [6, 7, 0]])
SCORES: dict[str, Score] = {
    "all columns": Score("vector", ASKED),
    "half precision": Score("half", ASKED),
    "parts": Score("parts", ASKED, scales="factors", part_weights=WEIGHTS),
    "parts of half precision": Score("half_parts", ASKED, part_weights=WEIGHTS),
    "parts of whole precision": Score("whole_parts", ASKED, part_weights=WEIGHTS),
}
BY_PART = [name for name, score in SCORES.items() if score.part_weights is not None]


def values(score: Score) -> tuple[np.ndarray, np.ndarray | None]:
    """Scores of all documents [Q, N] from the definition, and which part of them is the best."""
    data = ARRAYS[score.array].astype(np.float64)
    if score.scales is not None:
        data = data * ARRAYS[score.scales][..., None]
    queries = score.queries.astype(np.float64)
    if score.part_weights is None:
        return queries @ data.T, None
    table = np.where(score.part_weights > 0, np.einsum("qd,nfd->qnf", queries, data) * score.part_weights, -np.inf)
    return table.max(axis=2), table.argmax(axis=2)


Kept = tuple[View, np.ndarray]
"""A view, and which documents it holds [N]."""


@pytest.fixture(scope="module", params=["stored", "given"])
def kept(request: pytest.FixtureRequest) -> Iterator[Kept]:
    """Three segments of which some rows are deleted, and the same arrays in memory."""
    documents, held = [Document(str(row), f"text {row}") for row in range(COUNT)], np.ones(COUNT, bool)
    if request.param == "given":
        yield ArrayView(ARRAYS, documents), held
        return
    specs = tuple(ArraySpec(name, array.shape[1:], array.dtype.name) for name, array in ARRAYS.items())
    with LocalBackend.in_memory(specs) as backend:
        for rows in (slice(0, 120), slice(120, 260), slice(260, COUNT)):
            with backend.write() as writer:
                writer.put(documents[rows], {name: array[rows] for name, array in ARRAYS.items()})
        with backend.write() as writer:
            writer.delete([document.id for document in documents[::7]])
        held[::7] = False
        with backend.read() as view:
            yield view, held


def check(kept: Kept, plan: SearchPlan, k: int, expected: np.ndarray, which: np.ndarray | None = None) -> None:
    """Compare ids, scores and parts with expected ones [Q, N]: −∞ for what may not be found."""
    view, held = kept
    found = view.candidates(plan, k)
    for row, scores in enumerate(np.where(held, expected, -np.inf)):
        own = found.keys[row] >= 0
        best = np.argsort(-scores, kind="stable")[: min(k, np.isfinite(scores).sum())]
        assert [int(id) for id in view.ids(found.keys[row][own].tolist())] == best.tolist()
        np.testing.assert_allclose(found.scores[row][own], scores[best], atol=1e-4)
        if which is not None:
            assert found.evidence["part"][row][own].tolist() == which[row][best].tolist()


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("k", [1, 12, 1000])
def test_a_score_is_its_definition(kept: Kept, name: str, k: int) -> None:
    check(kept, SearchPlan(SCORES[name]), k, *values(SCORES[name]))


@pytest.mark.parametrize("name", ["all columns", "half precision"])
def test_within_lists(kept: Kept, name: str) -> None:
    score = SCORES[name]
    held = np.stack([np.isin(ARRAYS["lists"], row[row >= 0]).any(axis=1) for row in VISITED])
    check(kept, SearchPlan(score, Lists("lists", VISITED)), 9, np.where(held, values(score)[0], -np.inf))


def test_some_documents_alone(kept: Kept) -> None:
    keys = kept[0].keys()[10:30]
    only = np.isin(np.arange(COUNT), [int(id) for id in kept[0].ids(keys.tolist())])
    for name in ("all columns", "half precision"):
        check(kept, SearchPlan(SCORES[name]).among(keys), 5, np.where(only, values(SCORES[name])[0], -np.inf))


@pytest.mark.parametrize("first", ["all columns", "half precision"])
@pytest.mark.parametrize("second", BY_PART)
@pytest.mark.parametrize("share", [0.0, 0.25])
def test_a_search_is_rescored_by_parts(kept: Kept, first: str, second: str, share: float) -> None:
    """A shortlist is ranked by the second score and a share of the first, also by storage that hands out rows alone."""
    plan = SearchPlan(SCORES[first], rescore=SCORES[second], fetch=40, share=share)
    (narrow, _), (whole, which) = values(SCORES[first]), values(SCORES[second])
    last = np.sort(np.where(kept[1], narrow, -np.inf), axis=1)[:, -40, None]
    check(kept, plan, 7, np.where(narrow >= last, share * narrow + (1 - share) * whole, -np.inf), which)
    view = kept[0]
    found, every = view.candidates(plan, 7), view.candidates(SearchPlan(SCORES[second]), COUNT)
    for row in range(0 if share else QUERIES):
        scores = dict(zip(every.keys[row].tolist(), every.scores[row].tolist(), strict=True))
        assert found.scores[row].tolist() == [scores[key] for key in found.keys[row].tolist()], "the very same scores"


def test_missing_candidates_stay_missing(kept: Kept) -> None:
    view, second = kept[0], replace(SCORES["parts"], queries=ASKED[:1])
    few = view.keys()[:3]
    plan = SearchPlan(replace(SCORES["all columns"], queries=ASKED[:1]), rescore=second, fetch=9, only=few)
    assert sorted(view.candidates(plan, 5).keys[0].tolist()) == few.tolist()


def test_a_part_that_a_document_lacks_outranks_no_other() -> None:
    vectors = np.zeros((3, 2, 4), np.float32)
    vectors[0, 0] = vectors[1, 1] = [-1, 0, 0, 0]
    vectors[2] = [[-1, 0, 0, 0], [-2, 0, 0, 0]]
    given: list[Any] = [(vectors, np.empty((3, 0), np.float32)), quantise(vectors)]
    for data, scales in given:
        scores, which = np.empty(4, np.float32), np.empty(4, np.int64)
        rows, queries = np.array([0, 1, 2, 0]), np.array([[1, 0, 0, 0], [0, 1, 0, 0]], np.float32)
        best_parts(data, scales, rows, np.array([0, 0, 0, 1]), queries, np.ones(2, np.float32), scores, which)
        np.testing.assert_allclose(scores, [-1, -1, -1, 0], atol=1e-6)
        assert which.tolist() == [0, 1, 0, 0]


def test_a_byte_a_number_loses_little() -> None:
    codes, factors = quantise(np.concatenate([VECTORS, np.zeros((1, PARTS, WIDTH), np.float32)]))
    assert codes.dtype == np.int8
    assert not codes[-1].any()
    assert not factors[-1].any()
    assert np.abs(codes[:-1] * factors[:-1, :, None] - VECTORS).max() <= np.abs(VECTORS).max() / 127 / 2 * 1.01
