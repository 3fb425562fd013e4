"""Measures of rankings and of answers, and the table of a report."""

from __future__ import annotations

import numpy as np
import pytest
import pytrec_eval
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from palmette.data import metrics
from palmette.data.metrics import Judgements, score_ranks, score_run
from palmette.errors import InputError

DOCS = [f"d{i}" for i in range(12)]
QUERIES = [f"q{i}" for i in range(5)]

runs = st.dictionaries(st.sampled_from(QUERIES), st.lists(st.sampled_from(DOCS), unique=True, max_size=12), min_size=1)
grades = st.dictionaries(st.sampled_from(DOCS), st.integers(-1, 3), min_size=1)
judged = st.dictionaries(st.sampled_from(QUERIES), grades, min_size=1)


def relevant(qrels):
    return {q: judged for q, judged in qrels.items() if any(grade > 0 for grade in judged.values())}


def trec(run, qrels, ks):
    """The same means by trec_eval's own code, queries that the run lacks counting as 0."""
    qrels = relevant(qrels)
    scored = {q: {d: float(-place) for place, d in enumerate(run[q])} for q in qrels if run.get(q)}
    cut = ",".join(map(str, ks))
    every = pytrec_eval.RelevanceEvaluator(qrels, {f"ndcg_cut.{cut}", f"recall.{cut}", f"success.{cut}"}).evaluate(
        scored
    )
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


@settings(max_examples=40, deadline=None)
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


@settings(max_examples=30, deadline=None)
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


def test_what_nobody_judged_cannot_be_scored():
    with pytest.raises(InputError, match="none of the 1 queries has a relevant document"):
        score_run({"q": ["a"]}, {"q": {"a": 0}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat, a HAT!", "cat hat"),
        ("U.S.A.", "usa"),
        ("an-other theatre", "another theatre"),  # punctuation goes first, articles only as words
        ("the", ""),
        ("A−B", "−b"),  # a Unicode minus stays, and parts the article from its neighbour
        ("", ""),
    ],
)
def test_normalise(text: str, expected: str) -> None:
    assert metrics.normalise(text) == expected


def test_the_best_accepted_answer_counts() -> None:
    assert metrics.exact_match("The Eiffel Tower.", ["tower", "eiffel tower"]) == 1.0
    assert metrics.exact_match("Eiffel", ["tower", "eiffel tower"]) == 0.0
    assert metrics.f1("Eiffel", ["tower", "eiffel tower"]) == pytest.approx(2 / 3)
    assert metrics.f1("to be or to be", ["to be"]) == pytest.approx(4 / 7), "a word counts as often as both have it"


def test_no_answer_is_right_only_where_there_is_none() -> None:
    assert metrics.exact_match("", []) == metrics.f1("", []) == 1.0
    assert metrics.exact_match("Paris", []) == metrics.f1("Paris", []) == 0.0
    assert metrics.exact_match("", ["Paris"]) == metrics.f1("", ["Paris"]) == 0.0
    assert metrics.exact_match("", ["the"]) == 1.0  # nothing is left of it


def test_a_text_holds_an_answer_as_whole_words() -> None:
    assert metrics.holds_answer("It was the (North) Sea.", ["north sea"])
    assert not metrics.holds_answer("Northern seas", ["north", "sea"])
    assert not metrics.holds_answer("anything", ["", "the"])
