"""Why a document answers: what each layer makes of it, who found it, and the question's words in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from palmette.methods.layers.config import LayersSearch
from palmette.search.probe import Floats
from palmette.types import Explanation, Part

__all__ = ["explanation"]


def explanation(
    queries: Floats,
    weights: Floats,
    vector: Floats,
    layers: Sequence[int],
    options: LayersSearch,
    evidence: Mapping[str, Any],
) -> Explanation:
    """Of one document for one question.

    A fused score is the weighted mean of the layers' similarities: each adds its share, and the one that ranks the
    document highest found it. In the other orders the score is the similarity at the layer that found the document;
    without a search behind it, the highest.

    Args:
        queries: [L, d] one for each layer.
        weights: [L] how much each counts.
        vector: [d] of the document.
        layers: Their numbers.
        options: Of the search.
        evidence: What it remembered: the ``layer``, and which ``words`` the document has.
    """
    similar = (queries @ vector).astype(float)  # [L]
    finder = int(evidence.get("layer", 0)) or None
    if options.order == "fused":
        parts = [
            Part(
                f"layer {layer}", float(weight * value), {"similarity": float(value), "weight": float(weight)}
            )
            for layer, weight, value in zip(layers, weights, similar, strict=True)
        ]
    else:
        place = layers.index(finder) if finder is not None else int(np.argmax(similar))
        parts = [Part(f"layer {layers[place]}", float(similar[place]), {"layer": layers[place]})]
    score = sum(part.value for part in parts)
    by_layer = {str(layer): float(value) for layer, value in zip(layers, similar, strict=True)}
    detail: dict[str, Any] = {"found_by": finder, "similarity": by_layer}
    how = "ranked highest by layer {}" if options.order == "fused" else "found by layer {} first"
    found = "" if finder is None else "; " + how.format(finder)
    values = ", ".join(f"{layer}: {value:.2f}" for layer, value in by_layer.items())
    text = f"score {score:.3f}{found}; similarity by layer {values}"
    if (words := evidence.get("words")) is not None:
        detail["words"] = {word: bool(held) for word, held in words.items()}
        held = [word for word, there in words.items() if there]
        text += f"; {len(held)} of {len(words)} words of the question" + (
            f" ({', '.join(held)})" if held else ""
        )
    return Explanation(score, parts, text, detail)
