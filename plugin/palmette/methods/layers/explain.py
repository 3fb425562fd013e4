"""Explanation of a hit: similarity at every layer, the layer that found it, the query's words in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from palmette.arrays import Floats
from palmette.types import Explanation, Part


def explain_layers(
    queries: Floats, weights: Floats, vector: Floats, layers: Sequence[int], evidence: Mapping[str, Any]
) -> Explanation:
    """Parts of a document's score, given the layers' queries [L, d] and weights [L], and the document's vector [d].

    A score is the weighted mean of the layers' similarities: each adds its share. In layer order the text names the
    layer that contributed the document, else the one whose query is nearest.
    """
    similar = (queries @ vector).astype(float).tolist()  # [L]
    parts = [
        Part(f"layer {layer}", float(weight * value), {"similarity": value, "weight": float(weight)})
        for layer, weight, value in zip(layers, weights, similar, strict=True)
    ]
    finder, how = layers[int(np.argmax(similar))], "nearest to layer {}"
    if "layer" in evidence:
        finder, how = int(evidence["layer"]), "found by layer {} first"
    score = sum(part.value for part in parts)
    by_layer = dict(zip(map(str, layers), similar, strict=True))
    detail: dict[str, Any] = {"found_by": finder, "similarity": by_layer}
    values = ", ".join(f"{layer}: {value:.2f}" for layer, value in by_layer.items())
    found = f"; {how.format(finder)}"
    text = f"score {score:.3f}{found}; similarity by layer {values}"
    if (words := evidence.get("words")) is not None:
        detail["words"] = {word: bool(there) for word, there in words.items()}
        held = [word for word, there in words.items() if there]
        text += f"; {len(held)} of {len(words)} words of the question"
        text += f" ({', '.join(held)})" if held else ""
    return Explanation(score, parts, text, detail, brief=found.removeprefix("; "))
