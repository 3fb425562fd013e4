"""Postings against a dictionary of counters, however they are collected, merged and cut."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from palmette.lexical import postings
from palmette.lexical.analyser import analyser_of
from palmette.lexical.bm25 import query_terms
from palmette.lexical.postings import COUNT_BITS, MAX_COUNT, Postings, PostingsBuilder, merge_parts

ANALYSER = analyser_of(None)


def texts(count: int, seed: int = 0) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(f"w{n}" for n in draw.zipf(1.5, draw.integers(0, 12)) if n < 60) for _ in range(count)]


def collected(given: list[str]) -> Postings:
    builder = PostingsBuilder(ANALYSER)
    for start in range(0, len(given), 7):
        builder.add(given[start : start + 7])
    return builder.collected()


def terms_of(postings: Postings) -> list[int]:
    return [*postings.terms.numbers().tolist(), *postings.once.numbers().tolist()]


def content(postings: Postings) -> list[Counter[int]]:
    documents: list[Counter[int]] = [Counter() for _ in range(len(postings.lengths))]
    for term in terms_of(postings):
        hits = postings.find(term)
        rows, counts = hits >> COUNT_BITS, hits & MAX_COUNT
        assert (np.diff(rows) > 0).all()
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            documents[row][term] = count
    return documents


def expected(given: list[str]) -> list[Counter[int]]:
    """Words and pairs of neighbours, by definition."""
    counted = []
    for text in given:
        words = text.split()
        found = words + [f"{one} {two}" for one, two in pairwise(words)]
        term = {name: term for word in found for name, term in zip(*query_terms(ANALYSER, word)[:2], strict=True)}
        counted.append(Counter(term[word] for word in found))
    return counted


def merged(parts: list[tuple[Postings, NDArray[np.int64]]], most: int) -> list[Counter[int]]:
    documents = [Counter[int]() for _, new in parts for row in new if row >= 0]
    before = -1
    for terms, sizes, hits in merge_parts(parts, most):
        assert len(terms) == 1 or len(hits) <= most
        assert (np.diff(terms.astype(np.int64)) > 0).all()
        assert terms[0] > before
        before = int(terms[-1])
        term = np.repeat(terms, sizes).tolist()
        for word, hit in zip(term, hits.tolist(), strict=True):
            documents[hit >> COUNT_BITS][word] = hit & MAX_COUNT
    return documents


def test_what_is_collected_is_what_stands_there() -> None:
    given = texts(40)
    postings = collected(given)
    assert content(postings) == expected(given)
    assert postings.lengths.tolist() == [len(text.split()) for text in given]
    assert len(postings.find(12345)) == 0
    assert len(collected(["", ""]).lengths) == 2


def test_counts_end_at_63() -> None:
    assert list(content(collected(["w1 " * 300]))[0].values()) == [63, 63]


def test_lengths_leave_function_words_out() -> None:
    builder = PostingsBuilder(analyser_of("english"))
    builder.add(["the red owl of the house", "the"])
    assert builder.collected().lengths.tolist() == [3, 0]


def test_texts_beyond_memory_go_through_files(tmp_path: Path) -> None:
    given, built = texts(50), []
    for run in (1 << 20, 30):
        builder = PostingsBuilder(ANALYSER, tmp_path, run=run)
        for start in range(0, 50, 5):
            builder.add(given[start : start + 5])
        assert bool(list(tmp_path.iterdir())) == (run == 30)
        joined: dict[str, list[int]] = {}
        for name, values in builder.chunks():
            joined.setdefault(name, []).extend(values.tolist())
        built.append(joined)
        assert not list(tmp_path.iterdir())
    assert built[0] == built[1]


def test_texts_are_collected_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours across two blocks are neighbours, and texts of two documents are not."""
    given = [*texts(40), "", "a.b.c.d os.path.join 中文检索", *texts(20, 1)]
    whole = collected(given)
    for block, known in ((1, 1), (5, 1000), (7, 3)):
        monkeypatch.setattr(postings, "_BLOCK", block)
        monkeypatch.setattr(postings, "_KNOWN", known)
        pieces = collected(given)
        assert content(pieces) == content(whole)
        assert pieces.lengths.tolist() == whole.lengths.tolist()
