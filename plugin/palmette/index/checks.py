"""What users hand to an index, checked before anything is done with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.errors import DuplicateIdError, InputError
from palmette.types import Document

__all__ = ["check_documents", "check_embeddings", "check_ids", "check_k", "check_queries", "unique"]

Embeddings = NDArray[np.floating[Any]]


def check_k(k: object) -> int:
    """A whole number of at least 1."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"k must be a whole number of at least 1, got {k!r}")
    return int(k)


def check_queries(given: Sequence[str]) -> Sequence[str]:
    """Texts with at least one word each."""
    if not isinstance(given, Sequence):
        raise InputError(
            f"a query is a str, a list of str or an array of embeddings, got {type(given).__name__}"
        )
    for text in given:
        if not isinstance(text, str):
            raise InputError(f"a query must be a str, got {type(text).__name__}: {text!r:.80}")
        if not text.strip():
            raise InputError("the query is empty: give it at least one word")
    return given


def check_embeddings(given: Embeddings, width: int) -> NDArray[np.float32]:
    """Finite vectors of an encoder's width: [Q, width], or one of them."""
    vectors = np.atleast_2d(np.asarray(given, np.float32))
    if vectors.ndim != 2 or vectors.shape[1] != width or not len(vectors) or not np.isfinite(vectors).all():
        raise InputError(f"query embeddings must be finite and [Q, {width}], got {np.shape(given)}")
    return vectors


def check_ids(ids: Iterable[str]) -> list[str]:
    """A list of str, not one str."""
    if isinstance(ids, str):
        raise InputError(f"ids must be a list, got the str {ids!r}: write [{ids!r}]")
    listed: list[object] = list(ids)
    if bad := [id for id in listed if not isinstance(id, str)]:
        raise InputError(f"ids are str, got {bad[0]!r}")
    return [str(id) for id in listed]


def check_documents(given: Iterable[Document | str]) -> list[Document]:
    """Documents, or texts that become documents; not one of them alone."""
    if isinstance(given, str | Document):
        raise InputError(f"documents must be a list, got one {type(given).__name__}: write [document]")
    documents = [Document(text=item) if isinstance(item, str) else item for item in given]
    for position, item in enumerate(documents):
        if not isinstance(item, Document):
            raise InputError(
                f"item {position} is a {type(item).__name__}, not a palmette.Document or a str: {item!r:.80}"
            )
    return documents


def unique(documents: Sequence[Document]) -> dict[str, Document]:
    """Documents by id; the same twice is one, one id with two contents is an error."""
    unique: dict[str, Document] = {}
    for document in documents:
        digest = document.digest  # raises where metadata is not JSON, before anything is written
        before = unique.setdefault(document.key, document)
        if before.digest != digest:
            raise DuplicateIdError(
                f"id {document.key!r} is given twice with different content: nothing was added"
            )
    return unique
