"""What users hand to an index, checked before anything is done with it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.data import iter_documents, to_document
from palmette.errors import DuplicateIdError, InputError
from palmette.types import Document

__all__ = [
    "check_count",
    "check_documents",
    "check_embeddings",
    "check_ids",
    "check_path",
    "check_queries",
    "check_threshold",
    "unique",
]

Embeddings = NDArray[np.floating[Any]]
Texts = str | tuple[str, ...]
"""A query; or several texts that are one query together, the mean of what a model makes of each."""


def check_queries(given: Sequence[Any]) -> Sequence[str]:
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
    if given.dtype.kind not in "fiu":
        raise InputError(
            f"query embeddings must be numbers, got an array of {given.dtype}; give texts as a list of str"
        )
    vectors = np.atleast_2d(np.asarray(given, np.float32))
    if vectors.ndim != 2 or vectors.shape[1] != width or not len(vectors) or not np.isfinite(vectors).all():
        raise InputError(f"query embeddings must be finite and [Q, {width}], got {np.shape(given)}")
    return vectors


def check_count(name: str, value: object) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def check_threshold(value: object) -> float | None:
    """A number, or ``None``."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or value != value:
        raise InputError(f"threshold must be a number or None, got {value!r}")
    return float(value)


def check_path(value: object) -> Path:
    """A path, made absolute: what is opened stays what it is when the working directory changes."""
    if not isinstance(value, str | os.PathLike) or not str(value) or "\0" in str(value):
        raise InputError(f"a path must be a str or a Path that names something, got {value!r:.80}")
    return Path(value).expanduser().absolute()


def check_ids(ids: Iterable[str]) -> list[str]:
    """A list of str, not one str."""
    if isinstance(ids, str):
        raise InputError(f"ids must be a list, got the str {ids!r}: write [{ids!r}]")
    if not isinstance(ids, Iterable):
        raise InputError(f"ids must be a list of str, got {type(ids).__name__}")
    listed: list[object] = list(ids)
    if bad := [id for id in listed if not isinstance(id, str)]:
        raise InputError(f"ids are str, got {bad[0]!r}")
    return [str(id) for id in listed]


def check_documents(given: object) -> list[Document]:
    """Documents of any kind that :func:`palmette.data.to_document` knows, or a path to read them from."""
    if isinstance(given, str | Path):
        return list(iter_documents(given))
    if isinstance(given, Document | Mapping | bytes) or not isinstance(given, Iterable):
        raise InputError(
            f"documents must be a list (or a path to read them from), got one {type(given).__name__}: write [document]"
        )
    documents = []
    for position, item in enumerate(given):
        try:
            documents.append(to_document(item))
        except InputError as error:
            raise type(error)(f"document {position}: {error}") from error
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
