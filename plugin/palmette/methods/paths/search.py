"""Which leaves a search visits, and the search (Q queries, L leaves, l per document, β visited)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from palmette.methods.paths.curve import prefixes
from palmette.search.probe import Found, Lists, Probe

if TYPE_CHECKING:
    from palmette.methods.paths.config import PathsConfig, PathsSearch
    from palmette.methods.paths.routing import Router
    from palmette.store.backend import View

__all__ = ["LEAVES", "VECTOR", "VISIT", "VISITED", "auto_share", "plan", "search"]

VECTOR, LEAVES = "vector", "leaves"
"""The stored arrays: unit vectors, and the leaves of each document."""
VISIT = "visit"
"""Query array, once planned: [Q, β] leaves to visit, likeliest first, −1 padded; β = 0 stands for everywhere."""
VISITED = "visited"
"""Evidence: how many leaves the query visited; 0 where it looked everywhere."""
SMALL = 10_000
"""Documents up to which ``visit="auto"`` looks at all: faster than encoding the question."""
BLIND = 0.2
"""What it visits where training held nothing out to learn the share from."""

Ints = NDArray[np.int64]
Curve = Mapping[float, Mapping[str, float]]


def auto_share(curve: Curve, tolerance: float, documents: int) -> float:
    """The least share of documents at which held-out recall was within ``tolerance`` of that of all."""
    if documents <= SMALL:
        return 1.0
    if not curve:
        return BLIND
    good = (1 - tolerance) * curve[max(curve)]["recall@100"]
    return min(share for share, row in curve.items() if row["recall@100"] >= good)


def plan(
    router: Router,
    config: PathsConfig,
    curve: Curve,
    view: View,
    vectors: NDArray[np.float32],
    k: int,
    options: PathsSearch,
) -> Ints:
    """The leaves that each query visits: [Q, β].

    As many as the budget allows or the beam says; more where they hold fewer than ``k`` documents of the view, as a
    filter may leave it.
    """
    count = len(view)
    visit = options.visit
    if visit == "auto":
        visit = auto_share(curve, options.tolerance, count)
    budget = visit * count if isinstance(visit, float) else visit
    everywhere = np.zeros((len(vectors), 0), np.int64)
    if (options.beam is None and budget >= count) or not count:
        return everywhere
    sizes = np.zeros(config.leaves, np.int64)
    held = view.sizes(LEAVES)
    sizes[: len(held)] = held
    needed = min(k * config.per_document, int(sizes.sum()))  # so many entries are at least k documents
    if len(vectors) == config.height == 1:
        return router.visits(vectors[0], sizes, budget, needed, options.beam or 0)[None]
    beam = options.beam or _guess(max(budget, needed), sizes)
    while True:
        leaves = router.ordered(vectors, beam).leaves  # [Q, β]
        reached = np.cumsum(sizes[leaves], axis=1)
        enough = (reached < needed).sum(axis=1) + 1  # [Q]
        wanted = np.full(len(leaves), options.beam) if options.beam else prefixes(leaves, sizes, budget)
        looked = np.maximum(wanted, enough)
        whole = leaves.shape[1]
        if (
            whole >= config.leaves
            or ((looked <= whole) & ((reached[:, -1] > budget) | bool(options.beam))).all()
        ):
            break
        beam = min(2 * beam, config.leaves)
    looked = np.minimum(looked, whole)
    leaves = leaves[:, : int(looked.max())]
    return np.where(np.arange(leaves.shape[1]) < looked[:, None], leaves, -1)


def _guess(documents: float, sizes: Ints) -> int:
    """A beam that most likely reaches so many documents."""
    share = documents / max(1, int(sizes.sum()))
    return min(len(sizes), int(1.5 * share * len(sizes)) + 8)


def search(view: View, queries: Mapping[str, NDArray[Any]], k: int) -> Found:
    """The ``k`` best cosines among the documents of the planned leaves."""
    vectors, visit = queries[VECTOR], queries[VISIT]
    lists = Lists(LEAVES, visit) if visit.shape[1] else None
    found = view.nearest(Probe(VECTOR, vectors, "inner_product", lists=lists), k)
    visited = np.zeros(found.keys.shape, np.int64) + (visit >= 0).sum(axis=1)[:, None]
    return replace(found, evidence={VISITED: visited})
