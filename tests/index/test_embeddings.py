"""Vectors out of a FAISS index: every kind of it, whatever ids they lie under, and never a crash."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from palmette import Document, FakeEncoder
from palmette.errors import InputError
from palmette.index.embeddings import document_vectors

faiss: Any = pytest.importorskip("faiss")

WIDTH, MANY = 32, 60
ENCODER = FakeEncoder(WIDTH)
WORDS = "red green blue owl fox hen sings sleeps runs eats near far".split()
TEXTS = [f"the {WORDS[n % 3]} {WORDS[3 + n % 4]} {WORDS[6 + n % 5]} {n}" for n in range(MANY)]
VECTORS = ENCODER.encode(TEXTS)
PLAIN = [
    "Flat",
    "HNSW8",
    "SQ8",
    "IVF4,Flat",
    "L2norm,Flat",
    "RR32,IVF4,Flat",
    "PQ4x4,RFlat",
    "IVF4,SQ8,RFlat",
]


def filled(kind: str, ids: Any = None, vectors: np.ndarray = VECTORS) -> Any:
    made = faiss.index_factory(WIDTH, kind, faiss.METRIC_INNER_PRODUCT)
    made.train(np.tile(VECTORS, (11, 1)))
    if ids is None:
        made.add(vectors)
    else:
        made.add_with_ids(vectors, np.asarray(ids, np.int64))
    return made


def named(ids: Any) -> list[Document]:
    return [Document(id=str(id), text=text) for id, text in zip(ids, TEXTS, strict=True)]


@pytest.mark.parametrize("kind", PLAIN)
def test_what_was_added_without_ids_lies_in_the_documents_order(kind: str) -> None:
    taken = document_vectors(filled(kind), named(range(100, 100 + MANY)), ENCODER)
    np.testing.assert_allclose(taken, VECTORS, atol=0.02 if "SQ8" in kind and "RFlat" not in kind else 1e-5)


@pytest.mark.parametrize(
    "kind", ["IDMap,Flat", "IDMap2,Flat", "IDMap,IVF4,Flat", "IVF4,Flat", "RR32,IVF4,Flat"]
)
def test_own_ids_are_places_or_the_documents_ids(kind: str) -> None:
    order = np.random.default_rng(0).permutation(MANY)
    places = filled(kind, order, VECTORS[order])  # added in any order, each under its document's place
    np.testing.assert_allclose(document_vectors(places, named(range(MANY)), ENCODER), VECTORS, atol=1e-5)
    keys = order * 10**9 + 7
    by_id = filled(kind, keys, VECTORS[order])
    documents = named(np.arange(MANY) * 10**9 + 7)
    np.testing.assert_allclose(document_vectors(by_id, documents, ENCODER), VECTORS, atol=1e-5)
    inner = faiss.downcast_index(faiss.extract_index_ivf(by_id)) if "IVF" in kind else by_id
    assert inner.ntotal == MANY  # as it was
    with pytest.raises(
        InputError, match=r"ids of its own.*'1007'.*places from 0 to 59.*array in the documents'"
    ):
        document_vectors(by_id, named(np.arange(MANY) + 1007), ENCODER)


def test_places_that_are_not_the_documents_are_found_out() -> None:
    ids = np.arange(MANY)[::-1]  # every document's own id, but places come first
    with pytest.raises(InputError, match="documents' order"):
        document_vectors(filled("IDMap,Flat", ids), named(ids), ENCODER)


def test_what_cannot_be_taken_over_is_refused() -> None:
    documents = named(range(MANY))
    for index, words in (
        (filled("IDMap,Flat", [*range(MANY - 1), 0]), "none for document '59'"),  # one id twice
        (filled("Flat", vectors=VECTORS[:59]), "holds 59 vectors, and there are 60 documents"),
        (filled("IVF4,Flat", vectors=np.vstack([VECTORS, VECTORS])), "holds 120 vectors"),
        (faiss.IndexFlatIP(WIDTH), "holds 0 vectors"),
        (faiss.IndexBinaryFlat(WIDTH), "or a FAISS index of such; got IndexBinaryFlat"),
        (filled("PQ2x2"), "not those of encoder"),
        (split(), "IndexShards cannot give its vectors back.*as an array"),
    ):
        with pytest.raises(InputError, match=words):
            document_vectors(index, documents, ENCODER)


def split() -> Any:
    shards = faiss.IndexShards(WIDTH, False, True)
    parts = [faiss.IndexFlatIP(WIDTH) for _ in range(2)]
    for half, part in enumerate(parts):
        part.add(VECTORS[half * 30 : half * 30 + 30])
        shards.add_shard(part)
    return shards


def test_no_index_ends_the_process() -> None:
    """FAISS throws inside its own loops, where nothing catches it: one that maps ids cannot give row 0."""
    script = """
import faiss, numpy as np
from palmette import Document, FakeEncoder
from palmette.errors import InputError
from palmette.index.embeddings import document_vectors
encoder = FakeEncoder(16)
documents = [Document(id=f"d{n}", text=f"the owl {n}") for n in range(9)]
vectors = encoder.encode([document.text for document in documents])
for kind in ("IDMap", "IDMap2"):
    for first in (0, 100):
        index = faiss.index_factory(16, kind + ",Flat", faiss.METRIC_INNER_PRODUCT)
        index.add_with_ids(vectors, np.arange(9) + first)
        try:
            print(len(document_vectors(index, documents, encoder)))
        except InputError as error:
            print("ids of its own" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["9", "True"] * 2
