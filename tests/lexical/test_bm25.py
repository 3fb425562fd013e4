"""BM25 shares and MaxScore: what is skipped cannot be among the best."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.lexical.analyser import analyser_of
from palmette.lexical.bm25 import (
    PAIR,
    REACH,
    PostingList,
    WordCollection,
    candidates,
    norms,
    query_terms,
    shares,
    weights,
)
from palmette.lexical.postings import hits_of

COUNT = 60
NONE = np.empty(0, bool)
ENGLISH = analyser_of("english")


def shares_of(texts: list[str], query: str) -> np.ndarray:
    return WordCollection(ENGLISH, texts).matches(query).scores


FLOORS = st.sampled_from([0, 0.05, 0.2, 2])


@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 70), FLOORS, st.booleans())
def test_the_best_are_among_the_candidates(seed: int, words: int, k: int, floor: float, narrow: bool) -> None:
    """Postings of rare and frequent words; scores added in the words' order."""
    draw = np.random.default_rng(seed)
    norm = norms(draw.integers(1, 6, COUNT), 3.0)
    lists, scores = [], np.zeros(COUNT, np.float32)
    for _ in range(words):
        rows = np.flatnonzero(draw.random(COUNT) < draw.choice([0, 0.05, 0.3, 0.95])).astype(np.int32)
        counts = draw.integers(1, 3, len(rows)).astype(np.uint8)
        weight = np.float32(1 / max(1, len(rows)) / words)
        hits = hits_of(rows, counts)
        lists.append(
            PostingList(
                hits, weight, float(weight) * float(shares(hits & 63, norm[hits >> 6], np.float32(1)).max(initial=0))
            )
        )
        scores[rows] += shares(counts, norm[rows], weight)
    mask = np.random.default_rng(seed).random(COUNT) < 0.6
    rows = np.flatnonzero(mask)
    among = rows.astype(np.int32) if narrow else None
    found = candidates(lists, norm, k, floor, NONE if narrow else mask, among)
    assert (np.diff(found) > 0).all()
    assert mask[found].all()
    best = rows[np.argsort(-scores[rows], kind="stable")][:k]
    assert set(best[(scores[best] >= floor) & (scores[best] > 0)]) <= set(found.tolist())


def test_rare_words_weigh_more_and_unknown_ones_most() -> None:
    query = query_terms(analyser_of(None), "w1 w2 w2 unknown")
    assert query.words == ["w1", "w2", "unknown", "w1 w2", "w2 w2", "w2 unknown"]
    weight, reach = weights(query, [90, 50, 0, 3, 3, 0], 100)
    assert weight[0] < weight[1] < weight[2]
    assert weight[5] == pytest.approx(PAIR * weight[2])
    assert reach == pytest.approx(REACH * weight[:3].sum())
    asked = query_terms(ENGLISH, "where is the owl")
    assert asked.words == ["owl"]
    (owl, *words), reach = weights(asked, [3, 2, 90, 100], 100)
    assert not words
    assert reach > REACH * owl, "words that are not searched count in the reach"


def test_documents_that_lack_function_words_lose_nothing_beside_others() -> None:
    found = shares_of(["the red owl", "red owl", "a fox"], "where is the red owl?")
    assert found[0] == found[1] > found[2] == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("What is the capital of France?", ["capit", "franc", "capit franc"]),
        ("is it?", ["is", "it"]),
        ("getUserName", ["get", "user", "name", "getusername", "get user", "user name"]),
        ("…", []),
    ],
)
def test_function_words_count_where_there_are_no_others(text: str, words: list[str]) -> None:
    assert query_terms(ENGLISH, text).words == words


def test_a_share_is_of_the_reach_or_of_the_best_document() -> None:
    texts = [f"word{n} " + "of long text " * 10 for n in range(50)]
    once, often = "red owl", "red owl " * 20
    plain = shares_of([*texts, once], "owl nowhere")
    assert 0.1 < plain[-1] < 0.5, "half of the words, of which one occurrence answers a half"
    both = shares_of([*texts, once, often], "red owl")
    assert both[-1] == pytest.approx(1)
    assert 0.5 < both[-2] < 1
    apart = shares_of([*texts, "red owl sings", "owl sings red"], "red owl")
    assert apart[-2] > 1.1 * apart[-1], "neighbours in order count more"


@pytest.mark.parametrize(
    ("query", "matched"),
    [
        ('capital "of France"', [0, 1, 2, 3]),
        ('"capital of France"', [0, 2]),
        ("what is the “capital of France”?", [0, 1, 2, 3]),
        ('capital "red owl"?', [0, 1, 2, 3, 4]),
        ('"France capital"', [1, 3]),
        ('"capital of France" "red owl"', [2]),
        ('"capital"', [0, 1, 2, 3]),
        ('15" and 17" capital', [0, 1, 2, 3]),
        ('print("red owl") of the capital', [0, 1, 2, 3, 4]),
        ('"to be or not"', [1]),
        ('"red owl sings"', []),
        ('"…" capital', [0, 1, 2, 3]),
    ],
)
def test_phrases_in_quotes_must_match(query: str, matched: list[int]) -> None:
    texts = [
        "Paris is the capital of France.",
        "France: to be or not to be a capital.",
        "The capital France knows, a red owl",
        "In France, capital flows.",
        "a red owl",
    ]
    assert np.flatnonzero(shares_of(texts, query)).tolist() == matched
