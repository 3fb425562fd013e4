"""Dense retrieval without training: the encoder itself, behind the interface of every method."""

from pathlib import Path

import numpy as np
import pytest

from palmette import FakeEncoder, SpaceModel
from palmette.encoder import EncodingCache
from support.alone import Index
from support.tiny import documents

QUESTION = "where does the red owl live?"


@pytest.fixture(scope="module")
def untrained() -> SpaceModel:
    return SpaceModel.untrained(FakeEncoder(48))


@pytest.fixture(scope="module")
def index(untrained: SpaceModel) -> Index:
    return Index.build(documents(), untrained)


def test_untrained_it_ranks_as_the_encoder_does(untrained: SpaceModel, index: Index) -> None:
    encoder = untrained.encoder
    scores = encoder.encode([d.content for d in documents()]) @ encoder.encode_queries([QUESTION])[0]
    order = np.argsort(-scores, kind="stable")
    hits = index.search(QUESTION, k=10, lexical=0)
    assert [hit.id for hit in hits] == [documents()[row].id for row in order[:10]]
    explained = hits[0].explain()
    assert [part.name for part in explained.parts] == ["cosine"]
    assert explained.score == pytest.approx(scores[order[0]], abs=1e-3)  # stored in half precision


def test_documents_without_labels_train_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = FakeEncoder(48)
    monkeypatch.setattr(FakeEncoder, "forward", None)  # nothing is encoded
    model = SpaceModel.fit(documents(), encoder=encoder, cache=EncodingCache(tmp_path), progress=False)
    assert model.encoder is encoder
    assert not model.weights()
    assert (model.record.documents, model.record.pairs, model.record.steps) == (48, 0, 0)
    assert model.calibrations == {}
    path = model.save_pretrained(tmp_path / "space")
    assert "none: the encoder as it is" in (path / "README.md").read_text(encoding="utf-8")
