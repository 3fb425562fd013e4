"""The baselines beside a model: BM25 and the untrained encoder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from palmette.data import load_data
from palmette.encoder import FakeEncoder
from palmette.errors import ConfigError, InputError, MissingExtraError
from palmette.evaluation import BM25, EncoderBaseline
from palmette.metrics import score_run
from palmette.types import Document

TEXTS = {"cat": "the cats were sleeping on a mat", "dog": "a dog barks", "tax": "taxes are paid in spring"}
DOCUMENTS = [Document(key, text) for key, text in TEXTS.items()]


def test_bm25_finds_by_stem():
    pytest.importorskip("bm25s")
    found = BM25(DOCUMENTS).search(["sleeping cat", "pay tax", "barking"], k=2)
    assert [ids[0] for ids in found.ids] == ["cat", "tax", "dog"]
    assert all(len(ids) == 2 and (np.diff(scores) <= 0).all() for ids, scores in zip(*found, strict=True))


def test_bm25_without_stems_wants_the_very_word():
    pytest.importorskip("bm25s")
    assert BM25(DOCUMENTS, stem=False).search(["tax", "taxes"], k=1).scores[0][0] == 0
    assert BM25(DOCUMENTS, stem=False).search(["taxes"], k=1).ids == [["tax"]]


def test_bm25_scores_are_those_of_the_formula():
    pytest.importorskip("bm25s")
    documents = [
        Document(str(n), text) for n, text in enumerate(["red red blue", "blue", "green grey blue blue"])
    ]
    scores = BM25(documents, stem=False).search(["red"], k=1).scores[0]
    idf = np.log(1 + (3 - 1 + 0.5) / (1 + 0.5))
    assert scores[0] == pytest.approx(idf * 2 / (2 + 1.2 * (1 - 0.75 + 0.75 * 3 / (8 / 3))), rel=1e-5)


def test_unknown_words_find_nothing_in_particular():
    pytest.importorskip("bm25s")
    found = BM25(DOCUMENTS).search(["zzz", "..."], k=9)
    assert [scores.tolist() for scores in found.scores] == [[0, 0, 0]] * 2
    assert found.ids == [["cat", "dog", "tax"]] * 2


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'palmette\[baselines\]'"):
        BM25(DOCUMENTS)


def test_encoder_baseline_is_the_exact_inner_product():
    encoder = FakeEncoder(32)
    documents = [
        Document(str(i), f"{word} number {i}") for i, word in enumerate(["red", "green", "blue", "red"] * 90)
    ]
    queries = [f"{word} {i}" for i, word in enumerate(["red", "blue", "grey"] * 100)]
    found = EncoderBaseline(encoder, documents).search(queries, k=7)
    scores = encoder.encode(queries, kind="query") @ encoder.encode([d.text for d in documents]).T
    best = np.argsort(-scores, axis=1, kind="stable")[:, :7]
    np.testing.assert_allclose(np.stack(found.scores), np.take_along_axis(scores, best, axis=1), rtol=1e-5)
    assert len(found.ids) == 300
    assert (
        sum(ids == [str(r) for r in rows] for ids, rows in zip(found.ids, best, strict=True)) > 290
    )  # ties may differ


def test_known_vectors_are_not_encoded_again():
    encoder = FakeEncoder(8)
    vectors = np.eye(3, 8, dtype=np.float32)
    baseline = EncoderBaseline(encoder, DOCUMENTS, vectors=vectors)
    query = encoder.encode(["a dog"], kind="query")[0]
    assert baseline.search(["a dog"], k=1).ids == [[list(TEXTS)[int(query[:3].argmax())]]]
    with pytest.raises(InputError, match="3 × 8, got"):
        EncoderBaseline(encoder, DOCUMENTS, vectors=vectors[:2])


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: BM25([]), InputError, "no documents"),
        (lambda: EncoderBaseline(FakeEncoder(8), []), InputError, "no documents"),
        (
            lambda: BM25(DOCUMENTS, language="klingon"),
            ConfigError,
            "no stemmer for 'klingon'; languages: .*english",
        ),
        (lambda: BM25(DOCUMENTS).search("dog"), InputError, "Put it in a list"),
        (lambda: BM25(DOCUMENTS).search(["dog"], k=0), InputError, "at least 1, got 0"),
    ],
)
def test_misuse_is_named(call, error, text):
    pytest.importorskip("bm25s")
    with pytest.raises(error, match=text):
        call()


@pytest.mark.data
@pytest.mark.skipif("PALMETTE_DATA" not in os.environ, reason="PALMETTE_DATA names no folder of data sets")
def test_bm25_on_squad():
    pytest.importorskip("bm25s")
    data = load_data(Path(os.environ["PALMETTE_DATA"]) / "squad")
    test = data.split("test")
    found = BM25(data.corpus).search(list(test.queries.values()), k=10)
    scores = score_run(dict(zip(test.queries, found.ids, strict=True)), test.qrels, ks=(10,))
    assert scores["ndcg@10"] == pytest.approx(0.8628, abs=0.001)
