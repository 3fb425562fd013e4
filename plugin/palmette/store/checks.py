"""Checks of documents before anything is encoded: what an index cannot store raises, and names the document."""

from __future__ import annotations

import json
from collections.abc import Mapping

from palmette.errors import InputError, shown
from palmette.store.filters import flatten
from palmette.types import LONGEST_DOCUMENT, Document

_to_json = json.JSONEncoder(ensure_ascii=False).encode


def check_storable(document: Document) -> str:
    """Raise for a document that no index stores: too long, no JSON, no characters; returns its digest."""
    if (size := len(document.all_text)) > LONGEST_DOCUMENT:
        raise InputError(
            f"document {shown(document.key)} has {size:,} characters, and may have {LONGEST_DOCUMENT:,}: nothing was "
            "added; split it into parts"
        )
    digest = document.digest  # raises where metadata is not JSON
    parts = {name: value for name in ("metadata", "fields", "payload") if (value := getattr(document, name))}
    texts = {name: _to_json(dict(value)) for name, value in parts.items()}
    check_characters(document.key, {"id": document.key, "text": document.text, **texts})
    try:
        flatten(document.metadata)
    except InputError as error:
        raise InputError(f"document {shown(document.key)}: {error}") from error
    return digest


def check_characters(id: str, texts: Mapping[str, str]) -> None:
    """Raise if a text of a document, by its name, holds half of a surrogate pair, which UTF-8 cannot encode."""
    for name, text in texts.items():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"document {shown(id)}: its {name} holds half of a surrogate pair at position {error.start}; "
                "clean it with text.encode('utf-8', 'replace').decode()"
            ) from error
