"""How full the leaves of an index are, and what to do when adds have unbalanced it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from palmette.methods.paths.search import LEAVES

if TYPE_CHECKING:
    from palmette.methods.paths.config import PathsConfig
    from palmette.store.backend import View

__all__ = ["filled", "load", "unbalanced"]

NOTICED, WORSE = 2.0, 1.5
"""Expected over ideal documents per leaf from which an index counts as unbalanced: at all, and against training."""
ENOUGH = 10
"""Documents per leaf below which chance alone fills leaves unequally."""


def load(sizes: NDArray[np.int64]) -> dict[str, float]:
    """How full leaves [L] are.

    ``expected`` is the number of documents in the leaf of a document drawn at random, Σ pᵢcᵢ (section 4.6), ``ideal``
    what it would be if all were equally full, ``worst`` that of the fullest, ``empty`` how many hold none.
    """
    counts = sizes.astype(np.float64)
    total = counts.sum()
    return {
        "expected": round(float((counts**2).sum() / max(1.0, total)), 2),
        "ideal": round(float(total / len(counts)), 2),
        "worst": float(counts.max()),
        "empty": float((counts == 0).sum()),
    }


def filled(view: View, config: PathsConfig) -> dict[str, float]:
    """The same of an index's documents."""
    sizes = np.zeros(config.leaves, np.int64)
    held = view.sizes(LEAVES)
    sizes[: len(held)] = held
    return load(sizes)


def unbalanced(now: Mapping[str, float], trained: Mapping[str, float]) -> str | None:
    """What to say of an index that has lost its balance."""
    if now["ideal"] < ENOUGH:
        return None
    ratio = now["expected"] / now["ideal"]
    before = trained["expected"] / trained["ideal"] if trained.get("ideal") else 1.0
    if ratio < max(NOTICED, WORSE * before):
        return None
    return (
        f"the leaves have become unequal: a document shares its leaf with {now['expected']:,.0f} others on average, "
        f"{ratio:.1f} times as many as in equal leaves ({before:.1f} when the model was trained), so searches "
        "visit more documents or find less. Train again on the documents of now and re-route them: "
        "index.copy_to(path, model=PathsModel.fit(...))"
    )
