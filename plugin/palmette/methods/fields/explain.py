"""Explanation of a hit: the field that matched, what each field adds to the score, and the nearest words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from palmette.arrays import Floats
from palmette.encoder.splitting import split_sentences
from palmette.methods.fields.config import FieldsConfig, FieldsSearch
from palmette.methods.fields.search import blend, part_weights
from palmette.types import Explanation, Part

_SENTENCES = 12  # sentences of a long field that are compared with the query
_LONG = 200  # characters up to which a field's text is quoted whole


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
    """Explanation of one document for a query [d]: vectors [F, d], weights [F], aggregate [d], and texts by field.

    ``nearest`` chooses the text that is nearest to the query.
    """
    names, similarities, factors = config.order, fields @ query, part_weights(config, options)
    counted = (factors > 0) & (similarities != 0)  # a vector of zeros is a field that the document lacks
    counted = counted if counted.any() else factors > 0
    weighted = np.where(counted, factors * similarities, -np.inf)
    best = int(weighted.argmax())
    # An empty field repeats the fields that it attends to.
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
    """Parts of the aggregate's similarity: w_f h_f · q over the length of the sum."""
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
    """Similarity of the field that matched; in a cascade, what each field up to it adds to the ones before."""
    alone = config.attention in ("diagonal", "full") or (config.reads_whole and best == len(config.order) - 1)
    chosen = slice(best if alone else 0, best + 1)
    steps = np.diff(similarities[chosen].astype(np.float64), prepend=0.0).tolist()
    return [
        Part(name, factor * step, {"similarity": float(own)})
        for name, step, own in zip(config.order[chosen], steps, similarities[chosen], strict=True)
    ]


def _passage(text: str, nearest: Callable[[Sequence[str]], int]) -> str:
    """Short text as it is, else its sentence that is nearest to the query."""
    if len(text) <= _LONG:
        return text
    pieces = [text[start:end] for start, end in split_sentences(text)] or [text]
    if len(pieces) == 1 and ", " in text:  # a list of attributes
        words = text.split(", ")
        pieces = [", ".join(words[at : at + 6]) for at in range(0, len(words), 6)]
    chosen = pieces[nearest(pieces[:_SENTENCES])]
    return chosen if len(chosen) <= _LONG else f"{chosen[: _LONG - 1]}…"
