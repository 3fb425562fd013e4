from __future__ import annotations

import numpy as np
import pytest
import pytrec_eval
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from palmette.errors import InputError
from palmette.metrics import Judgements, query_scores, score_ranks, score_run

DOCS = [f"d{i}" for i in range(12)]
QUERIES = [f"q{i}" for i in range(5)]

runs = st.dictionaries(
    st.sampled_from(QUERIES), st.lists(st.sampled_from(DOCS), unique=True, max_size=12), min_size=1
)
grades = st.dictionaries(st.sampled_from(DOCS), st.integers(-1, 3), min_size=1)
judged = st.dictionaries(st.sampled_from(QUERIES), grades, min_size=1)


def relevant(qrels):
    return {q: judged for q, judged in qrels.items() if any(grade > 0 for grade in judged.values())}


def trec(run, qrels, ks):
    """The same means by trec_eval's own code, queries that the run lacks counting as 0."""
    qrels = relevant(qrels)
    scored = {q: {d: float(-place) for place, d in enumerate(run[q])} for q in qrels if run.get(q)}
    cut = ",".join(map(str, ks))
    every = pytrec_eval.RelevanceEvaluator(
        qrels, {f"ndcg_cut.{cut}", f"recall.{cut}", f"success.{cut}"}
    ).evaluate(scored)
    theirs = {"ndcg": "ndcg_cut", "recall": "recall", "hit": "success"}
    means = {
        f"{name}@{k}": sum(found[f"{other}_{k}"] for found in every.values()) / len(qrels)
        for name, other in theirs.items()
        for k in ks
    }
    for k in ks:  # trec_eval cuts no reciprocal rank, so the run is cut
        short = {q: dict(list(docs.items())[:k]) for q, docs in scored.items()}
        found = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(short)
        means[f"mrr@{k}"] = sum(values["recip_rank"] for values in found.values()) / len(qrels)
    return means


@settings(max_examples=150, deadline=None)
@given(runs, judged)
def test_agrees_with_trec_eval(run, qrels):
    ks = (1, 3, 10)
    if not relevant(qrels):
        with pytest.raises(InputError, match="has a relevant document"):
            score_run(run, qrels, ks=ks)
        return
    ours = score_run(run, qrels, ks=ks)
    assert ours.pop("queries") == len(relevant(qrels))
    assert ours.pop("unjudged") == len({*run, *qrels}) - len(relevant(qrels))
    theirs = trec(run, qrels, ks)
    assert ours.keys() == theirs.keys()
    assert ours == pytest.approx(theirs, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(runs, judged)
def test_ids_and_rows_score_alike(run, qrels):
    assume(relevant(qrels))
    flat = [(QUERIES.index(q), DOCS.index(d), g) for q, docs in qrels.items() for d, g in docs.items()]
    ranks = np.full((len(QUERIES), len(DOCS)), -1)
    for query, docs in run.items():
        ranks[QUERIES.index(query), : len(docs)] = [DOCS.index(d) for d in docs]
    by_rows = score_ranks(ranks, Judgements.of(len(QUERIES), len(DOCS), *np.array(flat).T), ks=(1, 5, 12))
    by_ids = score_run(run, qrels, ks=(1, 5, 12))
    assert {**by_rows, "unjudged": 0} == pytest.approx({**by_ids, "unjudged": 0})


def test_the_gain_is_linear_and_the_ideal_is_over_all_judged():
    qrels = {"q": {"good": 3, "fair": 1, "missed": 2, "bad": 0}}
    scores = score_run({"q": ["fair", "unknown", "good"]}, qrels, ks=(3,))
    ideal = 3 + 2 / np.log2(3) + 1 / 2
    assert scores["ndcg@3"] == pytest.approx((1 + 3 / 2) / ideal)
    assert scores["recall@3"] == pytest.approx(2 / 3)
    assert (scores["mrr@3"], scores["hit@3"]) == (1.0, 1.0)


def test_what_no_one_judged_is_counted_and_left_out():
    qrels = {"good": {"a": 1}, "bad": {"b": 0}}
    scores = score_run({"good": ["a"], "bad": ["b"], "new": ["c"]}, qrels, ks=(1,))
    assert (scores["ndcg@1"], scores["queries"], scores["unjudged"]) == (1.0, 1, 2)


def test_a_judged_query_that_the_run_lacks_scores_nothing():
    assert score_run({"a": ["x"]}, {"a": {"x": 1}, "b": {"x": 1}}, ks=(1,))["hit@1"] == 0.5


def test_scores_by_query():
    judgements = Judgements.of(3, 4, [0, 1], [2, 3], [1, 2])
    scores = query_scores([[2, 0], [0, 3], [1, 2]], judgements, ks=(1, 2))
    assert scores["hit@1"].tolist() == [1, 0, 0]
    assert scores["mrr@2"].tolist() == [1, 0.5, 0]
    assert judgements.relevant.tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: score_run({"q": ["a", "b", "a"]}, {"q": {"a": 1}}), "query 'q' lists document 'a' twice"),
        (lambda: score_run({"q": ["a"]}, {"q": {"a": 1}}, ks=(0,)), r"got \(0,\)"),
        (lambda: score_run({}, {}), "none of the 0 queries"),
        (lambda: Judgements.of(1, 2, [0], [2], [1]), r"document row 2 is outside 0\.\.1"),
        (lambda: Judgements.of(1, 2, [0, 0], [1, 1], [1, 0]), "judged twice"),
        (lambda: score_ranks([[0]], Judgements.of(1, 9, [0], [1], [1]), ks=(5,)), "1 places deep, but k=5"),
        (lambda: score_ranks([[0]], Judgements.of(2, 1, [0], [0], [1]), ks=(1,)), "2 rows, one per query"),
    ],
)
def test_misuse_is_named(call, text):
    with pytest.raises(InputError, match=text):
        call()
