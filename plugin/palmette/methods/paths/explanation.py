"""Why a document matched: the leaf it sat in, the path there, and how much of the cosine the leaf's theme is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from palmette.lexical.terms import Terms
from palmette.methods.paths.routing import Router
from palmette.methods.paths.search import LEAVES, VECTOR, VISITED
from palmette.types import Explanation, Part

__all__ = ["explain", "name_of"]

SHOWN, TERMS = 5, 3
"""Leaves that are listed when nothing says how many were visited, and terms of a leaf that the sentence names."""


def name_of(path: Sequence[int]) -> str:
    """A leaf or node by the children that lead to it: ``3.17``."""
    return ".".join(map(str, path))


def explain(
    router: Router,
    centres: Tensor,
    keywords: Terms,
    query: Mapping[str, NDArray[Any]],
    arrays: Mapping[str, NDArray[np.generic]],
    evidence: Mapping[str, Any],
) -> Explanation:
    """The cosine q·d as q·c + q·(d − c), where c is the mean of the leaf's documents: its theme, and the rest."""
    q, d = (np.asarray(a[VECTOR], np.float64).reshape(-1) for a in (query, arrays))  # [m] each
    own = np.ravel(arrays[LEAVES]).astype(np.int64)  # [l]
    count = int(evidence.get(VISITED, SHOWN))
    beam = router.ordered(query[VECTOR].reshape(1, -1), len(centres))
    leaves, chances = beam.leaves[0].tolist(), beam.probabilities[0].tolist()
    place = min(leaves.index(leaf) for leaf in own.tolist())
    leaf = leaves[place]
    score = float(np.float32(q @ d))
    theme = float(q @ centres[leaf].double().cpu().numpy())
    steps = [_facts(router, keywords, leaf, chance) for leaf, chance in zip(leaves, chances, strict=True)]
    found = {**steps[place], "place": place + 1}
    name = found["leaf"]
    parts = [
        Part(f"theme of leaf {name}", theme, found),
        Part("the document's own", score - theme, {}),
    ]
    about = f" ({', '.join(found['keywords'][:TERMS])})" if found["keywords"] else ""
    text = (
        f"cosine {score:.3f}: {theme:.3f} by the theme of its leaf {name}{about}, {score - theme:.3f} by itself; "
        f"the question goes there with {chances[place]:.0%}, as its {_ordinal(place + 1)} leaf"
    )
    detail: dict[str, Any] = {"leaf": name, "path": found["path"], "leaves": steps[: max(count, 1)]}
    if VISITED in evidence:
        detail[VISITED] = count or None
        text += f" of {count:,} visited" if count else ""
    return Explanation(score, parts, text, detail)


def _facts(router: Router, keywords: Terms, leaf: int, chance: float) -> dict[str, Any]:
    path = router.path_of(leaf)
    name = name_of(path)
    words = [term for term, _ in keywords.get(name, ())]
    return {"leaf": name, "path": list(path), "probability": chance, "keywords": words}


def _ordinal(place: int) -> str:
    ending = "th" if 10 <= place % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"
