"""Vectors that users have already, taken in without encoding the documents again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    """Vectors [N, d] of these documents: an array or a tensor in their order, or a FAISS index.

    A FAISS index has them in this order too, or under the documents' ids, where these are numbers: ids from 0 to N − 1
    are places, whatever the documents are called. A few documents are encoded and compared. Vectors of another length
    are scaled to 1, if that is the encoder's.
    """
    vectors = _array(given, documents)
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


def _array(given: Any, documents: Sequence[Document]) -> Floats:
    """float32 numbers of whatever holds vectors."""
    faiss: Any = sys.modules.get("faiss")  # whoever has an index of it has imported it
    if faiss is not None and isinstance(given, faiss.Index):
        given = _of_faiss(given, documents)
    if hasattr(given, "detach"):  # a tensor, wherever it lies
        given = given.detach().float().cpu().numpy()
    try:
        array = np.asarray(given, np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"embeddings must be an array [N, d] of numbers, or a FAISS index of such; got {type(given).__name__}"
        ) from error
    vectors: Floats = np.ascontiguousarray(array)
    return vectors


def _of_faiss(index: Any, documents: Sequence[Document]) -> Floats:
    """The vectors of an index, in the documents' order."""
    kind = type(index).__name__
    if index.ntotal != len(documents):
        raise InputError(
            f"this {kind} holds {index.ntotal} vectors, and there are {len(documents)} documents: give one for each"
        )
    try:
        ids, vectors = _held(index)
    except (RuntimeError, IndexError) as error:
        raise InputError(
            f"this {kind} cannot give its vectors back ({error}): give them as an array, or leave them out"
        ) from error
    places = np.argsort(ids)
    if not np.array_equal(ids[places], np.arange(len(ids))):
        known = {str(id): place for place, id in enumerate(ids.tolist())}
        lost = next((document.key for document in documents if document.key not in known), None)
        if lost is not None:
            raise InputError(
                f"this {kind} has ids of its own ({', '.join(list(known)[:3])}, …), and none for document {lost!r}: "
                f"they must be the documents' ids, or places from 0 to {len(ids) - 1}; else give the vectors as an "
                "array in the documents' order"
            )
        places = np.array([known[document.key] for document in documents])
    return vectors[places]


def _held(index: Any) -> tuple[NDArray[np.int64], Floats]:
    """Ids [N] and vectors [N, d], taken out one by one: an error within a loop of FAISS's own ends the process."""
    faiss: Any = sys.modules["faiss"]
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexIDMap):
        ids, vectors = _held(index.index)
        return faiss.vector_to_array(index.id_map)[ids], vectors
    if isinstance(index, faiss.IndexPreTransform):
        ids, vectors = _held(index.index)
        for step in reversed(range(index.chain.size())):
            vectors = faiss.downcast_VectorTransform(index.chain.at(step)).reverse_transform(vectors)
        return ids, vectors
    vectors = np.empty((index.ntotal, index.d), np.float32)
    if not isinstance(index, faiss.IndexIVF):
        for place, row in enumerate(vectors):
            index.reconstruct(place, row)
        return np.arange(len(vectors)), vectors
    found, lists = [np.empty(0, np.int64)], index.invlists
    rows = iter(vectors)
    for number in range(lists.nlist):
        if size := lists.list_size(number):
            held = lists.get_ids(number)
            found.append(faiss.rev_swig_ptr(held, size).copy())
            lists.release_ids(number, held)
            for place in range(size):
                index.reconstruct_from_offset(number, place, faiss.swig_ptr(next(rows)))
    return np.concatenate(found), vectors
