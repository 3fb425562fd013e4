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

SHOWN, TERMS = 2, 3
"""Places that the sentence names, and terms of each."""


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
    common = _standing_out(mass, topics)
    score, words = mass[0][2], _words(mass[0][2], path, steps, common)
    if rerank is not None:
        score = float(cosines(arrays[VECTORS].reshape(1, -1), query[VECTORS].reshape(-1), space)[0])
        parts = [Part(f"cosine ({rerank})", score, {})]
        words = f"cosine ({rerank}) {score:.3f}; in the tree, {words}"
    return Explanation(score, parts, words, {"path": path, "nodes": steps, "places": common})


def _places(shape: Shape, level: int) -> dict[int, list[int]]:
    """Every node down to a level, and its places among that level's nodes."""
    under: dict[int, list[int]] = {}
    for place, node in enumerate(shape.levels[level].tolist()):
        under.setdefault(node, []).append(place)
        while node:
            node = (node - 1) // 2
            under.setdefault(node, []).append(place)
    return under


def _standing_out(mass: Mapping[int, tuple[float, ...]], topics: Topics) -> list[dict[str, Any]]:
    """Nodes with a topic where both texts lie more than evenly spread ones would, what stands out most first.

    In a gentle tree every turn is nearly even, so that a path says little; what both have in common shows in the
    nodes that hold more of both than their even share 2^−h. The excess is measured in units of that share's root,
    which lets few large nodes and many small ones compete; of nodes under each other one is named.
    """
    found = []
    for node, (query, document, _) in mass.items():
        name = name_of(node)
        even = 2.0 ** -len(name)
        excess = (min(query, document) - even) / even**0.5
        if name in topics and excess > 0:
            found.append((excess, name, query, document, even))
    places: list[dict[str, Any]] = []
    for _, name, query, document, even in sorted(found, key=lambda one: (-one[0], one[1])):
        if len(places) == SHOWN:
            break
        if not any(name.startswith(one["node"]) or one["node"].startswith(name) for one in places):
            topic = [term for term, _ in topics[name]]
            places.append({"node": name, "query": query, "document": document, "even": even, "topic": topic})
    return places


def _words(
    score: float, path: str, steps: Sequence[Mapping[str, Any]], places: Sequence[Mapping[str, Any]]
) -> str:
    """One sentence: what both texts have in common, then where most of what they share lies."""
    if not steps:
        return f"overlap {score:.3f}"
    said = "; and of ".join(
        f"{', '.join(one['topic'][:TERMS])} (node {one['node']} holds {one['query']:.1%} of the question and "
        f"{one['document']:.1%} of the document; an even spread would give {one['even']:.1%})"
        for one in places
    )
    about = f"; both speak more than most of {said}" if said else ""
    last = steps[-1]
    return (
        f"overlap {score:.3f}{about}; the larger share of it leads to {path}, which holds {last['query']:.1%} of the "
        f"question and {last['document']:.1%} of the document"
    )
