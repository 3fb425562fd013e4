"""Vectors that users have already, taken in without encoding the documents again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from palmette.encoder import Encoder
from palmette.errors import InputError
from palmette.search.probe import Floats
from palmette.types import Document

__all__ = ["document_vectors"]

LOOKED_AT = 8
"""Documents that are encoded to see whether the vectors are this encoder's."""
SAME = 0.98
"""Least cosine of a given vector and the encoder's; half precision and 8-bit codes stay well above it."""
LENGTHS = 0.02
"""How much their lengths may differ, as a share."""


def document_vectors(given: Any, documents: Sequence[Document], encoder: Encoder) -> Floats:
    """Vectors [N, d] of these documents: an array, a tensor, or a FAISS index that holds them in this order.

    A few documents are encoded and compared. Vectors of another length are scaled to 1, if that is the encoder's.
    """
    vectors = _array(given)
    if vectors.shape != (len(documents), encoder.dimension) or not np.isfinite(vectors).all():
        raise InputError(
            f"embeddings must be finite and [{len(documents)}, {encoder.dimension}], one row for each document in the "
            f"width of encoder {encoder.name!r}; got {vectors.shape}"
        )
    if not len(documents):
        return vectors
    looked = np.unique(np.linspace(0, len(documents) - 1, LOOKED_AT).astype(np.int64))
    made = encoder.encode([documents[row].content for row in looked.tolist()])
    lengths, own = np.linalg.norm(vectors, axis=1), np.linalg.norm(made, axis=1)
    if not lengths.all():
        row = int(lengths.argmin())
        raise InputError(f"the embedding of document {documents[row].key!r} is all zeros: encode it anew")
    cosines = (vectors[looked] * made).sum(axis=1) / (lengths[looked] * own)
    worst = int(cosines.argmin())
    if cosines[worst] < SAME:
        raise InputError(
            f"embeddings are not those of encoder {encoder.name!r}: of document {documents[int(looked[worst])].key!r} "
            f"they have a cosine of {cosines[worst]:.2f} with what it gives for that text; give them in the documents' "
            "order, made by the same model, prompt and token limit, or leave them out"
        )
    if np.abs(own - 1).max() < LENGTHS:
        scaled: Floats = (vectors / lengths[:, None]).astype(np.float32)
        return scaled
    if np.abs(lengths[looked] / own - 1).max() > LENGTHS:
        raise InputError(
            f"embeddings have other lengths than encoder {encoder.name!r} gives ({lengths[looked[0]]:.3g} instead of "
            f"{own[0]:.3g}): give them as the encoder made them, not normalised, or leave them out"
        )
    return vectors


def _array(given: Any) -> Floats:
    """float32 numbers of whatever holds vectors."""
    if hasattr(given, "reconstruct_n") and hasattr(given, "ntotal"):  # a FAISS index
        try:
            given = given.reconstruct_n(0, given.ntotal)
        except RuntimeError as error:
            raise InputError(f"this {type(given).__name__} cannot give its vectors back ({error})") from error
    if hasattr(given, "detach"):  # a tensor, wherever it lies
        given = given.detach().float().cpu().numpy()
    try:
        array = np.asarray(given, np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"embeddings must be an array [N, d] of numbers, got {type(given).__name__}"
        ) from error
    vectors: Floats = np.ascontiguousarray(array)
    return vectors
