"""Documents as rows of the database, and back."""

from __future__ import annotations

import json
from typing import NamedTuple

from palmette.errors import InputError, PalmetteError
from palmette.store.conditions import Scalar, flatten
from palmette.types import Document, Metadata

__all__ = ["COLUMNS", "Row", "document_of", "is_whole", "row_of", "values_of"]

COLUMNS = "id, text, metadata, fields, payload"
_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def document_of(id: str, text: str, *parts: str) -> Document:
    """The document in a row of these columns."""
    return Document(id, text, *map(json.loads, parts))


def is_whole(digest: str, *row: str) -> bool:
    """Whether a row of these columns is the document that it was written as."""
    try:
        return document_of(*row).digest == digest
    except (ValueError, TypeError, PalmetteError):  # no JSON, no mapping, no document
        return False


class Row(NamedTuple):
    """A document as it is stored."""

    id: str
    text: str
    metadata: str
    fields: str
    payload: str
    digest: str
    values: list[tuple[str, Scalar]]


def row_of(document: Document) -> Row:
    """A document as a row; raises for what cannot be stored."""
    if not isinstance(document, Document):
        raise InputError(f"put takes Document objects, got {type(document).__name__}: {document!r:.100}")
    digest = document.digest  # raises for what is not JSON
    stored = {"id": document.key, "text": document.text}
    for name in ("metadata", "fields", "payload"):
        stored[name] = _to_json(dict(getattr(document, name)))
    for name, text in stored.items():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"document {document.id!r}: its {name} holds half of a surrogate pair at position {error.start}; "
                "clean it with text.encode('utf-8', 'replace').decode()"
            ) from error
    return Row(**stored, digest=digest, values=values_of(document.metadata))


def values_of(metadata: Metadata) -> list[tuple[str, Scalar]]:
    """The (name, value) pairs by which a document can be filtered."""
    return [
        (name, int(one) if isinstance(one, bool) else one)
        for name, some in flatten(metadata).items()
        for one in some
    ]
