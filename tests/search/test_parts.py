"""Documents of several vectors: the best of them counts, as if computed by hand."""

from dataclasses import replace

import numpy as np
import pytest

from palmette import Document
from palmette.arrays import quantise
from palmette.search.kernels import best_parts
from palmette.search.plan import ArraySpec, Candidates, Score, SearchPlan
from palmette.store.local.backend import LocalBackend
from palmette.store.memory import ArrayView
from support.plain_view import rescored

N, F, D, Q = 900, 3, 16, 5
WEIGHTS = np.array([1, 0, 2], np.float32)


def vectors(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((N, F, D)).astype(np.float32)


def by_hand(x: np.ndarray, queries: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scores = np.einsum("nfd,qd->qnf", x.astype(np.float64), queries.astype(np.float64)) * weights
    scores = np.where(weights > 0, scores, -np.inf)
    return scores.max(-1), scores.argmax(-1)


@pytest.fixture(scope="module", params=["int8", "float16", "float32"])
def kept(request: pytest.FixtureRequest):
    """A backend of three segments with some rows deleted, a view of memory, and the numbers that both stand for."""
    x, dtype = vectors(), request.param
    arrays = {"parts": x.astype(dtype), "first": x[:, 0].copy()}
    if dtype == "int8":
        arrays |= zip(("parts", "scales"), quantise(x), strict=True)
    exact = np.asarray(arrays["parts"], np.float32) * (arrays["scales"][..., None] if dtype == "int8" else 1)
    specs = [ArraySpec(name, array.shape[1:], array.dtype.name) for name, array in arrays.items()]
    backend = LocalBackend.in_memory(tuple(specs))
    for rows in (range(400), range(400, 700), range(700, N)):
        with backend.write() as writer:
            some = {name: array[list(rows)] for name, array in arrays.items()}
            writer.put([Document(str(r), "x", {"odd": r % 2}) for r in rows], some)
    with backend.write() as writer:
        writer.delete([str(row) for row in range(0, N, 7)])
    yield backend, ArrayView(arrays), exact, "scales" if dtype == "int8" else None
    backend.close()


def asked(seed: int, count: int = Q) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, D)).astype(np.float32)


def test_the_best_part_of_all_documents(kept) -> None:
    backend, memory, exact, scales = kept
    queries = asked(1)
    scores, which = by_hand(exact, queries, WEIGHTS)
    plan = SearchPlan(Score("parts", queries, part_weights=WEIGHTS, scales=scales))
    with backend.read() as view:
        for seen, rows in ((view, np.setdiff1d(np.arange(N), np.arange(0, N, 7))), (memory, np.arange(N))):
            for k in (1, 10, 2000):
                found = seen.candidates(plan, k)
                ids = found.keys
                if seen is view:
                    ids = np.array([view.ids(row.tolist()) for row in found.keys], int)
                expected = rows[np.argsort(-scores[:, rows], axis=1, kind="stable")[:, :k]]
                np.testing.assert_array_equal(ids, expected)
                np.testing.assert_allclose(found.scores, np.take_along_axis(scores, expected, 1), atol=1e-4)
                np.testing.assert_array_equal(found.evidence["part"], np.take_along_axis(which, expected, 1))


@pytest.mark.parametrize("share", [0.0, 0.75])
def test_a_shortlist_is_rescored_with_the_very_same_scores(kept, share: float) -> None:
    """The best of the shortlist by their best part, and by a share of the score they came with."""
    backend, _, _, scales = kept
    second = Score("parts", asked(2), part_weights=WEIGHTS, scales=scales)
    plan = SearchPlan(Score("first", asked(3)), rescore=second, fetch=40, share=share)
    with backend.read() as view:
        first = view.candidates(replace(plan, rescore=None, fetch=None), 40)
        whole = view.candidates(SearchPlan(second), len(view))
        found = view.candidates(plan, 12)
        slow = rescored(view, plan, first, 12)  # as storage does it that hands out rows alone
    for row in range(Q):
        values = dict(zip(whole.keys[row].tolist(), whole.scores[row], strict=True))
        own = np.array([values[key] for key in first.keys[row].tolist()])
        scored = np.float32(share) * first.scores[row] + np.float32(1 - share) * own if share else own
        order = np.lexsort((first.keys[row], -scored))[:12]
        assert found.keys[row].tolist() == first.keys[row, order].tolist()
        assert found.scores[row].tolist() == scored[order].tolist()
    np.testing.assert_array_equal(slow.keys, found.keys)
    np.testing.assert_allclose(slow.scores, found.scores, atol=1e-5)
    np.testing.assert_array_equal(slow.evidence["part"], found.evidence["part"])


def test_missing_candidates_stay_missing(kept) -> None:
    backend, _, _, scales = kept
    second = Score("parts", asked(2, 1), part_weights=WEIGHTS, scales=scales)
    with backend.read() as view:
        few = view.keys()[:3]
        found = view.candidates(SearchPlan(Score("first", asked(3, 1)), rescore=second, fetch=9, only=few), 5)
        assert sorted(found.keys[0].tolist()) == few.tolist()
        padded = Candidates(np.array([[few[0], -1, -1]]), np.array([[1, -np.inf, -np.inf]], np.float32))
        slow = rescored(view, SearchPlan(second, rescore=second), padded, 2)
        assert slow.keys.tolist() == [[few[0], -1]]
        assert np.isneginf(slow.scores[0, 1])


def test_a_part_that_a_document_lacks_outranks_no_other() -> None:
    vectors = np.zeros((3, 2, 4), np.float32)
    vectors[0, 0] = vectors[1, 1] = [-1, 0, 0, 0]
    vectors[2] = [[-1, 0, 0, 0], [-2, 0, 0, 0]]
    for data, scales in ((vectors, np.empty((3, 0), np.float32)), quantise(vectors)):
        scores, which = np.empty(4, np.float32), np.empty(4, np.int64)
        rows, queries = np.array([0, 1, 2, 0]), np.array([[1, 0, 0, 0], [0, 1, 0, 0]], np.float32)
        best_parts(data, scales, rows, np.array([0, 0, 0, 1]), queries, np.ones(2, np.float32), scores, which)
        np.testing.assert_allclose(scores, [-1, -1, -1, 0], atol=1e-6)
        assert which.tolist() == [0, 1, 0, 0]


def test_a_byte_a_number_loses_little() -> None:
    x = vectors()
    x[3, 1] = 0
    codes, scales = quantise(x)
    assert codes.dtype == np.int8
    assert (codes[3, 1] == 0).all()
    assert scales[3, 1] == 0
    assert np.abs(codes * scales[..., None] - x).max() <= np.abs(x).max() / 127 / 2 * 1.01
