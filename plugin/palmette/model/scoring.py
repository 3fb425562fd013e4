"""Documents scored without an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from palmette.lexical.given import shares_among
from palmette.lexical.mix import Mix
from palmette.lexical.tokens import analyser_of
from palmette.search.arrays import ArrayView
from palmette.types import Document

if TYPE_CHECKING:
    from palmette.model.model import Model

__all__ = ["scores_of"]


def scores_of(
    model: Model,
    query: str,
    documents: Sequence[Document],
    options: Any,
    mix: Mix | None,
    language: str | None,
) -> list[float]:
    """The score of each document, in the order given.

    Documents of one content are encoded once: in two places of a batch their last bits could differ.
    """
    if not documents:
        return []
    contents = [(document.text, model.reads(document)) for document in documents]
    distinct = dict(zip(contents, documents, strict=True))
    view = ArrayView(model.encode_documents(list(distinct.values())))
    found = model.search(view, model.encode_queries([query], options), len(distinct), options)
    scores = np.full(len(distinct), -np.inf, np.float32)
    scores[found.keys[0]] = found.scores[0]
    if mix is not None:
        texts = [document.all_text for document in distinct.values()]
        scores = mix.score(scores, shares_among(analyser_of(language), query, texts)).astype(np.float32)
    listed = dict(zip(distinct, scores.tolist(), strict=True))
    return [listed[content] for content in contents]
