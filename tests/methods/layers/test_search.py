"""One search for all layers: the paper's documents, exactly as many as asked for, in any order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.methods.layers.config import LayersSearch
from palmette.methods.layers.search import VECTOR, layers_plan, merge_layers, split_budget, take_new_per_layer
from palmette.search.arrays import ArrayView
from palmette.search.plan import Candidates, SearchPlan


def world(
    seed: int, documents: int, layers: int, queries: int = 3
) -> tuple[np.ndarray, np.ndarray, ArrayView]:
    draw = np.random.default_rng(seed)
    vectors = draw.standard_normal((documents, 5)).astype(np.float32)
    asked = draw.standard_normal((queries, layers, 5)).astype(np.float32)
    return vectors, asked, ArrayView({VECTOR: vectors})


def search(
    view: ArrayView,
    asked: np.ndarray,
    fused: np.ndarray,
    layers: Any,
    k: int,
    options: LayersSearch,
    only: Any = None,
) -> Candidates:
    plan = replace(layers_plan(asked, fused.astype(np.float32), options), only=only)
    return merge_layers(view, plan, view.candidates(plan, k), list(layers), k, options)


def one_by_one(vectors: np.ndarray, asked: np.ndarray, dealt: list[int]) -> list[list[int]]:
    """Equation 4 as it is printed: layer after layer, without what earlier layers took."""
    found = []
    for queries in asked:
        taken: list[int] = []
        for query, places in zip(queries, dealt, strict=True):
            order = np.argsort(-(vectors @ query), kind="stable").tolist()
            taken += [row for row in order if row not in taken][:places]
        found.append(taken)
    return found


def highest(vectors: np.ndarray, asked: np.ndarray, keys: np.ndarray, k: int) -> list[list[int]]:
    """The layer that ranks each document highest among its ``k`` best, of equals the first; 0 for none."""
    ranks = np.einsum("qld,nd->qln", -asked, vectors).argsort(axis=2).argsort(axis=2)  # [Q, L, N]
    own = np.take_along_axis(ranks, keys[:, None], axis=2)  # [Q, L, k]
    return np.where(own.min(axis=1) < k, own.argmin(axis=1) + 1, 0).tolist()


@given(
    seed=st.integers(0, 10**6),
    documents=st.integers(1, 40),
    layers=st.integers(1, 6),
    k=st.integers(1, 40),
    data=st.data(),
)
def test_one_over_fetch_is_the_layers_one_after_the_other(
    seed: int, documents: int, layers: int, k: int, data: st.DataObject
) -> None:
    vectors, asked, view = world(seed, documents, layers)
    shares = data.draw(st.lists(st.integers(0, 3), min_size=layers, max_size=layers).filter(any))
    options = LayersSearch(order="layer", budget=tuple(shares))
    found = search(view, asked, asked.mean(1), range(1, layers + 1), k, options)
    dealt = split_budget(min(k, documents), shares)
    assert found.keys.tolist() == one_by_one(vectors, asked, dealt)
    assert found.keys.shape == (3, min(k, documents))  # as many as asked for, where there are so many
    by = found.evidence["layer"]
    assert (by == np.repeat(np.arange(1, layers + 1), dealt)).all()
    for row, (keys, scores) in enumerate(zip(found.keys, found.scores, strict=True)):
        expected = [vectors[key] @ asked[row, layer - 1] for key, layer in zip(keys, by[row], strict=True)]
        np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_budgets_are_dealt_in_full() -> None:
    assert split_budget(6, [1] * 6) == [1] * 6
    assert split_budget(3, [1] * 6) == [0, 0, 0, 1, 1, 1]  # the last layers know most
    assert split_budget(7, [2, 5]) == [2, 5]
    assert split_budget(120, [60, 0, 0, 60]) == [60, 0, 0, 60]
    assert all(sum(split_budget(k, [3, 1, 2])) == k for k in range(1, 50))


def test_interleaving_takes_turns_with_the_same_documents() -> None:
    _, asked, view = world(1, 30, 3)
    layered, mixed = (
        search(view, asked, asked.mean(1), (2, 4, 6), 7, LayersSearch(order=order))  # type: ignore[arg-type]
        for order in ("layer", "interleave")
    )
    assert layered.evidence["layer"][0].tolist() == [2, 2, 4, 4, 6, 6, 6]
    assert mixed.evidence["layer"][0].tolist() == [2, 4, 6, 2, 4, 6, 6]
    for row in range(3):
        assert sorted(layered.keys[row]) == sorted(mixed.keys[row])
    assert mixed.keys[0, 3] == layered.keys[0, 1]


def test_the_fused_list_is_the_best_by_the_mean_and_says_who_found_it() -> None:
    vectors, asked, view = world(2, 50, 4)
    weights = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    fused = np.einsum("qld,l->qd", asked, weights)
    found = search(view, asked, fused, (1, 2, 3, 4), 8, LayersSearch())
    means = np.einsum("qld,nd,l->qn", asked, vectors, weights)
    assert found.keys.tolist() == np.argsort(-means, axis=1)[:, :8].tolist()
    np.testing.assert_allclose(found.scores, -np.sort(-means, axis=1)[:, :8], atol=1e-5)
    by = found.evidence["layer"]
    assert by.tolist() == highest(vectors, asked, found.keys, 8)
    assert len(np.unique(by)) > 2
    assert highest(vectors, asked, found.keys, 50) != by.tolist()  # some are nobody's but the mean's: 0


def test_a_layer_that_found_too_few_leaves_its_places_to_others() -> None:
    ranked = np.array([[[4, 2, -1], [4, 2, -1]], [[4, 2, 9], [4, -1, -1]], [[-1, -1, -1], [5, 6, 7]]])
    at = take_new_per_layer(ranked, [1, 2])
    keys = np.where(at < 0, -1, np.take_along_axis(ranked.reshape(3, -1), np.maximum(at, 0), 1))
    assert keys.tolist() == [[4, 2, -1], [4, 2, 9], [5, 6, 7]]
    assert (at // 3).tolist() == [[0, 1, -1], [0, 0, 0], [1, 1, 1]]


class Sparse(ArrayView):
    """An engine that finds three documents for each query, whatever is asked for."""

    def candidates(self, plan: SearchPlan, k: int) -> Candidates:
        found = super().candidates(plan, 3)
        keys = np.pad(found.keys, ((0, 0), (0, k - 3)), constant_values=-1)
        scores = np.pad(found.scores, ((0, 0), (0, k - 3)), constant_values=-np.inf)
        return replace(found, keys=keys, scores=scores, approximate=True)


def test_an_engine_that_finds_too_few_leaves_no_gaps() -> None:
    vectors, asked, _ = world(4, 40, 3)
    view = Sparse({VECTOR: vectors})
    each = np.argsort(-np.einsum("qld,nd->qln", asked, vectors), axis=2)[:, :, :3]
    for order in ("layer", "interleave", "fused"):
        found = search(view, asked, asked.mean(1), (1, 2, 3), 12, LayersSearch(order=order))  # type: ignore[arg-type]
        for row, keys in enumerate(found.keys):
            held = (keys >= 0).sum()
            assert (keys[held:] == -1).all()
            if order != "fused":
                assert set(keys[:held]) == set(each[row].ravel())
                for key, layer in zip(keys[:held], found.evidence["layer"][row], strict=False):
                    assert key in each[row, layer - 1]
            else:
                assert set(each[row].ravel()) <= set(keys[:held])
        turns = found.evidence["layer"][0, :3].tolist()
        assert order == "fused" or turns == ([1, 1, 1] if order == "layer" else [1, 2, 3])


@pytest.mark.parametrize("order", ["fused", "layer", "interleave"])
def test_no_document_twice_and_all_of_them_if_asked(order: str) -> None:
    _, asked, view = world(3, 12, 5)
    found = search(view, asked, asked.mean(1), range(1, 6), 12, LayersSearch(order=order))  # type: ignore[arg-type]
    assert (np.sort(found.keys, axis=1) == np.arange(12)).all()
    if order == "fused":
        vectors = view.arrays[VECTOR]
        assert found.evidence["layer"].tolist() == highest(vectors, asked, found.keys, 12)
        part = search(view, asked, asked.mean(1), range(1, 6), 12, LayersSearch(), only=np.arange(12))
        assert part.keys.tolist() == found.keys.tolist()
        assert not part.evidence["layer"].any()  # among a few, a rank says nothing
