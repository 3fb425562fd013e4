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
    finder, phrase = layers[int(np.argmax(similar))], "nearest to layer {}"
    if "layer" in evidence:
        finder, phrase = int(evidence["layer"]), "found by layer {} first"
    score = sum(part.value for part in parts)
    by_layer = dict(zip(map(str, layers), similar, strict=True))
    detail: dict[str, Any] = {"found_by": finder, "similarity": by_layer}
    values = ", ".join(f"{layer}: {value:.2f}" for layer, value in by_layer.items())
    suffix = f"; {phrase.format(finder)}"
    text = f"score {score:.3f}{suffix}; similarity by layer {values}"
    if (words := evidence.get("words")) is not None:
        detail["words"] = {word: bool(occurs) for word, occurs in words.items()}
        contained = [word for word, occurs in words.items() if occurs]
        text += f"; {len(contained)} of {len(words)} words of the question"
        text += f" ({', '.join(contained)})" if contained else ""
    return Explanation(score, parts, text, detail, brief=suffix.removeprefix("; "))
