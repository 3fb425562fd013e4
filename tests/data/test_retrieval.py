from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.data import RetrievalData
from palmette.data.metrics import score_ranks
from palmette.errors import DuplicateIdError, InputError
from palmette.types import Document

SIZE = 6
judgements = st.dictionaries(
    st.sampled_from([f"q{n}" for n in range(SIZE)]),
    st.dictionaries(st.sampled_from([f"d{n}" for n in range(SIZE)]), st.integers(0, 2), min_size=1),
)


def make(train, test=None, queries=None, texts=None):
    return RetrievalData(
        "made",
        [Document(f"d{n}", text) for n, text in enumerate(texts or [f"text {n}" for n in range(SIZE)])],
        {f"q{n}": text for n, text in enumerate(queries or [f"query {n}" for n in range(SIZE)])},
        {"train": train, "test": test or {}},
    )


@settings(max_examples=40, deadline=None)
@given(judgements, judgements, st.lists(st.integers(0, 2), min_size=SIZE, max_size=SIZE), st.integers(0, 99))
def test_the_mask_knows_every_answer(train, test, same, seed):
    data = make(train, test, queries=[f"Query {n}" if n < 3 else f"query {same[n]} " for n in range(SIZE)])
    draw = np.random.default_rng(seed)
    queries, documents = draw.integers(0, SIZE, 5), draw.integers(0, SIZE, 5)
    found = data.positives_mask(queries, documents)
    names = [text.strip().lower() for text in data.query_texts]
    for i, q in enumerate(queries):
        for j, d in enumerate(documents):
            alike = [f"q{n}" for n in range(SIZE) if names[n] == names[q]]
            assert found[i, j] == any(s.get(name, {}).get(f"d{d}", 0) > 0 for s in (train, test) for name in alike)


def test_a_document_of_the_same_text_is_the_same_answer():
    data = make({"q0": {"d0": 1}, "q1": {"d1": 1}}, texts=["same", "other", " Same", "x", "y", "z"])
    assert data.positives_mask(np.array([0, 1]), np.array([2, 1])).tolist() == [[True, False], [False, True]]
    assert data.positives_mask(np.array([], int), np.array([1])).shape == (0, 1)


def test_pairs_and_judgements_share_rows():
    data = make({"q3": {"d5": 1, "d0": 0}, "q1": {"d2": 2}}, {"q4": {"d1": 1, "d2": 3, "d3": 0}})
    pairs = data.pairs("train")
    assert (pairs.queries.tolist(), pairs.documents.tolist()) == ([3, 1], [5, 2])
    rows, judged = data.judgements("test")
    assert rows.tolist() == [4]
    scores = score_ranks([[2, 0, 1]], judged, ks=(3,))
    assert scores["ndcg@3"] == pytest.approx((3 + 1 / 2) / (3 + 1 / np.log2(3)))
    assert data.texts == [d.text for d in data.corpus]


def test_negatives_are_the_training_queries_of_grade_zero():
    data = make({"q3": {"d5": 1, "d0": 0, "d4": 0}, "q1": {"d2": 2}}, {"q4": {"d3": 0}})
    assert data.negatives[3].tolist() == [0, 4]
    drawn = data.negatives.sample(np.array([3, 1, 4]), 20, np.random.default_rng(0))
    assert set(drawn[0]) == {0, 4}
    assert (drawn[1:] == -1).all()
    assert (make({"q1": {"d2": 2}}).negatives.sample(np.array([1]), 2, np.random.default_rng(0)) == -1).all()


def test_what_does_not_hold_together():
    with pytest.raises(
        InputError, match="made: 1 of 1 judgements name documents that are not there, such as 'd9' in 'train'"
    ):
        make({"q0": {"d9": 1}})
    with pytest.raises(DuplicateIdError, match="document id 'a' is there twice"):
        RetrievalData("twins", [Document("a", "x"), Document("a", "x")], {}, {})
    with pytest.raises(InputError, match="none: there are no documents"):
        RetrievalData("none", [], {}, {})
