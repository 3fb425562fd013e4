"""Whether what is near in the tree is near in meaning (figures 4 and 20 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from palmette.methods.tree.branches import Branches

__all__ = ["Congruence", "of_nodes", "of_texts"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Congruence:
    """Mean cosines by a distance in the tree.

    Attributes:
        by: What the distance is.
        steps: Distance, mean cosine and number of pairs.
        average: Mean cosine of all pairs, whatever their distance.
    """

    by: str
    steps: tuple[tuple[int, float, int], ...]
    average: float


def of_nodes(vectors: Floats, names: list[str]) -> Congruence:
    """Cosine of split nodes and their descendants, by the turns between them.

    Args:
        vectors: [N, w] what each split node asks of a text: its hyperplane's normal, or its embedding.
        names: [N] the nodes' names.
    """
    unit = _unit(vectors)
    place = {name: at for at, name in enumerate(names)}
    steps = []
    for turns in range(1, max(map(len, names), default=0) + 1):
        pairs = [(at, place[name[:-turns]]) for at, name in enumerate(names) if len(name) >= turns]
        low, high = np.array(pairs).T  # [P], [P]
        steps.append((turns, float(np.einsum("pw,pw->p", unit[low], unit[high]).mean()), len(pairs)))
    return Congruence("turns between a node and its descendant", tuple(steps), _average(unit))


def of_texts(vectors: Floats, leaves: Ints, branches: Branches) -> Congruence:
    """Cosine of texts, by the level of their lowest common ancestor.

    Args:
        vectors: [n, d] embeddings.
        leaves: [n] place of the leaf each text falls into.
        branches: The tree.
    """
    unit = _unit(vectors)
    way = branches.ways()[leaves]  # [n, D + 1]
    deepest = int(branches.level.max())
    totals, counts = np.zeros(deepest + 1), np.zeros(deepest + 1, np.int64)
    for row in range(len(unit) - 1):
        cosines = unit[row + 1 :] @ unit[row]
        met = ((way[row + 1 :] == way[row]) & (way[row] >= 0)).sum(
            1
        ) - 1  # [rest] level of the common ancestor
        totals += np.bincount(met, cosines, deepest + 1)
        counts += np.bincount(met, minlength=deepest + 1)
    steps = tuple(
        (level, float(totals[level] / counts[level]), int(counts[level]))
        for level in np.flatnonzero(counts).tolist()
    )
    return Congruence("level of the lowest common ancestor of two texts", steps, _average(unit))


def _unit(vectors: Floats) -> Floats:
    unit: Floats = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit


def _average(unit: Floats) -> float:
    """Mean cosine of all pairs: ‖Σ x‖² counts each pair twice, and each text with itself once."""
    n = len(unit)
    whole = unit.sum(0, dtype=np.float64)
    return float((whole @ whole - n) / (n * (n - 1))) if n > 1 else 1.0
