"""The measures of the relevance benchmark, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

import relevance
from palmette.data.metrics import score_run
from palmette.lexical.analyser import LANGUAGE, analyser_of
from palmette.lexical.bm25 import WordCollection
from relevant.candidates import Collection, Example, Found, candidates, ideal_of, ndcg, plain_bm25, unit_rows
from relevant.collected import headed, roff

TEXTS = ["a red fox", "a blue whale. It sings songs", "a red apple", "the blue sky", "a whale and a fox"]


def collection() -> Collection:
    vectors = unit_rows(np.random.default_rng(0).standard_normal((10, 8)).astype(np.float32))
    first = np.array([0, 1, 3, 4, 5])
    asked = Example(["red fox", "blue whale"], vectors[8:], [{0: 1.0}, {1: 2.0, 4: 1.0}])
    return Collection("some", TEXTS, vectors[:5], vectors[:6], first, {"test": asked})


def test_areas_and_errors_are_what_their_definitions_say() -> None:
    rng = np.random.default_rng(0)
    higher, lower = rng.integers(0, 6, 40) + 1.0, rng.integers(0, 6, 30).astype(float)
    pairs = higher[:, None] - lower
    assert relevance.auroc(higher, lower) == pytest.approx(((pairs > 0) + (pairs == 0) / 2).mean())
    assert relevance.calibration_error(np.array([0.8] * 5), np.array([1, 1, 1, 1, 0])) == pytest.approx(0)
    assert relevance.calibration_error(np.array([0.9, 0.1]), np.array([0, 1])) == pytest.approx(0.9)


def test_a_fit_finds_the_coefficients_and_trust_holds_them_back() -> None:
    rng = np.random.default_rng(0)
    x = rng.random(20_000)
    right = rng.random(len(x)) < 1 / (1 + np.exp(-(6 * x - 4)))
    weights = np.ones(len(x)) / len(x)
    assert relevance.fit(x, right, weights) == pytest.approx([6, -4], abs=0.2)
    held = relevance.fit(x, right, weights, (2.0, 0.0), 1e3)
    assert held == pytest.approx([2, 0], abs=0.01)


def test_candidates_rank_as_all_documents_do() -> None:
    some = collection()
    asked = some.asked["test"]
    words = WordCollection(analyser_of(LANGUAGE), some.texts)
    found = candidates(some, words, asked, depth=5)
    document, sentence = some.cosines(asked.vectors)
    share = np.stack([words.matches(text).scores for text in asked.texts])
    total = Found(document, sentence, share, share, ideal_of(asked.judged), np.ones(2), 5).total(0.4)
    assert found.ndcg(found.total(0.4)) == pytest.approx(
        ndcg(np.pad(total, ((0, 0), (0, 5)), constant_values=-99), asked)
    )
    judged = {str(row): {str(d): int(g) for d, g in one.items()} for row, one in enumerate(asked.judged)}
    run = {str(row): [str(d) for d in np.argsort(-scores)] for row, scores in enumerate(total)}
    assert found.ndcg(found.total(0.4)) == pytest.approx(score_run(run, judged, ks=(10,))["ndcg@10"])
    assert plain_bm25(some.texts, asked.texts).argmax(axis=1).tolist() == [0, 1]


def test_headings_become_questions_once_and_leave_their_texts() -> None:
    long = "some words of a text " * 10
    pairs = [("How to begin here", f"{long} one"), ("How to begin here", f"{long} two"), (None, f"{long} three")]
    made = headed([*pairs, ("What a fourth says", f"{long} four"), ("Too short a text", "no")], 10)
    assert len(made.documents) == 4
    assert made.questions == ["What a fourth says"]
    assert made.documents[next(iter(made.judged[0]))].endswith("four")
    page = '.SH "NAME"\nls \\- list files\n.SH DESCRIPTION\nShows\n.B names\n.\\" hidden\nof files.\n'
    assert roff(page) == {"NAME": "ls - list files", "DESCRIPTION": "Shows names of files."}
