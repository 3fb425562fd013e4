"""Explanation of a hit: the field that matched, each field's addition to the score, and the nearest words.

    score = share · (q · aggregate)            +  (1 − share) · max_f factor_f (q · h_f)
          = share · Σ_f w_f (q · h_f) / ‖Σ wh‖ +  (1 − share) · Σ_{f ≤ best} (steps below)

A field's vector describes the document down to it, so the similarity of the best field is split into steps. For the
similarities title .50, brand .62, description .71 (best): title .50, brand +.12, description +.09.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from palmette.arrays import Floats
from palmette.encoder.sentences.splitting import split_sentences
from palmette.machine.text import shorten
from palmette.methods.fields.config import FieldsConfig, FieldsSearch
from palmette.methods.fields.search import blend, part_weights
from palmette.types import Explanation, Part

_SENTENCES = 12  # number of sentences of a long field compared with the query
_LONG = 200  # number of characters up to which a field is quoted in full


def explain(
    config: FieldsConfig,
    options: FieldsSearch,
    query: Floats,
    fields: Floats,
    weights: Floats,
    aggregate: Floats,
    texts: Mapping[str, str],
    nearest: Callable[[Sequence[str]], int],
) -> Explanation:
    """Explain the score of one document.

    Args:
        config: Fields and their order.
        options: Options of the search.
        query: [d] query vector.
        fields: [F, d] vectors of the document's fields.
        weights: [F] weights of the fields in the aggregate.
        aggregate: [d] aggregate vector of the document.
        texts: Text of each field.
        nearest: Chooses the text nearest to the query, by its position.
    """
    names, similarities, factors = config.order, fields @ query, part_weights(config, options)
    counted = (factors > 0) & (similarities != 0)  # zero vectors stand for missing fields
    counted = counted if counted.any() else factors > 0
    weighted = np.where(counted, factors * similarities, -np.inf)
    best = int(weighted.argmax())
    # An empty field has the vector of the fields it attends to: quote the last of these that has a text.
    attended_fields = zip(names, config.attended[best], strict=True)
    filled = [name for name, attended in attended_fields if attended and texts.get(name)]
    named = names[best] if names[best] in filled else next(reversed(filled), "")
    text = _passage(texts[named], nearest) if named else ""
    quoted = f": {text!r}" if text else ""
    share, whole = blend(config, options), float(aggregate @ query)
    merged: dict[str, Part] = {}
    steps = _steps(config, similarities, float(factors[best]), best)
    for summands, counts in ((steps, 1 - share), (_shares(config, weights, fields, similarities, whole), share)):
        for part in summands if counts else ():
            known = merged.get(part.name, Part(part.name, 0.0))
            value, facts = known.value + counts * part.value, {**known.detail, **part.detail}
            merged[part.name] = Part(part.name, value, facts)
    parts = list(merged.values())
    if options.by == "aggregate":
        heaviest = max(parts[: len(names)], key=lambda part: abs(part.value)).name
        said = f"similarity of all fields {whole:.3f}, most of it from {heaviest}; nearest alone is {names[best]}"
    else:
        said = f"{names[best]} matches with {weighted[best]:.3f}"
    also = f"; all fields together with {whole:.3f}" if share and options.by != "aggregate" else ""
    detail = {
        "similarities": dict(zip(names, similarities.tolist(), strict=True)),
        "weights": dict(zip(names, weights.tolist(), strict=True)),
        "field": names[best],
        "text": text,
    }
    score = whole if options.by == "aggregate" else sum(part.value for part in parts)
    brief = f"nearest field {names[best]}{quoted}"
    return Explanation(score, parts, f"{said}{quoted}{also}", detail, brief=brief)


def _shares(config: FieldsConfig, weights: Floats, fields: Floats, similarities: Floats, score: float) -> list[Part]:
    """Split the aggregate's similarity: w_f (h_f · q) / ‖Σ_f w_f h_f‖ for each field."""
    length = float(np.linalg.norm(weights @ fields)) if config.similarity == "cosine" else 1.0
    values = weights * similarities / max(length, 1e-12)
    columns = (config.order, values.tolist(), similarities.tolist(), weights.tolist())
    parts = [
        Part(name, value, {"similarity": similarity, "weight": weight})
        for name, value, similarity, weight in zip(*columns, strict=True)
    ]
    rest = score - sum(part.value for part in parts)
    return [*parts, Part("rounding of stored vectors", rest)] if abs(rest) > 1e-7 else parts


def _steps(config: FieldsConfig, similarities: Floats, factor: float, best: int) -> list[Part]:
    """Split the best field's similarity into the steps of the fields it attends to, in order."""
    alone = config.attention == "full" or (config.reads_whole and best == len(config.order) - 1)
    chosen = slice(best if alone else 0, best + 1)
    steps = np.diff(similarities[chosen].astype(np.float64), prepend=0.0).tolist()
    return [
        Part(name, factor * step, {"similarity": float(own)})
        for name, step, own in zip(config.order[chosen], steps, similarities[chosen], strict=True)
    ]


def _passage(text: str, nearest: Callable[[Sequence[str]], int]) -> str:
    """Return a short text in full, and of a long one the sentence nearest to the query."""
    if len(text) <= _LONG:
        return text
    pieces = [text[start:end] for start, end in split_sentences(text)] or [text]
    if len(pieces) == 1 and ", " in text:  # a list of attributes
        words = text.split(", ")
        pieces = [", ".join(words[at : at + 6]) for at in range(0, len(words), 6)]
    return shorten(pieces[nearest(pieces[:_SENTENCES])], _LONG)
