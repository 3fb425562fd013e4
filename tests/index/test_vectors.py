"""Vectors that a user has already."""

from pathlib import Path
from typing import Any

import pytest

from palmette import FakeEncoder, Index, SpaceModel, TreeModel, load_model
from support.tiny import documents, pairs


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
