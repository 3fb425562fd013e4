"""Every storage executes every kind of score as its definition says: vectors, and parts with factors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest
from support.plain_view import PlainView

from palmette import Document
from palmette.arrays import quantise
from palmette.errors import InputError
from palmette.search.plan import ArraySpec, Lists, Score, SearchPlan
from palmette.store.engines import engine_of
from palmette.store.local.backend import LocalBackend
from palmette.store.protocols import Backend, View
from support.places import KINDS, places

COUNT, WIDTH, PARTS, QUERIES = 300, 16, 3, 4
DRAW = np.random.default_rng(0)
VECTORS = DRAW.standard_normal((COUNT, PARTS, WIDTH)).astype(np.float32)
CODES, FACTORS = quantise(VECTORS)
ARRAYS: dict[str, np.ndarray] = {
    "vector": VECTORS[:, 0].copy(),
    "half": VECTORS[:, 0].astype(np.float16),
    "parts": CODES,
    "factors": FACTORS,
    "lists": DRAW.permuted(np.tile(np.arange(8, dtype=np.int32), (COUNT, 1)), axis=1)[:, :1].copy(),
}
SEARCHED: dict[str, dict[str, Any]] = {
    "vector": {"searched": "inner_product"},
    "half": {"searched": "inner_product"},
    "parts": {"searched": "inner_product", "scales": "factors"},
    "lists": {"searched": "lists"},
}
SPECS = tuple(
    ArraySpec(name, array.shape[1:], array.dtype.name, **SEARCHED.get(name, {})) for name, array in ARRAYS.items()
)
ASKED = DRAW.standard_normal((QUERIES, WIDTH)).astype(np.float32)
WEIGHTS = np.array([1, 0, 2], np.float32)
VISITED = np.array([[0, 1, -1], [2, 3, 4], [5, -1, -1], [6, 7, 0]])

SCORES: dict[str, Score] = {
    "vector": Score("vector", ASKED),
    "half": Score("half", ASKED),
    "parts": Score("parts", ASKED, scales="factors", part_weights=WEIGHTS),
}


def values(score: Score) -> np.ndarray:
    """Scores of all documents [Q, N], from the definition."""
    data = ARRAYS[score.array].astype(np.float64)
    if score.scales is not None:
        data = data * ARRAYS[score.scales][..., None]
    queries = score.queries.astype(np.float64)
    if score.part_weights is None:
        return queries @ data.T
    table = np.einsum("qd,nfd->qnf", queries, data) * score.part_weights
    return table[..., score.part_weights > 0].max(axis=2)


def fill(backend: Backend, rows: range) -> None:
    with backend.write() as writer:
        some = [Document(str(row), f"text {row}", {"odd": row % 2}) for row in rows]
        writer.put(some, {name: array[rows.start : rows.stop] for name, array in ARRAYS.items()})


@pytest.fixture(scope="module", params=[*KINDS, "memory", "plain"])
def view(request: pytest.FixtureRequest) -> Iterator[View]:
    """A view of each kind of storage, and of a double that computes the definitions."""
    if request.param == "plain":
        yield PlainView([Document(str(row), "x") for row in range(COUNT)], ARRAYS)
    elif request.param == "memory":
        with opened(LocalBackend.in_memory(SPECS)) as one:
            yield one
    else:
        with places(request.param) as name, opened(create(str(name()))) as one:
            yield one


def create(where: str) -> Backend:
    """An empty folder or collection."""
    if "://" not in where:
        return LocalBackend.create(where, SPECS, fingerprint="f")
    engine = engine_of(where)
    engine.create(where, SPECS, fingerprint="f", language="english")
    return engine.open(where)


@contextmanager
def opened(backend: Backend) -> Iterator[View]:
    """A view of all documents, in three writes."""
    with closing(backend):
        for rows in (range(120), range(120, 260), range(260, COUNT)):
            fill(backend, rows)
        with backend.read() as one:
            yield one


def check(view: View, plan: SearchPlan, k: int, expected: np.ndarray) -> None:
    """Compare ids and scores with expected scores [Q, N], −∞ for what may not be found."""
    found = view.candidates(plan, k)
    for row, scores in enumerate(expected):
        held = found.keys[row] >= 0
        ids = [int(id) for id in view.ids(found.keys[row][held].tolist())]
        best = np.argsort(-scores, kind="stable")[: min(k, np.isfinite(scores).sum())]
        assert ids == best.tolist()
        np.testing.assert_allclose(found.scores[row][held], scores[best], atol=1e-4)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("k", [1, 12])
def test_a_score_is_its_definition(view: View, name: str, k: int) -> None:
    score = SCORES[name]
    check(view, SearchPlan(score), k, values(score))


@pytest.mark.parametrize("name", ["vector", "half"])
def test_within_lists(view: View, name: str) -> None:
    score = SCORES[name]
    held = np.stack([np.isin(ARRAYS["lists"], row[row >= 0]).any(axis=1) for row in VISITED])
    check(view, SearchPlan(score, Lists("lists", VISITED)), 9, np.where(held, values(score), -np.inf))


@pytest.mark.parametrize("first", ["vector", "half"])
def test_a_search_is_rescored_by_parts(view: View, first: str) -> None:
    plan = SearchPlan(SCORES[first], rescore=SCORES["parts"], fetch=40, share=0.25)
    one, best = values(SCORES[first]), values(SCORES["parts"])
    last = np.sort(one, axis=1)[:, -40, None]
    check(view, plan, 7, np.where(one >= last, 0.25 * one + 0.75 * best, -np.inf))


def test_some_documents_alone(view: View) -> None:
    keys = view.keys()[10:30]
    only = np.zeros(COUNT, bool)
    only[10:30] = True
    for name in SCORES:
        check(view, SearchPlan(SCORES[name]).among(keys), 5, np.where(only, values(SCORES[name]), -np.inf))


def test_what_does_not_fit_is_refused() -> None:
    with opened(LocalBackend.in_memory(SPECS)) as view:
        for width in (WIDTH - 1, WIDTH + 1):
            with pytest.raises(InputError, match="do not fit"):
                view.candidates(SearchPlan(Score("vector", np.ones((1, width), np.float32))), 3)
        with pytest.raises(InputError, match="holds no number for each of the 3 vectors"):
            view.candidates(SearchPlan(Score("parts", ASKED, scales="vector", part_weights=WEIGHTS)), 3)
