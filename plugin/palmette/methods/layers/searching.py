"""One batched search for all layers, and how their documents become one list (Q queries, L layers, k places)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from palmette.methods.layers.config import LayersSearch
from palmette.search.probe import Floats, Found, Keys, Probe

if TYPE_CHECKING:
    from palmette.store.backend import View

__all__ = ["FUSED", "LAYERS", "VECTOR", "allotted", "budgets", "search"]

VECTOR = "vector"
"""The encoder's own vector of a document."""
LAYERS, FUSED = "layers", "fused"
"""Query arrays: a vector for each layer [L, d], and their weighted mean [d]."""

_CELLS = 1 << 22  # comparisons of keys held at a time

Ints = NDArray[np.int64]


def budgets(k: int, shares: Sequence[int]) -> list[int]:
    """``k`` places dealt by shares; what does not divide goes to the largest remainders, of equal ones to the last.

    >>> budgets(10, [1, 1, 1, 1, 1, 1]), budgets(4, [3, 0, 1])
    ([1, 1, 2, 2, 2, 2], [3, 0, 1])
    """
    whole = sum(shares)
    dealt = [k * share // whole for share in shares]
    rest = sorted(range(len(shares)), key=lambda at: (-(k * shares[at] % whole), -at))
    for at in rest[: k - sum(dealt)]:
        dealt[at] += 1
    return dealt


def allotted(ranked: Keys, dealt: Sequence[int]) -> tuple[Keys, Ints]:
    """Each layer's best that no earlier layer took (the paper's equation 4): keys [Q, k], and their columns [Q, k].

    A layer with b places after earlier layers took t documents needs its t + b best at most: t of them may be taken,
    then b are left. So one search that fetches k = Σ b for every layer is enough, and gives exactly k documents.

    Args:
        ranked: [Q, L, F] keys of each layer's nearest, best first, F ≥ min(k, documents); −1 where there is none.
        dealt: Places of each layer, k in all.
    """
    queries = len(ranked)
    taken = np.empty((queries, 0), np.int64)
    columns = np.empty((queries, 0), np.int64)
    for layer, places in enumerate(dealt):
        own = ranked[:, layer, : taken.shape[1] + places]  # [Q, t + b]
        free = (own >= 0) & ~_among(own, taken)
        order = np.argsort(~free, axis=1, kind="stable")[:, :places]
        keys = np.where(np.take_along_axis(free, order, 1), np.take_along_axis(own, order, 1), -1)
        taken, columns = np.concatenate([taken, keys], 1), np.concatenate([columns, order], 1)
    return taken, columns


def _among(keys: Keys, taken: Keys) -> NDArray[np.bool_]:
    """[Q, a] which keys are among the row's taken ones [Q, t]."""
    step = max(1, _CELLS // max(1, keys.shape[1] * taken.shape[1]))
    parts = [
        (keys[at : at + step, :, None] == taken[at : at + step, None]).any(2)
        for at in range(0, len(keys), step)
    ]
    return np.concatenate(parts) if parts else np.zeros(keys.shape, bool)


def search(
    view: View, queries: Floats, fused: Floats, layers: Sequence[int], k: int, options: LayersSearch
) -> Found:
    """The documents of a view for queries [Q, L, d] of these layers, and their weighted means [Q, d]."""
    if options.order == "fused":
        return _fused(view, queries, fused, layers, k)
    count, width = len(layers), queries.shape[2]
    found = view.nearest(Probe(VECTOR, queries.reshape(-1, width), "inner_product"), k)
    ranked = found.keys.reshape(len(queries), count, -1)  # [Q, L, k]
    scores = found.scores.reshape(ranked.shape)
    dealt = budgets(ranked.shape[2], options.budget or [1] * count)
    keys, columns = allotted(ranked, dealt)
    place = np.repeat(np.arange(count), dealt)  # [k] the layer of each column
    rank = np.concatenate([np.arange(places) for places in dealt])
    rows = np.arange(len(queries))[:, None]
    scored = np.where(keys >= 0, scores[rows, place, columns], -np.inf).astype(np.float32)
    by = np.broadcast_to(np.array(layers)[place], keys.shape)
    order = np.lexsort((place, rank)) if options.order == "interleave" else np.arange(len(place))
    # What a layer could not fill stands at the end, wherever its places were.
    order = order[np.argsort(keys[:, order] < 0, axis=1, kind="stable")]  # [Q, k]
    keys, scored, by = (np.take_along_axis(array, order, 1) for array in (keys, scored, by))
    return _of(keys, scored, by, found, view, count)


def _fused(view: View, queries: Floats, fused: Floats, layers: Sequence[int], k: int) -> Found:
    """The best by the mean query, among what it or any layer finds: where an engine is exact, the best of all."""
    rows = np.concatenate([fused[:, None], queries], axis=1)  # [Q, 1 + L, d]
    found = view.nearest(Probe(VECTOR, rows.reshape(-1, rows.shape[2]), "inner_product"), k)
    ranked = found.keys.reshape(*rows.shape[:2], -1)  # [Q, 1 + L, k]
    keys = ranked[:, 0]
    scores = found.scores.reshape(ranked.shape)[:, 0]
    if found.approximate:
        keys, scores = _best(view, ranked, fused)
    by = np.zeros(keys.shape, np.int64)
    if ranked.shape[2] < len(view):  # else nothing had to be found
        for place, layer in reversed(list(enumerate(layers, 1))):
            by[_among(keys, ranked[:, place])] = layer
    return _of(keys, scores, by, found, view, rows.shape[1])


def _of(keys: Keys, scores: Floats, by: Ints, found: Found, view: View, rows: int) -> Found:
    """A result, whose effort is that of all its ``rows`` of queries."""
    compared = min(float(len(view)), rows * found.compared)
    refined, read = rows * found.refined, rows * found.read
    return Found(keys, scores, compared, {"layer": by}, refined, read, found.approximate)


def _best(view: View, ranked: Keys, fused: Floats) -> tuple[Keys, Floats]:
    """The best by the mean query of everything that was found: [Q, 1 + L, k] → [Q, k]."""
    every = np.unique(ranked[ranked >= 0])
    vectors = np.asarray(view.array(VECTOR, every.tolist()), np.float32)  # [n, d]
    keys = np.full((len(ranked), ranked.shape[2]), -1, np.int64)
    scores = np.full(keys.shape, -np.inf, np.float32)
    for row, query in enumerate(fused):
        own = np.unique(ranked[row][ranked[row] >= 0])
        scored = vectors[np.searchsorted(every, own)] @ query
        order = np.argsort(-scored, kind="stable")[: keys.shape[1]]
        keys[row, : len(order)], scores[row, : len(order)] = own[order], scored[order]
    return keys, scores
