"""LangChain documents to palmette's and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from langchain_core.documents import Document

from palmette.types import json_value

if TYPE_CHECKING:
    from palmette.types import Document as Stored
    from palmette.types import Hit

EXPLANATION = "explanation"
"""Metadata key of an explanation."""


def to_stored(documents: Iterable[Any]) -> list[Stored]:
    """Convert documents that are not blank, with dates, UUIDs, paths and NumPy's numbers in metadata as JSON."""
    from palmette.data import drop_blanks, to_documents

    kept = drop_blanks(documents, lambda document: str(getattr(document, "page_content", document)))
    return list(to_documents(map(_plain, kept)))


def _plain(document: Any) -> Any:
    if not isinstance(document, Document):
        return document
    return document.model_copy(update={"metadata": json_value(document.metadata)})


def from_stored(document: Stored) -> Document:
    """Convert a stored document; the text of a document without one is its fields."""
    return Document(id=document.id, page_content=document.content, metadata=_copy(document.metadata))


def from_hit(hit: Hit, score_key: str | None, explain: bool) -> Document:
    """Convert a hit; score and explanation replace metadata of the same names."""
    document = from_stored(hit.document)
    if score_key is not None:
        document.metadata[score_key] = float(hit.score)
    if explain:
        document.metadata[EXPLANATION] = hit.explain().to_dict()
    return document


def _copy(value: Any) -> Any:
    """Copy metadata, so that results share nothing."""
    if isinstance(value, Mapping):
        return {key: _copy(inner) for key, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list | tuple) else value
