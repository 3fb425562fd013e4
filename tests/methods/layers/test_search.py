"""One search for all layers: the paper's documents in its order, as many as asked for, with a fused search's scores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.methods.base import VECTOR
from palmette.methods.layers.config import LayersSearch
from palmette.methods.layers.search import layers_plan, merge_layers
from palmette.search.plan import Candidates, SearchPlan
from palmette.store.memory import ArrayView


def world(seed: int, documents: int, layers: int) -> tuple[np.ndarray, np.ndarray, ArrayView]:
    draw = np.random.default_rng(seed)
    vectors = draw.standard_normal((documents, 5)).astype(np.float32)
    return vectors, draw.standard_normal((3, layers, 5)).astype(np.float32), ArrayView({VECTOR: vectors})


def search(view: ArrayView, asked: np.ndarray, k: int, **how: Any) -> Candidates:
    """By all layers of queries [Q, L, d], numbered from 1."""
    options = LayersSearch(**how)
    plan = layers_plan(asked, asked.mean(1).astype(np.float32), options)
    return merge_layers(view, plan, view.candidates(plan, k), range(1, asked.shape[1] + 1), k, options)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 6), st.integers(1, 40))
def test_one_over_fetch_is_the_layers_one_after_the_other(seed: int, documents: int, layers: int, k: int) -> None:
    """Equation 4 as it is printed: layer after layer, without what earlier layers took."""
    vectors, asked, view = world(seed, documents, layers)
    found = search(view, asked, k, order="layer")
    each, rest = divmod(min(k, documents), layers)
    places = [each] * (layers - rest) + [each + 1] * rest  # the last layers know most
    by = np.repeat(np.arange(layers), places)
    assert (found.evidence["layer"] == by + 1).all()
    for row, queries in enumerate(asked):
        taken: list[int] = []
        for query, count in zip(queries, places, strict=True):
            order = np.argsort(-(vectors @ query), kind="stable").tolist()
            taken += [key for key in order if key not in taken][:count]
        assert found.keys[row].tolist() == taken  # as many as asked for, where there are so many
        np.testing.assert_allclose(found.scores[row], vectors[taken] @ queries.mean(0), atol=1e-5)


class Sparse(ArrayView):
    """An engine that finds three documents for each query, whatever is asked for."""

    def candidates(self, plan: SearchPlan, k: int) -> Candidates:
        found = super().candidates(plan, 3)
        pads = ((0, 0), (0, k - 3))
        keys = np.pad(found.keys, pads, constant_values=-1)
        scores = np.pad(found.scores, pads, constant_values=-np.inf)
        return replace(found, keys=keys, scores=scores)


def test_an_engine_that_finds_too_few_leaves_no_gaps() -> None:
    vectors, asked, _ = world(4, 40, 3)
    found = search(Sparse({VECTOR: vectors}), asked, 12, order="layer")
    each = np.argsort(-np.einsum("qld,nd->qln", asked, vectors), axis=2)[:, :, :3]
    for row, keys in enumerate(found.keys):
        held = (keys >= 0).sum()
        assert (keys[held:] == -1).all()
        assert set(each[row].ravel()) == set(keys[:held])
        for key, layer in zip(keys[:held], found.evidence["layer"][row], strict=False):
            assert key in each[row, layer - 1]
    assert found.evidence["layer"][0, :3].tolist() == [1, 1, 1]
