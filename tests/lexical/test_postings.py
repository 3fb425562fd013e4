"""Postings against a dictionary of counters, however they are collected, merged and cut."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from palmette.lexical.analyser import analyser_of
from palmette.lexical.postings import Postings, PostingsBuilder, merge_parts

ANALYSER = analyser_of(None)


def texts(count: int, seed: int = 0) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(f"w{n}" for n in draw.zipf(1.5, draw.integers(0, 12)) if n < 60) for _ in range(count)]


def collected(given: list[str]) -> Postings:
    builder = PostingsBuilder(ANALYSER)
    for start in range(0, len(given), 7):
        builder.add(given[start : start + 7])
    return builder.collected()


def content(postings: Postings) -> list[Counter[int]]:
    documents: list[Counter[int]] = [Counter() for _ in range(len(postings.lengths))]
    for term in postings.terms.tolist():
        rows, counts = postings.find(term)
        assert (np.diff(rows) > 0).all()
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            documents[row][term] = count
    return documents


def expected(given: list[str]) -> list[Counter[int]]:
    return [Counter(word.term for word in ANALYSER.words(text)) for text in given]


def assembled(parts: list[tuple[Postings, np.ndarray]], most: int) -> Postings:
    pieces = zip(*merge_parts(parts, most), strict=True)
    terms, sizes, rows, counts = (np.concatenate(column) for column in pieces)
    lengths = np.concatenate([part.lengths[new >= 0] for part, new in parts])
    return Postings(terms, np.append(0, np.cumsum(sizes)), rows, counts, lengths)


def test_what_is_collected_is_what_stands_there() -> None:
    given = texts(40)
    postings = collected(given)
    assert content(postings) == expected(given)
    assert postings.lengths.tolist() == [len(text.split()) for text in given]
    assert len(postings.find(12345)[0]) == 0
    assert len(collected(["", ""]).lengths) == 2


@pytest.mark.parametrize("most", [1, 20, 10_000])
def test_merging_keeps_the_living_in_order(most: int) -> None:
    given = [texts(count, seed) for seed, count in enumerate((30, 11, 23))]
    draw, parts, alive, count = np.random.default_rng(1), [], [], 0
    for some in given:
        kept = np.flatnonzero(draw.random(len(some)) < 0.7)
        new = np.full(len(some), -1, np.int64)
        new[kept] = np.arange(count, count + len(kept))
        count += len(kept)
        parts.append((collected(some), new))
        alive += [some[row] for row in kept]
    postings = assembled(parts, most)
    assert content(postings) == expected(alive)
    assert (np.diff(postings.terms.astype(np.float64)) > 0).all()
    assert postings.lengths.tolist() == [len(text.split()) for text in alive]


def test_counts_end_at_255() -> None:
    assert list(content(collected(["w1 " * 300]))[0].values()) == [255]


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
