"""Searching a taxonomy: nearest by inner product, then cut, closed under the edges, and put in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from palmette.methods.taxonomy.calibration import CutOff
from palmette.methods.taxonomy.config import TaxonomySearch
from palmette.methods.taxonomy.nodes import Nodes
from palmette.search.probe import Floats, Found, Probe

if TYPE_CHECKING:
    from palmette.store.backend import View

__all__ = ["NODE", "VECTOR", "search"]

VECTOR, NODE = "vector", "node"

Rows = NDArray[np.int64]

BEYOND = 64
"""Results beyond ``k`` among which the specific ones, and whole chains, are looked for."""
LIKELY = 0.5
"""What counts as relevant when results are put in order without a ``cut``."""


def search(
    nodes: Nodes, cutoff: CutOff, view: View, queries: Floats, k: int, options: TaxonomySearch
) -> Found:
    """The documents of a view for queries [Q, d]."""
    if options.within is not None:
        view = _below(nodes, view, options.within)
    specific = options.order == "specific"
    found = view.nearest(
        Probe(VECTOR, queries, "inner_product"), k + BEYOND if specific or options.closed else k
    )
    if options.cut is not None:
        found = _kept(found, cutoff.chances(queries, found.scores) >= options.cut)
    if options.closed:
        found = _closed(nodes, view, queries, k, found)
    if specific:
        least = LIKELY if options.cut is None else options.cut
        found = _specific_first(nodes, view, found, cutoff.chances(queries, found.scores) >= least)
    return Found(found.keys[:, :k], found.scores[:, :k], found.compared)


def _below(nodes: Nodes, view: View, within: str) -> View:
    """A view of what lies below a node, and of the node."""
    hierarchy = nodes.hierarchy
    assert hierarchy is not None
    keys = view.keys()
    return view.within(keys[np.isin(_nodes(view, keys), hierarchy.descendants(hierarchy.row(within)))])


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


def _closed(nodes: Nodes, view: View, queries: Floats, k: int, found: Found) -> Found:
    """Whole chains only, best first: a hit comes with its ancestors in the view, or not at all."""
    hierarchy = nodes.hierarchy
    assert hierarchy is not None
    keys = view.keys()
    rows = _nodes(view, keys)
    key_of = np.full(len(nodes) + 1, -1, np.int64)  # the last is for documents that are no nodes (row −1)
    key_of[rows] = keys
    key_of[-1] = -1
    chosen: list[list[int]] = []
    for best in found.keys:
        taken: dict[int, None] = {}
        for key in best[best >= 0].tolist():
            node = int(rows[np.searchsorted(keys, key)])
            above = key_of[hierarchy.ancestors(node)] if node >= 0 else np.empty(0, np.int64)
            fresh = [step for step in dict.fromkeys((key, *above[above >= 0].tolist())) if step not in taken]
            if len(taken) + len(fresh) <= k:
                taken |= dict.fromkeys(fresh)
            if len(taken) == k:
                break
        chosen.append(list(taken))
    return _scored(view, queries, chosen, found.compared)


def _scored(view: View, queries: Floats, chosen: list[list[int]], compared: float) -> Found:
    """Chosen keys with their scores, best first."""
    width = max(1, *(len(row) for row in chosen)) if chosen else 1
    keys = np.full((len(chosen), width), -1, np.int64)
    scores = np.full((len(chosen), width), -np.inf, np.float32)
    for place, row in enumerate(chosen):
        if row:
            few = view.within(np.sort(np.array(row, np.int64)))
            found = few.nearest(Probe(VECTOR, queries[place : place + 1], "inner_product"), len(row))
            keys[place, : len(row)], scores[place, : len(row)] = found.keys[0], found.scores[0]
    return Found(keys, scores, compared)


def _specific_first(nodes: Nodes, view: View, found: Found, likely: NDArray[np.bool_]) -> Found:
    """What is likely relevant, the most specific first, then the rest by score; what is no node is taken for a leaf."""
    there = found.keys >= 0  # [Q, k]
    level = np.zeros(found.keys.shape, np.float32)
    if there.any():
        rows = _nodes(view, found.keys[there])
        known = np.append(nodes.specificity, np.float32(np.inf))  # row −1: no node
        level[there] = known[rows]
    level = np.where(likely & there, level, -np.inf)
    order = np.lexsort((-found.scores, -level, ~there), axis=1)  # [Q, k]
    return Found(
        np.take_along_axis(found.keys, order, 1), np.take_along_axis(found.scores, order, 1), found.compared
    )
