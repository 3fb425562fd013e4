"""Why a document matched: the path that it shares with the question, and what every branch of it adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.methods.tree.search import LEAVES, VECTORS, cosines, summed
from palmette.methods.tree.shape import Shape, name_of
from palmette.methods.tree.topics import Topics
from palmette.search.fixed import as_floats
from palmette.search.probe import Floats
from palmette.types import Explanation, Part

__all__ = ["explain"]

SHOWN = 3
"""Steps of the path, and terms of a topic, that the sentence names."""
SPOKEN = 0.1
"""Share of both texts that a node must hold for its topic to be named: the deepest such node's is."""


def explain(
    query: Mapping[str, Floats],
    arrays: Mapping[str, NDArray[np.generic]],
    shape: Shape,
    level: int,
    *,
    rerank: str | None,
    space: NDArray[np.float64] | None,
    topics: Topics,
) -> Explanation:
    """Follow the larger share of the overlap from the root: what turns off at each node adds its part.

    After a ``rerank`` the score is the cosine in its space, which the path illustrates but does not make up.
    """
    q, d = (as_floats(a[LEAVES]).reshape(1, -1) for a in (query, arrays))
    at_level = [summed(x, shape.runs(level)) for x in (q, d)]
    shared = np.minimum(*at_level)  # [1, C_level]
    mass = {}  # node → probability of the query, of the document, and their overlap under it
    runs = _places(shape, level)
    for node, places in runs.items():
        mass[node] = tuple(float(x[0, places].sum(dtype=np.float64)) for x in (*at_level, shared))
    parts, steps, node = [], [], 0
    while 2 * node + 1 in mass:
        left, right = mass[2 * node + 1][2], mass[2 * node + 2][2]
        turn, other = (2, 1) if right > left else (1, 2)
        off = name_of(2 * node + other)
        parts.append(Part(f"subtree {off}", min(left, right), {"node": off}))
        node = 2 * node + turn
        step = {"node": name_of(node), "query": mass[node][0], "document": mass[node][1]}
        steps.append({**step, "topic": [term for term, _ in topics.get(name_of(node), ())]})
    path = name_of(node)
    parts.append(Part(f"{'leaf' if level == shape.depth else 'node'} {path}", mass[node][2], {"node": path}))
    score, words = mass[0][2], _words(mass[0][2], path, steps)
    if rerank is not None:
        score = float(cosines(arrays[VECTORS].reshape(1, -1), query[VECTORS].reshape(-1), space)[0])
        parts = [Part(f"cosine ({rerank})", score, {})]
        words = f"cosine ({rerank}) {score:.3f}; in the tree, {words}"
    return Explanation(score, parts, words, {"path": path, "nodes": steps})


def _places(shape: Shape, level: int) -> dict[int, list[int]]:
    """Every node down to a level, and its places among that level's nodes."""
    under: dict[int, list[int]] = {}
    for place, node in enumerate(shape.levels[level].tolist()):
        under.setdefault(node, []).append(place)
        while node:
            node = (node - 1) // 2
            under.setdefault(node, []).append(place)
    return under


def _words(score: float, path: str, steps: Sequence[Mapping[str, Any]]) -> str:
    """One sentence about the path."""
    if not steps:
        return f"overlap {score:.3f}"
    trail = ", ".join(
        f"{s['node']} ({s['query']:.0%} of the question, {s['document']:.0%} of the document)"
        for s in steps[:SHOWN]
    )
    trail += ", …" if len(steps) > SHOWN else ""
    spoken = [s for s in steps if s["topic"] and min(s["query"], s["document"]) >= SPOKEN]
    about = f"; {spoken[-1]['node']} is about {', '.join(spoken[-1]['topic'][:SHOWN])}" if spoken else ""
    return f"overlap {score:.3f}; both lean down {path}: {trail}{about}"
