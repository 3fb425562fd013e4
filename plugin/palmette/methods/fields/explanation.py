"""Why a document answers: the field that matched, what each field adds, and the words that did it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from palmette.data.unlabelled import sentences
from palmette.methods.fields.config import FieldsConfig, FieldsSearch
from palmette.methods.fields.searching import field_weights
from palmette.search.probe import Floats
from palmette.types import Explanation, Part

__all__ = ["explanation", "passage"]

SHOWN = 12
"""Sentences of a long field among which the one that matches is looked for."""
_LONG = 200
"""Characters up to which a field's text is shown whole."""

Texts = Mapping[str, str]


def explanation(
    config: FieldsConfig,
    options: FieldsSearch,
    query: Floats,
    fields: Floats,
    weights: Floats,
    aggregate: Floats,
    texts: Texts,
    matched: Callable[[str], str],
) -> Explanation:
    """Of one document for one query.

    Args:
        config: The fields.
        options: Of the search.
        query: [d].
        fields: [F, d] the document's vectors, as stored.
        weights: [F] of the aggregate.
        aggregate: [d].
        texts: What stands in each field, where the document is at hand.
        matched: What of a long text is nearest to the query.
    """
    names, similarities = config.order, fields @ query  # [F]
    detail: dict[str, Any] = {
        "similarities": dict(zip(names, similarities.tolist(), strict=True)),
        "weights": dict(zip(names, weights.tolist(), strict=True)),
    }
    counted = field_weights(config, options)
    there = (counted > 0) & (similarities != 0)  # a vector of zeros is a field that the document lacks
    there = there if there.any() else counted > 0
    weighted = np.where(there, counted * similarities, -np.inf)
    best = int(weighted.argmax())
    # What an empty field says are the fields that it sees.
    seen = config.ancestors[best].tolist()
    filled = [name for name, sees in zip(names, seen, strict=True) if sees and texts.get(name)]
    told = names[best] if names[best] in filled else next(reversed(filled), "")
    text = matched(texts[told]) if told else ""
    detail |= {"field": names[best], "text": text}
    quoted = f": {text!r}" if text else ""
    if options.by == "aggregate":
        score = float(aggregate @ query)
        parts = _shares(names, weights, fields, similarities, score, unit=config.similarity == "cosine")
        heaviest = names[int(np.abs([part.value for part in parts[: len(names)]]).argmax())]
        said = f"similarity of all fields {score:.3f}, most of it from {heaviest}; nearest alone is {names[best]}"
        return Explanation(score, parts, f"{said}{quoted}", detail)
    parts = _steps(config, names, similarities, float(counted[best]), best)
    share = options.share
    said = f"{names[best]} matches with {weighted[best]:.3f}{quoted}"
    if share:
        whole = float(aggregate @ query)
        shares = _shares(names, weights, fields, similarities, whole, unit=config.similarity == "cosine")
        parts = _blended(parts, shares, share)
        said += f"; all fields together with {whole:.3f}"
    return Explanation(sum(part.value for part in parts), parts, said, detail)


def _blended(best: Sequence[Part], all_together: Sequence[Part], share: float) -> list[Part]:
    """What each field adds to the best field's similarity and to that of the aggregate, in their shares."""
    values: dict[str, float] = {}
    details: dict[str, dict[str, Any]] = {}
    for parts, counts in ((best, 1 - share), (all_together, share)):
        for part in parts:
            values[part.name] = values.get(part.name, 0.0) + counts * part.value
            details[part.name] = {**details.get(part.name, {}), **part.detail}
    return [Part(name, value, details[name]) for name, value in values.items()]


def _shares(
    names: Sequence[str], weights: Floats, fields: Floats, similarities: Floats, score: float, *, unit: bool
) -> list[Part]:
    """What each field adds to the similarity of the aggregate: w_f h_f · q, over the length of the sum."""
    length = float(np.linalg.norm(weights @ fields)) if unit else 1.0
    values = weights * similarities / max(length, 1e-12)
    parts = [
        Part(name, float(value), {"similarity": float(similarity), "weight": float(weight)})
        for name, value, similarity, weight in zip(names, values, similarities, weights, strict=True)
    ]
    rest = score - sum(part.value for part in parts)
    return [*parts, Part("rounding of stored vectors", rest)] if abs(rest) > 1e-7 else parts


def _steps(
    config: FieldsConfig, names: Sequence[str], similarities: Floats, counts: float, best: int
) -> list[Part]:
    """The similarity of the field that matched, times what it counts.

    With a cascade it is split into what each field up to it adds to the ones before.
    """
    alone = config.reads_whole and best == len(names) - 1
    if config.attention != "triangular" or config.sees or alone:
        own = float(similarities[best])
        return [Part(names[best], counts * own, {"similarity": own})]
    before = np.concatenate([[0.0], similarities[:best]])
    return [
        Part(name, counts * float(own - earlier), {"similarity": float(own)})
        for name, own, earlier in zip(names, similarities[: best + 1], before, strict=False)
    ]


def passage(text: str, nearest: Callable[[Sequence[str]], int]) -> str:
    """The text if it is short, else its sentence that ``nearest`` chooses."""
    if len(text) <= _LONG:
        return text
    pieces = [text[start:end].strip() for start, end in sentences(text)] or [text]
    if len(pieces) == 1 and ", " in text:  # a list of attributes
        words = text.split(", ")
        pieces = [", ".join(words[at : at + 6]) for at in range(0, len(words), 6)]
    chosen = pieces[nearest(pieces[:SHOWN])]
    return chosen if len(chosen) <= _LONG else f"{chosen[: _LONG - 1]}…"
