"""Maximal marginal relevance: hits that are relevant and differ from each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from palmette.config import check_range
from palmette.model import Model
from palmette.types import Hit


def relevance(score: float) -> float:
    """Relevance of a score, 0 … 1."""
    return min(1.0, max(0.0, float(score)))


def diversify(model: Model, hits: Sequence[Hit], k: int, weight: float) -> list[Hit]:
    """Choose ``k`` hits one by one, each for ``weight`` · relevance − (1 − ``weight``) · similarity.

    Similarity is the largest cosine with a hit chosen before, of the encoder's vectors; the texts are encoded again.
    See Carbonell and Goldstein (1998), "The use of MMR".
    """
    check_range("maximal marginal relevance", "weight", weight, 0, 1)
    if not hits:
        return []
    vectors = model.encoder.encode([hit.document.content for hit in hits])
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)  # [n, d]
    relevant = weight * np.array([relevance(hit.score) for hit in hits])
    similar, chosen = np.full(len(hits), -1.0), []
    for _ in range(min(k, len(hits))):
        gain = relevant - (1 - weight) * similar
        gain[chosen] = -np.inf
        chosen.append(int(gain.argmax()))
        similar = np.maximum(similar, vectors @ vectors[chosen[-1]])
    return [hits[row] for row in chosen]
