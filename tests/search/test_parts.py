"""Documents of several vectors: the best of them counts, as if computed by hand."""

from dataclasses import replace

import numpy as np
import pytest

from palmette import Document
from palmette.errors import InputError
from palmette.search.arrays import ArrayView
from palmette.search.part_loops import best_parts
from palmette.search.parts import quantised
from palmette.search.probe import ArraySpec, Parts
from palmette.store.local import LocalBackend

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
    arrays = (
        {"parts": x.astype(dtype)}
        if dtype != "int8"
        else dict(zip(("parts", "scales"), quantised(x), strict=True))
    )
    exact = np.asarray(arrays["parts"], np.float32) * (arrays["scales"][..., None] if dtype == "int8" else 1)
    specs = [ArraySpec("parts", (F, D), dtype)] + ([ArraySpec("scales", (F,))] if dtype == "int8" else [])
    backend = LocalBackend.in_memory(tuple(specs))
    for rows in (range(400), range(400, 700), range(700, N)):
        with backend.write() as writer:
            writer.put(
                [Document(str(r), "x", {"odd": r % 2}) for r in rows],
                {n: a[list(rows)] for n, a in arrays.items()},
            )
    with backend.write() as writer:
        writer.delete([str(row) for row in range(0, N, 7)])
    yield backend, ArrayView(arrays), exact, "scales" if dtype == "int8" else None
    backend.close()


def test_the_best_part_of_all_documents(kept) -> None:
    backend, memory, exact, scales = kept
    queries = np.random.default_rng(1).standard_normal((Q, D)).astype(np.float32)
    scores, which = by_hand(exact, queries, WEIGHTS)
    parts = Parts("parts", queries, WEIGHTS, scales)
    with backend.read() as view:
        for seen, rows in ((view, np.setdiff1d(np.arange(N), np.arange(0, N, 7))), (memory, np.arange(N))):
            for k in (1, 10, 2000):
                found = seen.nearest_part(parts, k)
                ids = (
                    np.array([seen.ids(row.tolist()) for row in found.keys], int)
                    if seen is view
                    else found.keys
                )
                expected = rows[np.argsort(-scores[:, rows], axis=1, kind="stable")[:, :k]]
                np.testing.assert_array_equal(ids, expected)
                np.testing.assert_allclose(found.scores, np.take_along_axis(scores, expected, 1), atol=1e-4)
                np.testing.assert_array_equal(found.evidence["part"], np.take_along_axis(which, expected, 1))


def test_a_shortlist_is_ranked_anew_with_the_very_same_scores(kept) -> None:
    backend, _, _, scales = kept
    queries = np.random.default_rng(2).standard_normal((Q, D)).astype(np.float32)
    parts = Parts("parts", queries, WEIGHTS, scales)
    with backend.read() as view:
        whole = view.nearest_part(parts, len(view))
        draw = np.random.default_rng(3)
        some = np.stack([draw.permutation(row)[:40] for row in whole.keys])
        some[0, 5:] = -1  # fewer for the first query
        found = view.rescored(some, parts, 12)
        assert found.keys.shape == (Q, 12)
        for row in range(Q):
            score = dict(zip(whole.keys[row].tolist(), whole.scores[row].tolist(), strict=True))
            wanted = sorted(
                (key for key in some[row].tolist() if key >= 0), key=lambda key: (-score[key], key)
            )[:12]
            assert found.keys[row, : len(wanted)].tolist() == wanted
            assert found.scores[row, : len(wanted)].tolist() == [score[key] for key in wanted]
        assert (found.keys[0, 5:] == -1).all()
        assert np.isneginf(found.scores[0, 5:]).all()


def test_a_shortlist_keeps_a_share_of_the_score_it_came_with(kept) -> None:
    backend, _, _, scales = kept
    queries = np.random.default_rng(2).standard_normal((Q, D)).astype(np.float32)
    parts = Parts("parts", queries, WEIGHTS, scales)
    with backend.read() as view:
        first = view.nearest_part(parts, 20)
        own = np.random.default_rng(3).standard_normal(first.keys.shape).astype(np.float32)
        first.keys[0, 15:], own[0, 15:] = -1, -np.inf
        found = view.rescored(first.keys, replace(parts, own=own, share=0.75), 20)
        plain = view.rescored(first.keys, replace(parts, own=own), 20)
    mixed = np.float32(0.75) * own + np.float32(0.25) * first.scores
    for row in range(Q):
        order = np.lexsort((first.keys[row], -mixed[row]))
        assert found.keys[row].tolist() == first.keys[row, order].tolist()
        assert found.scores[row].tolist() == mixed[row, order].tolist()
        assert plain.keys[row, :15].tolist() == first.keys[row, :15].tolist()


def test_filters_and_empty_views(kept) -> None:
    backend, _, exact, scales = kept
    queries = np.random.default_rng(4).standard_normal((2, D)).astype(np.float32)
    parts = Parts("parts", queries, np.ones(F, np.float32), scales)
    from palmette.store.filters import parse_filter

    with backend.read(parse_filter({"odd": 1})) as view:
        found = view.nearest_part(parts, 5)
        assert all(int(id) % 2 for row in found.keys for id in view.ids(row.tolist()))
        best, _ = by_hand(exact, queries, np.ones(F))
        rows = np.array([row for row in range(1, N, 2) if row % 7])
        np.testing.assert_allclose(found.scores, -np.sort(-best[:, rows], axis=1)[:, :5], atol=1e-4)
        nothing = view.within(np.empty(0, np.int64))
        assert nothing.nearest_part(parts, 5).keys.shape == (2, 0)
        with pytest.raises(InputError, match="parts of 16 numbers do not fit"):
            view.nearest_part(Parts("parts", queries, np.ones(2, np.float32), scales), 5)
        with pytest.raises(InputError, match="stores no array 'others'"):
            view.rescored(found.keys, Parts("others", queries, np.ones(F, np.float32)), 5)


def test_a_part_that_a_document_lacks_outranks_no_other() -> None:
    vectors = np.zeros((3, 2, 4), np.float32)
    vectors[0, 0] = vectors[1, 1] = [-1, 0, 0, 0]
    vectors[2] = [[-1, 0, 0, 0], [-2, 0, 0, 0]]
    for data, scales in ((vectors, np.empty((3, 0), np.float32)), quantised(vectors)):
        scores, which = np.empty(4, np.float32), np.empty(4, np.int64)
        rows, queries = np.array([0, 1, 2, 0]), np.array([[1, 0, 0, 0], [0, 1, 0, 0]], np.float32)
        best_parts(data, scales, rows, np.array([0, 0, 0, 1]), queries, np.ones(2, np.float32), scores, which)
        np.testing.assert_allclose(scores, [-1, -1, -1, 0], atol=1e-6)
        assert which.tolist() == [0, 1, 0, 0]


def test_weights_must_say_something() -> None:
    queries = np.zeros((1, D), np.float32)
    for weights in ([0, 0, 0], [1, -1, 0]):
        with pytest.raises(InputError, match="weights of parts must be at least 0"):
            Parts("parts", queries, np.array(weights, np.float32))
    with pytest.raises(InputError, match="of float32"):
        Parts("parts", queries.astype(np.float64), WEIGHTS)


def test_a_byte_a_number_loses_little() -> None:
    x = vectors()
    x[3, 1] = 0
    codes, scales = quantised(x)
    assert codes.dtype == np.int8
    assert (codes[3, 1] == 0).all()
    assert scales[3, 1] == 0
    assert np.abs(codes * scales[..., None] - x).max() <= np.abs(x).max() / 127 / 2 * 1.01
