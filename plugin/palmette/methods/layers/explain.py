"""Explanation of a hit: similarity at every layer, the layer that found it, the query's words in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from palmette.arrays import Floats
from palmette.methods.layers.config import LayersSearch
from palmette.types import Explanation, Part


def explain_layers(
    queries: Floats,
    weights: Floats,
    vector: Floats,
    layers: Sequence[int],
    options: LayersSearch,
    evidence: Mapping[str, Any],
) -> Explanation:
    """Parts of one document's score.

    A fused score is the weighted mean of the layers' similarities: each adds its share. In the other orders the score
    is the similarity at the layer that found the document; without a search behind it, the highest.

    Args:
        queries: [L, d] query of each layer.
        weights: [L] weights of the layers.
        vector: [d] of the document.
        layers: Numbers of the layers.
        options: Of the search.
        evidence: ``layer`` that found the document, and which ``words`` of the query it has.
    """
    similar = (queries @ vector).astype(float).tolist()  # [L]
    finder = int(evidence.get("layer", 0)) or None
    if options.order == "fused":
        parts = [
            Part(f"layer {layer}", float(weight * value), {"similarity": value, "weight": float(weight)})
            for layer, weight, value in zip(layers, weights, similar, strict=True)
        ]
        how = "ranked highest by layer {}"
    else:
        place = layers.index(finder) if finder is not None else int(np.argmax(similar))
        parts = [Part(f"layer {layers[place]}", similar[place], {"layer": layers[place]})]
        how = "found by layer {} first"
    score = sum(part.value for part in parts)
    detail: dict[str, Any] = {
        "found_by": finder,
        "similarity": {str(layer): value for layer, value in zip(layers, similar, strict=True)},
    }
    values = ", ".join(f"{layer}: {value:.2f}" for layer, value in detail["similarity"].items())
    text = f"score {score:.3f}{(finder and '; ' + how.format(finder)) or ''}; similarity by layer {values}"
    if (words := evidence.get("words")) is not None:
        detail["words"] = {word: bool(held) for word, held in words.items()}
        held = [word for word, there in words.items() if there]
        text += f"; {len(held)} of {len(words)} words of the question" + (
            (held and f" ({', '.join(held)})") or ""
        )
    return Explanation(score, parts, text, detail)
