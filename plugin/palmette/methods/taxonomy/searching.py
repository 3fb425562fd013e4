"""Searching a taxonomy: nearest by inner product, then cut, closed under the edges, and put in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from palmette.methods.taxonomy.calibration import probabilities
from palmette.methods.taxonomy.config import TaxonomySearch
from palmette.methods.taxonomy.nodes import Nodes
from palmette.search.arrays import ArrayView
from palmette.search.probe import Floats, Found, Probe

if TYPE_CHECKING:
    from palmette.store.backend import View

__all__ = ["NODE", "VECTOR", "search"]

VECTOR, NODE = "vector", "node"

Rows = NDArray[np.int64]


def search(
    nodes: Nodes, calibration: Floats, view: View, queries: Floats, k: int, options: TaxonomySearch
) -> Found:
    """The documents of a view for queries [Q, d]."""
    found = _nearest(nodes, view, queries, k, options.within)
    if options.cut is not None:
        chance = probabilities(calibration, queries, found.scores)
        found = _kept(found, chance >= options.cut)
    if options.closed:
        found = _closed(nodes, view, queries, k, found, options.within)
    return _specific_first(nodes, view, found) if options.order == "specific" else found


def _nearest(nodes: Nodes, view: View, queries: Floats, k: int, within: str | None) -> Found:
    if within is None:
        return view.nearest(Probe(VECTOR, queries, "inner_product"), k)
    keys = view.keys()
    keys = keys[np.isin(_nodes(view, keys), _below(nodes, within))]
    if not len(keys):
        return Found(
            np.full((len(queries), 1), -1, np.int64), np.full((len(queries), 1), -np.inf, np.float32)
        )
    vectors = np.asarray(view.array(VECTOR, keys.tolist()), np.float32)
    found = ArrayView({VECTOR: vectors}).nearest(Probe(VECTOR, queries, "inner_product"), k)
    return Found(np.where(found.keys >= 0, keys[found.keys], -1), found.scores, found.compared)


def _below(nodes: Nodes, within: str) -> Rows:
    hierarchy = nodes.hierarchy
    assert hierarchy is not None
    return hierarchy.descendants(hierarchy.row(within))


def _nodes(view: View, keys: Rows) -> Rows:
    """The node of each document; −1 for those that are none."""
    return np.asarray(view.array(NODE, keys.tolist()), np.int64).reshape(-1)


def _kept(found: Found, keep: NDArray[np.bool_]) -> Found:
    """Without what is not to be kept, which stands at the end: chances fall with scores."""
    keep = keep & (found.keys >= 0)
    return Found(
        np.where(keep, found.keys, -1),
        np.where(keep, found.scores, -np.inf).astype(np.float32),
        found.compared,
    )


def _closed(nodes: Nodes, view: View, queries: Floats, k: int, found: Found, within: str | None) -> Found:
    """Whole chains only, best first: a hit comes with its ancestors in the view, or not at all."""
    hierarchy = nodes.hierarchy
    assert hierarchy is not None
    keys = view.keys()
    key_of = {int(node): int(key) for node, key in zip(_nodes(view, keys), keys, strict=True) if node >= 0}
    inside = None if within is None else set(_below(nodes, within).tolist())
    node_of = {key: node for node, key in key_of.items()}
    chosen: list[list[int]] = []
    for row in found.keys.tolist():
        taken: dict[int, None] = {}
        for key in row:
            if key < 0 or len(taken) == k:
                break
            above = hierarchy.ancestors(node_of[key]).tolist() if key in node_of else []
            chain = [key, *(key_of[n] for n in above if n in key_of and (inside is None or n in inside))]
            fresh = [step for step in dict.fromkeys(chain) if step not in taken]
            if len(taken) + len(fresh) <= k:
                taken |= dict.fromkeys(fresh)
        chosen.append(list(taken))
    return _scored(view, queries, chosen, found.compared)


def _scored(view: View, queries: Floats, chosen: list[list[int]], compared: float) -> Found:
    """Chosen keys with their scores, best first."""
    width = max(1, *(len(row) for row in chosen)) if chosen else 1
    keys = np.full((len(chosen), width), -1, np.int64)
    scores = np.full((len(chosen), width), -np.inf, np.float32)
    for place, row in enumerate(chosen):
        if row:
            vectors = ArrayView({VECTOR: np.asarray(view.array(VECTOR, row), np.float32)})
            found = vectors.nearest(Probe(VECTOR, queries[place : place + 1], "inner_product"), len(row))
            keys[place, : len(row)] = np.array(row, np.int64)[found.keys[0]]
            scores[place, : len(row)] = found.scores[0]
    return Found(keys, scores, compared)


def _specific_first(nodes: Nodes, view: View, found: Found) -> Found:
    """The same documents, the most specific first; what is no node is taken for a leaf."""
    listed = np.unique(found.keys[found.keys >= 0])
    places = np.full(len(listed), np.inf, np.float32)
    if len(listed):
        rows = _nodes(view, listed)
        places[rows >= 0] = nodes.specificity[rows[rows >= 0]]
    at = np.minimum(np.searchsorted(listed, found.keys), max(0, len(listed) - 1))
    level = np.where(found.keys >= 0, places[at] if len(listed) else 0, -np.inf)  # [Q, k]
    order = np.lexsort((-found.scores, -level), axis=1)
    order = np.take_along_axis(
        order, np.argsort(np.take_along_axis(found.keys < 0, order, 1), axis=1, kind="stable"), 1
    )
    return Found(
        np.take_along_axis(found.keys, order, 1), np.take_along_axis(found.scores, order, 1), found.compared
    )
