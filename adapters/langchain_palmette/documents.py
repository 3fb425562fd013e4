"""Conversion of LangChain's documents to palmette's and back."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langchain_core.documents import Document

from palmette.types import CITATION, PLACE
from palmette.types.values import json_value

if TYPE_CHECKING:
    from palmette.types import Document as Stored
    from palmette.types import Hit

EXPLANATION = "explanation"
"""Metadata key of an explanation."""
PASSAGE = "passage"
"""Metadata key of a passage of a longer document: characters, lines, headings, number."""
COPIES = "copies"
"""Metadata key of the citations of passages with the same text."""


def to_stored(documents: Iterable[Any] | str | Path) -> list[Stored]:
    """Convert documents that are not blank, with dates, UUIDs, paths and NumPy's numbers in metadata as JSON.

    A path is read, as :func:`palmette.load_data` reads it.
    """
    from palmette.data import drop_blanks, iter_documents, to_documents

    if isinstance(documents, str | Path):
        return list(iter_documents(documents, passages=False))
    with_text = drop_blanks(documents, lambda document: str(getattr(document, "page_content", document)))
    return list(
        to_documents(
            document.model_copy(update={"metadata": json_value(document.metadata)})
            if isinstance(document, Document)
            else document
            for document in with_text
        )
    )


def from_stored(document: Stored) -> Document:
    """Convert a stored document, sharing nothing; the text of a document without one is its fields."""
    metadata = json_value(document.metadata)
    return Document(id=document.id, page_content=document.content, metadata=metadata)


def from_hit(hit: Hit, score_key: str | None, explain: bool, cite: bool = False) -> Document:
    """Convert a hit; score and explanation replace metadata of the same names.

    A passage of a longer document has its citation and place, unless its metadata have these names; with ``cite`` a
    document of one passage has them too.
    """
    document = from_stored(hit.document)
    document.page_content = hit.text
    is_part = hit.passage is not None and hit.passage.count > 1
    if cite or is_part:
        document.metadata = {CITATION: str(hit.citation), PLACE: hit.citation.to_dict()} | document.metadata
    if hit.passage is not None and is_part:
        document.metadata[PASSAGE] = hit.passage.to_dict()
    if hit.copies:
        document.metadata[COPIES] = [str(copy) for copy in hit.copies]
    if score_key is not None:
        document.metadata[score_key] = float(hit.score)
    if explain:
        document.metadata[EXPLANATION] = hit.explain().to_dict()
    return document
