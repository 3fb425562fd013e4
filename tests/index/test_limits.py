"""Strangers' texts cost time and memory in proportion to their length, and too long ones are refused."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from palmette import Document, FakeEncoder, Index, SpaceModel
from palmette.errors import InputError
from palmette.lexical import bm25
from palmette.lexical.analyser import MAX_QUERY
from palmette.store import checks

MODEL = SpaceModel.untrained(FakeEncoder(16))


@pytest.fixture(scope="module")
def parts() -> Index:
    """An index of many documents with a word of their own each."""
    return Index.build([f"part sku{number}" for number in range(6000)], MODEL, sentences=False, progress=False)


def test_a_query_of_many_words_takes_memory_and_time_in_proportion(parts: Index) -> None:
    """Words by documents were 6,000 × 12,000 numbers."""
    took = []
    for count in (1500, 6000):
        query = " ".join(f"sku{number}" for number in range(count))
        parts.search("warm")
        tracemalloc.start()
        begun = time.process_time()
        hits = parts.search(query, 3)
        took.append(time.process_time() - begun)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 60e6
        assert len(hits) == 3
        assert hits[0].explain().parts
    assert took[1] < 10 * took[0] + 1, "a square would take sixteen times"


def test_too_long_queries_are_refused(parts: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=f"has {MAX_QUERY + 1:,} characters, and may have 100,000"):
        parts.search("a" * (MAX_QUERY + 1))
    with pytest.raises(InputError, match="may have 100,000"):
        MODEL.score("a" * (MAX_QUERY + 1), [Document("x", "text")])
    assert parts.search("a" * MAX_QUERY, 1)


def test_the_first_words_of_a_query_are_searched(parts: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    analyser = parts.backend._snapshots.analyser  # type: ignore[attr-defined]
    for text in (" ".join(f"q{number}" for number in range(15_000)), "q," * 45_000, "中文" * 40_000):
        terms = bm25.query_terms(analyser, text)
        assert len(terms.terms) <= 4 * bm25.MOST_WORDS
    monkeypatch.setattr(bm25, "MOST_WORDS", 3)
    for text in ("q1 q2 q3", 'q1 q2 q3 q4 "q5"'):
        bm25.query_terms.cache_clear()
        terms = bm25.query_terms(analyser, text)
        assert (terms.words, terms.required) == (["q1", "q2", "q3", "q1 q2", "q2 q3"], frozenset())
    bm25.query_terms.cache_clear()


def test_too_long_documents_are_refused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LONGEST_DOCUMENT", 100)
    with Index.in_memory(MODEL) as index:
        for document in (Document("x", "a" * 101), Document("x", "a" * 90, fields={"title": "b" * 20})):
            with pytest.raises(InputError, match="has 1.. characters, and may have 100: nothing was added"):
                index.add([Document("y", "short"), document])
        assert index.add([Document("x", "a" * 100)]) == ["x"]
        assert len(index) == 1
