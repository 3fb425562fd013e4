"""Vectors that a user has already."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palmette import Document, FakeEncoder, Index, SpaceModel, TreeModel, load_model
from palmette.errors import InputError
from palmette.index.write import check_vectors
from support.tiny import documents, pairs


def test_vectors_are_not_taken_out_of_other_indexes() -> None:
    faiss: Any = pytest.importorskip("faiss")
    encoder, index = FakeEncoder(8), faiss.IndexFlatIP(8)
    documents = [Document(id=str(n), text=f"owl {n}") for n in range(20)]
    vectors = encoder.encode([document.text for document in documents])
    index.add(vectors)
    with pytest.raises(InputError, match=r"got IndexFlatIP; take those of a FAISS index out with.*reconstruct_n"):
        check_vectors(index, documents, encoder)
    taken = check_vectors(index.reconstruct_n(0, 20), documents, encoder)
    np.testing.assert_allclose(taken, vectors, atol=1e-6)


@pytest.mark.parametrize("kind", [TreeModel, SpaceModel])
def test_an_index_after_a_training_encodes_nothing(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, passes = FakeEncoder(32), []
    options = {"depth": 3, "steps": 2, "batch_size": 8} if kind is TreeModel else {}
    model = kind.fit(pairs(), encoder=encoder, cache=tmp_path, progress=False, **options)
    forward = encoder.forward
    monkeypatch.setattr(encoder, "forward", lambda texts, *how: (passes.append(texts), forward(texts, *how))[1])
    index = Index.build(documents(), model)
    assert passes == []
    again = Index.build(documents(), load_model(model.save_pretrained(tmp_path / "m"), encoder=encoder))
    assert passes
    assert again.search("red owl", k=5) == index.search("red owl", k=5)
