"""Per-layer search from end to end: orders, early exit, explanations, existing embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from palmette import FakeEncoder, LayersModel
from palmette.encoder.base import Output
from palmette.errors import ConfigError, InputError, TrainingError
from support.alone import Index
from support.tiny import documents, layers, train_layers

QUESTION = "where does the red owl live?"


@pytest.fixture(scope="module")
def index() -> Index:
    return Index.build(documents(), layers())


def finders(index: Index, k: int, **options: Any) -> list[int | None]:
    return [hit.explain().detail["found_by"] for hit in index.search(QUESTION, k=k, **options)]


def test_each_layer_has_its_share(index: Index) -> None:
    assert finders(index, 6, order="layer") == [1, 1, 2, 2, 3, 3]
    alone = index.search(QUESTION, k=4, order="layer", layers=(2,))
    assert [hit.score for hit in alone] == sorted((hit.score for hit in alone), reverse=True)
    assert len(index.search(QUESTION, k=7, order="layer", filter={"colour": "red"})) == 7
    for some in (range(1, 3), np.array([1, 2]), [np.int64(1), np.int32(2)]):  # whole numbers of any kind
        assert finders(index, 4, layers=some, order="layer") == [1, 1, 2, 2]


def test_a_fused_search_is_one_query_and_names_the_nearest_layer(index: Index) -> None:
    model = index.model
    for how, rows in (({}, 1), ({"layers": (1, 2)}, 1), ({"order": "layer"}, 3)):
        options = model.search_options(how)
        plan = model.plan(model.encode_queries([QUESTION], options), 5, options, None)
        assert len(plan.first.queries) == plan.group == rows
    for hit in [*index.search(QUESTION, k=5), *index.search(QUESTION, k=5, lexical=0)]:
        explanation = hit.explain()
        similar = explanation.detail["similarity"]
        assert str(explanation.detail["found_by"]) == max(similar, key=similar.get)
        assert f"nearest to layer {explanation.detail['found_by']}" in explanation.text
    assert "found by layer 1 first" in index.search(QUESTION, k=3, order="layer")[0].explain().text


def test_the_encoder_stops_at_the_last_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = train_layers(layers=range(1, 4), steps=0)
    assert model.config.layers == (1, 2, 3)
    passes: list[tuple[int | None, frozenset[Output]]] = []
    inner = model.encoder.forward

    def forward(texts: Any, kind: Any, outputs: frozenset[Output], depth: int | None = None) -> Any:
        passes.append((depth, outputs))
        return inner(texts, kind, outputs, depth)

    monkeypatch.setattr(model.encoder, "forward", forward)
    early = model.encode_queries([QUESTION], model.search_options({"layers": [1, 2]}))
    every = model.encode_queries([QUESTION], model.search_options({}))
    assert passes == [(2, {"layers"}), (None, {"layers", "pooled"})]
    np.testing.assert_allclose(early["layers"], every["layers"][:, :2], atol=1e-6)
    assert early["fused"].shape == (1, 48)


def test_wrong_search_options_name_the_fix(index: Index) -> None:
    for options, words in (
        ({"layers": (4,)}, r"layer 4 was not trained.*\[1, 2, 3\]"),
        ({"order": "layers"}, "order"),
        ({"layers": 2}, "layers must be a valid tuple, got 2 "),
        ({"layers": np.array([1.5])}, r"layers must be a valid integer.*got array\(\[1.5\]\)"),
        ({"layers": {1, 2}}, "layers must be a valid tuple"),
        ({"order": "layer", "lexical": 0.5}, "lexical=0"),
    ):
        with pytest.raises(ConfigError, match=words):
            index.search(QUESTION, **options)  # type: ignore[call-overload]


def test_existing_embeddings_serve_as_they_are(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = layers(), documents()
    vectors = model.encoder.encode([document.text for document in given])
    encoded: list[int] = []
    inner = model.encoder.forward
    with monkeypatch.context() as patch:
        patch.setattr(model.encoder, "forward", lambda t, *rest: (encoded.append(len(t)), inner(t, *rest))[1])
        reused = Index.in_memory(model)
        reused.add(given[:40], embeddings=3 * vectors[:40].astype(np.float64))  # of another length: scaled
        reused.upsert(given, embeddings=torch.tensor(vectors, requires_grad=True).double())
    assert sum(encoded) < len(given)  # a few, to see whether they are this encoder's
    before, after = (i.search(QUESTION, k=48, lexical=0) for i in (index, reused))
    assert [h.id for h in before] == [h.id for h in after]
    assert [h.score for h in before] == pytest.approx([h.score for h in after], abs=1e-6)
    empty = Index.in_memory(model)
    for wrong, words in (
        (vectors[:, :32], r"\[48, 48\].*got \(48, 32\)"),
        (vectors[:47], r"got \(47, 48\)"),
        (np.full_like(vectors, np.nan), "finite"),
        (vectors[::-1], "not those of encoder 'fake:48:3'.*cosine"),
        (np.zeros_like(vectors), "all zeros"),
        ("vectors.npy", "array"),
    ):
        with pytest.raises(InputError, match=words):
            empty.add(given, embeddings=wrong)
    assert len(empty) == 0
    with pytest.raises(ConfigError, match="layers model reads more"):
        index.rank(vectors[:1])  # a query needs the states of all layers
    monkeypatch.setattr(LayersModel, "indexes_embeddings", False)
    with pytest.raises(ConfigError, match="layers model reads more"):
        empty.add(given, embeddings=vectors)


def test_without_labels_the_layers_begin_as_the_encoder_and_stay_so() -> None:
    how: dict[str, Any] = {"encoder": FakeEncoder(64), "progress": False}
    model = LayersModel.fit(documents(), **how)
    assert (model.record.labelled, model.record.pairs, model.record.steps) == (False, 0, 0)
    found = Index.build(documents(), model).search(QUESTION, k=3, order="layer", lexical=0)
    assert [hit.explain().detail["found_by"] for hit in found] == [1, 2, 3]
    queries = model.encode_queries([QUESTION], model.search_options({}))["layers"][0]  # [L, d]
    own = how["encoder"].encode_queries([QUESTION])[0]
    assert queries[-1] == pytest.approx(own, abs=1e-5), "the last layer is the encoder"
    assert min(queries @ own) > 0.7
    with pytest.raises(TrainingError, match="no pairs of query and document, which start='random' needs"):
        LayersModel.fit(documents(), **how, preset="paper")
