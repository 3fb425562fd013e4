"""LangChain documents and palmette's, one for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from langchain_core.documents import Document

if TYPE_CHECKING:
    from palmette.types import Document as Stored
    from palmette.types import Hit

__all__ = ["from_hit", "from_stored"]

EXPLANATION = "explanation"
"""Metadata key of an explanation that was asked for."""


def from_stored(document: Stored) -> Document:
    """A stored document, as it was given; one of fields alone has them as its text."""
    return Document(id=document.id, page_content=document.content, metadata=_own(document.metadata))


def from_hit(hit: Hit, score_key: str | None, explain: bool) -> Document:
    """A document found, with score and explanation in its metadata, over what it may have there itself."""
    document = from_stored(hit.document)
    if score_key is not None:
        document.metadata[score_key] = float(hit.score)
    if explain:
        document.metadata[EXPLANATION] = hit.explain().to_dict()
    return document


def _own(value: Any) -> Any:
    """A copy that shares nothing with other results."""
    if isinstance(value, Mapping):
        return {key: _own(inner) for key, inner in value.items()}
    return [_own(inner) for inner in value] if isinstance(value, list | tuple) else value
