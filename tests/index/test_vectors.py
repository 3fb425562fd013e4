"""Vectors that a user has already."""

from typing import Any

import numpy as np
import pytest

from palmette import Document, FakeEncoder
from palmette.errors import InputError
from palmette.index.write import check_vectors


def test_vectors_are_not_taken_out_of_other_indexes() -> None:
    faiss: Any = pytest.importorskip("faiss")
    encoder, index = FakeEncoder(8), faiss.IndexFlatIP(8)
    documents = [Document(id=str(n), text=f"owl {n}") for n in range(20)]
    vectors = encoder.encode([document.text for document in documents])
    index.add(vectors)
    with pytest.raises(
        InputError, match=r"got IndexFlatIP; take those of a FAISS index out with.*reconstruct_n"
    ):
        check_vectors(index, documents, encoder)
    taken = check_vectors(index.reconstruct_n(0, 20), documents, encoder)
    np.testing.assert_allclose(taken, vectors, atol=1e-6)
