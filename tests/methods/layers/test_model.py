"""Per-layer search from end to end: orders, budgets, early exit, explanations, vectors that are there already."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palmette import Document, FakeEncoder, Index, LayersModel, load_model
from palmette.cli import main
from palmette.encoder.base import Output
from palmette.errors import ConfigError, InputError
from support.tiny import documents, layers, train_layers


@pytest.fixture(scope="module")
def index() -> Index:
    made = Index.in_memory(layers())
    made.add(documents())
    return made


QUESTION = "where does the red owl live?"


def test_each_layer_has_its_share(index: Index) -> None:
    hits = index.search(QUESTION, k=6, order="layer")
    assert [hit.explain().detail["found_by"] for hit in hits] == [1, 1, 2, 2, 3, 3]
    unequal = index.search(QUESTION, k=6, order="interleave", budget=(1, 0, 5))
    assert [hit.explain().detail["found_by"] for hit in unequal] == [1, 3, 3, 3, 3, 3]
    alone = index.search(QUESTION, k=4, order="layer", layers=(2,))
    assert [hit.score for hit in alone] == sorted((hit.score for hit in alone), reverse=True)
    assert len(index.search(QUESTION, k=7, order="layer", filter={"colour": "red"})) == 7


@pytest.mark.parametrize("order", ["fused", "layer", "interleave"])
def test_parts_add_up_in_every_order(index: Index, order: str) -> None:
    for hit in index.search(QUESTION, k=9, order=order, lexical=0):
        explanation = hit.explain()
        assert sum(part.value for part in explanation.parts) == pytest.approx(hit.score, abs=1e-5)
        detail = explanation.detail
        assert set(detail["similarity"]) == {"1", "2", "3"}
        if order != "fused":
            assert detail["similarity"][str(detail["found_by"])] == pytest.approx(hit.score, abs=1e-5)
        assert detail["words"]["red"] == ("red" in hit.document.text)
        assert "words of the question" in explanation.text


def test_a_fused_hit_was_found_by_the_layer_that_ranks_it_highest(index: Index) -> None:
    """Whatever the depth of the search, with words and without, and where it covers the whole index."""
    model, given = (
        layers(),
        documents()
        + [
            Document(id=f"{n}", text=f"Number {n} keeps {n % 7} bees, a cow and house {n % 5}.")
            for n in range(90)
        ],
    )
    vectors = model.encoder.encode([document.text for document in given])
    every, large = (
        model.encode_queries([QUESTION], model.search_options({}))["layers"][0],
        Index.build(given, model),
    )
    for where, held in ((index, 48), (large, 138)):
        ranks = (-every @ vectors[:held].T).argsort(axis=1).argsort(axis=1)  # [L, N]
        best = dict(zip([document.id for document in given], ranks.argmin(axis=0) + 1, strict=False))
        lowest = dict(zip([document.id for document in given], ranks.min(axis=0), strict=False))
        for k, lexical in ((5, "auto"), (5, 0), (40, "auto"), (held, 0)):
            hits = where.search(QUESTION, k=k, lexical=lexical)  # type: ignore[call-overload]
            finders = [hit.explain().detail["found_by"] for hit in hits]
            seen = k if lexical == 0 else 50  # how deep each layer was asked
            assert finders == [best[hit.id] if lowest[hit.id] < seen else None for hit in hits]
            assert k < 40 or len(set(finders)) > 1
            assert f"ranked highest by layer {finders[0]}" in hits[0].explain().text
    assert "found by layer 1 first" in index.search(QUESTION, k=3, order="layer")[0].explain().text


def test_what_words_alone_bring_in_was_found_by_no_layer() -> None:
    model = layers()
    texts = [f"the {colour} owl lives in house {n}" for n in range(60) for colour in ("red", "blue")]
    given = [*texts, "zyzzyva " + "bread and butter for breakfast " * 3]
    index = Index.build(given, model)
    hits = index.search("the owl zyzzyva", k=5, lexical=0.95)
    assert "zyzzyva" in hits[0].document.text
    assert hits[0].explain().detail["found_by"] is None
    assert {hit.explain().detail["found_by"] for hit in hits[1:]} <= {1, 2, 3}
    assert index.explain("where does the red owl live?", hits[1].id).detail["found_by"] is None  # no search


@pytest.mark.parametrize("layers", [range(1, 3), np.array([1, 2]), [np.int64(1), np.int32(2)], (1, 2)])
def test_whole_numbers_of_any_kind_name_layers(index: Index, layers: Any) -> None:
    hits = index.search(QUESTION, k=4, layers=layers, order="layer", budget=np.array([1, 3]))
    assert [hit.explain().detail["found_by"] for hit in hits] == [1, 2, 2, 2]
    assert train_layers(layers=layers, steps=0).config.layers == (1, 2)


def test_a_fused_score_is_the_weighted_mean(index: Index) -> None:
    hit = index.search(QUESTION, k=1, lexical=0)[0]
    weights = layers().module.weights().tolist()
    similar = hit.explain().detail["similarity"].values()
    assert hit.score == pytest.approx(sum(w * s for w, s in zip(weights, similar, strict=True)), abs=1e-5)
    assert sum(weights) == pytest.approx(1)


def test_the_encoder_stops_at_the_last_layer_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = train_layers()
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


def test_a_checkpoint_answers_as_before(index: Index, tmp_path: Path) -> None:
    layers().save_pretrained(tmp_path / "ckpt")
    loaded = load_model(tmp_path / "ckpt", encoder=FakeEncoder(48))
    assert isinstance(loaded, LayersModel)
    again = Index.build(documents(), loaded)
    for order in ("fused", "layer"):
        before, after = (i.search(QUESTION, k=5, order=order) for i in (index, again))
        assert [(h.id, h.score) for h in before] == [(h.id, h.score) for h in after]
    assert loaded.describe()["layers"]["3"]["began as"] == "own"


def test_wrong_search_options_name_the_fix(index: Index) -> None:
    for options, words in (
        ({"layers": (4,)}, r"layer 4 was not trained.*\[1, 2, 3\]"),
        ({"budget": (1, 2, 3)}, "order='layer'"),
        ({"order": "layer", "budget": (1, 2)}, "share for each"),
        ({"order": "layer", "budget": (0, 0, 0)}, "not all 0"),
        ({"order": "layers"}, "order"),
        ({"layers": 2}, r"whole numbers in a list, such as \[1, 2\].* got 2 "),
        ({"layers": np.array([1.5])}, r"whole numbers in a list.*got array\(\[1.5\]\)"),
        ({"layers": {1, 2}}, "whole numbers in a list"),
        ({"order": "layer", "lexical": 0.5}, "lexical=0"),
    ):
        with pytest.raises(ConfigError, match=words):
            index.search(QUESTION, **options)  # type: ignore[call-overload]


def test_vectors_that_are_there_are_not_made_again(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = layers(), documents()
    vectors = model.encoder.encode([document.text for document in given])
    encoded: list[int] = []
    inner = model.encoder.forward
    monkeypatch.setattr(
        model.encoder, "forward", lambda texts, *rest: (encoded.append(len(texts)), inner(texts, *rest))[1]
    )
    reused = Index.in_memory(model)
    reused.add(given[:40], embeddings=3 * vectors[:40].astype(np.float64))  # of another length: scaled
    reused.upsert(given, embeddings=torch.tensor(vectors, requires_grad=True).double())
    assert sum(encoded) < len(given)  # a few, to see whether they are this encoder's
    before, after = (i.search(QUESTION, k=48, lexical=0) for i in (index, reused))
    assert [h.id for h in before] == [h.id for h in after]
    assert [h.score for h in before] == pytest.approx([h.score for h in after], abs=1e-6)


def test_a_faiss_index_is_taken_over() -> None:
    faiss = pytest.importorskip("faiss")
    model, given = layers(), documents()
    flat = faiss.IndexFlatIP(48)
    flat.add(model.encoder.encode([document.text for document in given]))
    taken = Index.build(given, model, embeddings=flat)
    assert [h.id for h in taken.search(QUESTION, k=5)] == [
        h.id for h in Index.build(given, model).search(QUESTION, k=5)
    ]


def test_other_vectors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = layers(), documents()
    vectors = model.encoder.encode([document.text for document in given])
    index = Index.in_memory(model)
    for wrong, words in (
        (vectors[:, :32], r"\[48, 48\].*got \(48, 32\)"),
        (vectors[:47], r"got \(47, 48\)"),
        (np.full_like(vectors, np.nan), "finite"),
        (vectors[::-1], "not those of encoder 'fake:48:3'.*cosine"),
        (np.zeros_like(vectors), "all zeros"),
        ("vectors.npy", "array"),
    ):
        with pytest.raises(InputError, match=words):
            index.add(given, embeddings=wrong)
    assert len(index) == 0
    with pytest.raises(ConfigError, match="layers model reads more"):
        index.rank(vectors[:1])  # a query needs the states of all layers
    monkeypatch.setattr(LayersModel, "indexes_embeddings", False)
    with pytest.raises(ConfigError, match="layers model reads more"):
        index.add(given, embeddings=vectors)


def test_documents_alone_are_enough_to_train() -> None:
    texts = [
        document.text + f" It is {n} years old and eats {n} fish." for n, document in enumerate(documents())
    ]
    model = LayersModel.fit(texts, encoder=FakeEncoder(32), steps=5, batch_size=8, progress=False)
    index = Index.build([Document(text=text) for text in texts], model)
    assert "red owl" in index.search("the red owl", k=1)[0].document.text


def test_a_questions_vector_for_other_stores_is_the_mean() -> None:
    model = layers()
    asked = model.embed([QUESTION], kind="query")
    np.testing.assert_allclose(
        asked, model.encode_queries([QUESTION], model.search_options({}))["fused"], atol=1e-6
    )
    assert model.embed(["a text"]).shape == (1, 48)


def test_the_command_line_takes_lists_of_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [{"id": d.id, "text": d.text + " It eats figs and fish in the morning."} for d in documents()]
    docs, model, index = (tmp_path / name for name in ("docs.jsonl", "ckpt", "index"))
    docs.write_text("\n".join(map(json.dumps, given)))
    train = ["train", "layers", str(docs), "--out", str(model), "--encoder", "fake:32:4", "--layers", "1,2,4"]
    assert main([*train, "--steps", "2", "--quiet"]) == 0
    assert main(["index", str(model), str(docs), "--out", str(index), "--quiet"]) == 0
    capsys.readouterr()
    search = ["search", str(index), "where is the red owl?", "-k", "4", "--order", "layer", "--lexical", "0"]
    assert main([*search, "--layers", "[1, 4]", "--explain", "--json"]) == 0
    hits = json.loads(capsys.readouterr().out)
    assert [hit["explanation"]["detail"]["found_by"] for hit in hits] == [1, 1, 4, 4]
    assert main(["inspect", str(model), "--json"]) == 0
    structure = json.loads(capsys.readouterr().out)["model"]["structure"]
    assert list(structure["layers"]) == ["1", "2", "4"]
    assert main([*train[:-1], "1,7", "--quiet"]) != 0
    assert "layer 7" in capsys.readouterr().err
