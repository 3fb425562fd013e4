"""What a tree's searches are made of besides probes (Q queries, N documents, C leaves)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from palmette.search.arrays import ArrayView
from palmette.search.best import best
from palmette.search.kernels import folded
from palmette.search.probe import Floats, Found, Probe

if TYPE_CHECKING:
    from palmette.methods.tree.config import TreeSearch
    from palmette.methods.tree.shape import Shape
    from palmette.store.backend import View

__all__ = [
    "LEAVES",
    "REACHED",
    "VECTORS",
    "cosines",
    "nearest_within",
    "reached",
    "reranked",
    "summed",
    "unit",
]

Doubles = NDArray[np.float64]

LEAVES, VECTORS, REACHED = "leaves", "vectors", "reached"
"""The stored arrays: leaf probabilities, the encoder's unit vectors, the leaf a text falls into (see `reached`)."""


def summed(leaves: Floats, runs: int | tuple[int, ...]) -> Floats:
    """The nodes of a level: leaves summed in runs, [N, C] → [N, C_level]."""
    if isinstance(runs, int):
        return leaves if runs == 1 else folded(leaves, runs)
    starts = np.cumsum((0, *runs[:-1]))
    return np.add.reduceat(leaves, starts, axis=1, dtype=np.float64).astype(np.float32)


def reached(leaves: Floats, shape: Shape) -> NDArray[np.int32]:
    """The leaf of each text by the likelier turn at every split, and the most probable one of all: [N, 2]."""
    every = np.arange(len(leaves))
    place = np.zeros(len(leaves), np.int64)  # [N]: where on its level each text is
    for level in range(shape.depth):
        source = shape.moves(level)[0]  # [C_level + 1], rising: a split node twice, a closed one once
        left = np.searchsorted(source, place)
        right = np.searchsorted(source, place, side="right") - 1
        below = summed(leaves, shape.runs(level + 1))
        place = np.where(below[every, right] > below[every, left], right, left)
    return np.stack([place, leaves.argmax(1)], axis=1).astype(np.int32)


def nearest_within(
    view: View, probe: Probe, k: int, leaves: Floats, asked: NDArray[np.int32], options: TreeSearch
) -> Found:
    """The best of the documents that fall into the query's leaf (``greedy``) or ``probe`` likeliest leaves."""
    keys = view.keys()
    column = 0 if options.within == "greedy" else 1
    fallen = np.asarray(view.array(REACHED, keys.tolist()))[:, column]  # [N]
    found = Found(
        np.full((len(asked), k), -1, np.int64), np.full((len(asked), k), -np.inf, np.float32), compared=0.0
    )
    compared = 0
    for row in range(len(asked)):
        near = asked[row, :1] if column == 0 else best(leaves[row], options.probe)
        inside = keys[np.isin(fallen, near)]
        compared += len(inside)
        if not len(inside):
            continue
        there = ArrayView({probe.array: view.array(probe.array, inside.tolist())})
        one = there.nearest(Probe(probe.array, probe.queries[row : row + 1], probe.metric, probe.fold), k)
        width = one.keys.shape[1]
        found.keys[row, :width], found.scores[row, :width] = inside[one.keys[0]], one.scores[0]
    return Found(found.keys, found.scores, compared / max(1, len(asked)))


def reranked(view: View, found: Found, queries: Floats, k: int, space: Doubles | None) -> Found:
    """The ``k`` best of a shortlist by :func:`cosines` with the encoder's vectors of the queries [Q, d]."""
    wanted = np.unique(found.keys[found.keys >= 0])
    vectors = view.array(VECTORS, wanted.tolist())  # [n, d]
    width = min(k, found.keys.shape[1])
    keys = np.full((len(queries), width), -1, np.int64)
    scores = np.full((len(queries), width), -np.inf, np.float32)
    for row, query in enumerate(queries):
        listed = np.sort(found.keys[row][found.keys[row] >= 0])
        cosine = cosines(vectors[np.searchsorted(wanted, listed)], query, space)
        order = best(cosine, width)
        keys[row, : len(order)], scores[row, : len(order)] = listed[order], cosine[order]
    return Found(keys, scores, found.compared)


def cosines(vectors: NDArray[np.generic], query: Floats, space: Doubles | None) -> Floats:
    """Cosines of unit vectors [n, d] and a query [d], in the encoder's space or in that of a map W [d, d].

    In double precision, rounded once: a document's score does not depend on its company.
    """
    x, q = vectors.astype(np.float64), query.astype(np.float64)
    if space is not None:
        x, q = x @ space.T, space @ q
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(q)
    cosine: Floats = (np.einsum("nd,d->n", x, q) / np.maximum(norms, 1e-12)).astype(np.float32)
    return cosine


def unit(vectors: Floats) -> Floats:
    """Rows of length 1 (zero rows stay)."""
    unit: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit.astype(np.float32, copy=False)
