"""Loops in NumPy, for a process that ends after one question, give the bits that the compiled ones give."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette import FakeEncoder, Index
from palmette.lexical import kernels, plain
from palmette.lexical.postings import COUNT_BITS, MAX_COUNT
from palmette.machine.compiled import compiles_loops, without_compiled_loops
from palmette.search.flat import Block, ExactEngine, top_k
from support.tiny import documents

QUESTIONS = ["where does the red owl live?", "blue cat at night", "house 7", "a green whale that is nowhere"]


def postings(draw: np.random.Generator, documents: int, size: int) -> np.ndarray:
    rows = np.sort(draw.permutation(documents)[:size]).astype(np.uint32)
    return rows << np.uint32(COUNT_BITS) | draw.integers(1, MAX_COUNT + 1, size).astype(np.uint32)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(0, 60))
def test_loops_over_postings(seed: int, count: int, size: int) -> None:
    draw = np.random.default_rng(seed)
    hits, norms = postings(draw, count, min(size, count)), draw.random(count, np.float32) + np.float32(0.1)
    rows = np.sort(draw.permutation(count)[: draw.integers(0, count + 1)]).astype(np.int32)
    sums, weight = draw.random(len(rows), np.float32), np.float32(draw.random())
    places = draw.permutation(count).astype(np.int32) - np.int32(3)
    least = np.float32(draw.random() / 2)
    mask = draw.random(count) < 0.5
    for arguments in (
        ("counts_in", rows, hits),
        ("renumber_hits", hits, places),
        ("merge_postings", rows, sums, hits, norms, mask, weight, least),
        ("merge_postings", rows, sums, hits, norms, mask[:0], weight, least),
        ("kth_best", sums, 3),
    ):
        name, *values = arguments
        for value in values:
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
        expected, own = getattr(kernels, name)(*values), getattr(plain, name)(*values)
        for a, b in zip(*((each if isinstance(each, tuple) else (each,)) for each in (expected, own)), strict=True):
            assert np.asarray(a).dtype == np.asarray(b).dtype, name
            np.testing.assert_array_equal(a, b, err_msg=name)
    among = [
        place << COUNT_BITS | int(hit) & MAX_COUNT
        for place, row in enumerate(rows)
        for hit in hits
        if hit >> COUNT_BITS == row
    ]
    assert kernels.hits_among(rows, hits).tolist() == among
    filled = [np.zeros(count, np.float32) for _ in range(2)]
    for add, scores in zip((kernels.add_hits, plain.add_hits), filled, strict=True):
        add(scores, hits, norms, weight)
        add(scores, hits, norms, np.float32(0.3))
    np.testing.assert_array_equal(*filled)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("k", [1, 10, 1000])
def test_the_nearest_rows(dtype: type, k: int) -> None:
    draw = np.random.default_rng(k)
    vectors = draw.standard_normal((700, 48)).astype(np.float32)
    vectors[5] = vectors[6] = vectors[7]  # equal scores are ordered by key
    queries = draw.standard_normal((9, 48)).astype(np.float32)
    queries[0] = vectors[5]
    some = np.sort(draw.permutation(700)[:300])
    for rows in (None, some):
        results = []
        for compiled in (True, False):
            block = Block(vectors.astype(dtype), np.arange(700) * 2)
            with nullcontext() if compiled else without_compiled_loops():
                results.append(top_k([(block, rows)], queries, "inner_product", k, ExactEngine()))
        np.testing.assert_array_equal(results[0].keys, results[1].keys)
        np.testing.assert_array_equal(results[0].scores, results[1].scores)


def test_scores_beyond_float32_leave_nothing_out() -> None:
    data, queries = np.full((600, 4), 2e38, np.float32), np.full((2, 4), 3e38, np.float32)
    data[::2] = -1
    with without_compiled_loops(), np.errstate(over="ignore", invalid="ignore"):
        near = ExactEngine().shortlist(Block(data, np.arange(600)), None, queries, "inner_product", 5)
    assert {*near.rows.tolist()} >= set(range(1, 600, 2))


def test_a_search_gives_the_same_hits_in_a_process_of_one_question() -> None:
    with Index.in_memory(encoder=FakeEncoder(48)) as index:
        index.add(documents())
        for options in ({}, {"filter": {"colour": "red"}}, {"lexical": 1.0}, {"threshold": 0.2}):
            expected = index.search(QUESTIONS, k=7, **options)
            with without_compiled_loops():
                assert not compiles_loops()
                own = index.search(QUESTIONS, k=7, **options)
            assert compiles_loops()
            assert [[(hit.id, hit.score) for hit in hits] for hits in own] == [
                [(hit.id, hit.score) for hit in hits] for hits in expected
            ]
