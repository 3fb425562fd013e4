"""Searching within lists is comparing every document that lies in them."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.search import lists as search_lists
from palmette.search.flat import Block
from palmette.search.lists import ListBlock, ListOrder, top_k_in_lists
from palmette.store.memory import ArrayView
from support.threads import search_threads


def brute(data, lists, keys, query, chosen, k):
    """By definition: every document of the chosen lists, best first, equal ones by key."""
    inside = np.flatnonzero(np.isin(lists, chosen[chosen >= 0]).any(axis=1))
    scores = (data[inside].astype(np.float64) * query).sum(axis=1).astype(np.float32)
    order = np.lexsort((keys[inside], -scores))[:k]
    return keys[inside][order], scores[order], len(inside)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["all", "many", "few"]), st.booleans())
def test_it_is_brute_force_over_the_visited(seed, passing, threads) -> None:
    draw = np.random.default_rng(seed)
    n, total, count = int(draw.integers(1, 120)), int(draw.integers(3, 9)), int(draw.integers(1, 5))
    data = draw.integers(-2, 3, (n, 3)).astype(np.float32)  # many ties
    lists = draw.integers(0, total, (n, 1)).astype(np.int32)
    keys = np.cumsum(draw.integers(1, 4, n)).astype(np.int64)
    queries = draw.normal(size=(count, 3)).astype(np.float32)
    chosen = np.full((count, total), -1)
    for row in chosen:
        some = draw.permutation(total + 1)[: draw.integers(0, total + 1)]  # a list that nothing lies in, too
        row[: len(some)] = some
    k = int(draw.integers(1, 12))
    held = {"all": n, "many": max(1, n - 3), "few": min(n, 2)}[passing]
    rows = None if passing == "all" else np.sort(draw.permutation(n)[:held])
    cut = int(draw.integers(0, n + 1))  # two segments
    parts = []
    for low, high in ((0, cut), (cut, n)):
        if high > low:
            here = None if rows is None else rows[(rows >= low) & (rows < high)] - low
            parts.append(ListBlock(Block(data[low:high], keys[low:high]), ListOrder(lists[low:high]), here))
    with pytest.MonkeyPatch.context() as patch, search_threads(2 if threads else 1):
        patch.setattr(search_lists, "_WORTH_A_THREAD", 1)
        found = top_k_in_lists(parts, queries, chosen, k)
    visited = 0
    alive = np.arange(n) if rows is None else rows
    assert found.keys.shape == found.scores.shape == (count, min(k, len(alive)))
    for query, looked, got, scored in zip(queries, chosen, found.keys, found.scores, strict=True):
        expected, scores, seen = brute(data[alive], lists[alive], keys[alive], query, looked, k)
        visited += seen
        assert got[: len(expected)].tolist() == expected.tolist()
        assert scored[: len(expected)].tolist() == scores.tolist()
        assert (got[len(expected) :] == -1).all()
        assert (scored[len(expected) :] == -np.inf).all()
    assert found.visited == pytest.approx(visited / count)


def test_wide_rows_in_many_threads_are_the_same() -> None:
    draw = np.random.default_rng(3)
    data = draw.normal(size=(9_000, 64)).astype(np.float32)
    lists = draw.integers(0, 20, (len(data), 1)).astype(np.int32)
    part = ListBlock(Block(data, np.arange(len(data))), ListOrder(lists), None)
    queries, chosen = draw.normal(size=(70, 64)).astype(np.float32), np.tile(np.arange(8), (70, 1))
    results = []
    for threads in (1, 4):
        with search_threads(threads):
            results.append(top_k_in_lists([part], queries, chosen, 10))
    alone = top_k_in_lists([part], queries[:1], chosen[:1], 10)
    np.testing.assert_array_equal(results[0].keys, results[1].keys)
    np.testing.assert_array_equal(results[0].scores[:1], alone.scores)
    assert results[0].visited == np.count_nonzero(lists < 8)
    for query, looked, found in zip(queries, chosen, results[0].keys, strict=True):  # bytes alone confuse some
        assert found.tolist() == brute(data, lists, np.arange(len(data)), query, looked, 10)[0].tolist()


def test_each_listing_has_an_order_of_its_own() -> None:
    data = np.eye(6, dtype=np.float32)
    block, everywhere = Block(data, np.arange(6)), np.array([[0]])
    for row in range(6):  # listings that come and go over one block
        apart = (np.arange(6) - row) % 6 > 2  # list 0 holds this row and the next two
        part = ListBlock(block, ListOrder(apart.astype(np.int32)[:, None]), None)
        found = top_k_in_lists([part], data[row : row + 1], everywhere, 1)
        assert (found.keys.tolist(), found.scores.tolist()) == ([[row]], [[1.0]])
        del part


def test_sizes_count_the_rows_that_pass() -> None:
    lists = np.array([[0], [2], [3], [3]], np.int32)
    order = ListOrder(lists)
    assert order.sizes(None).tolist() == [1, 0, 1, 2]
    assert order.sizes(np.array([0, 2])).tolist() == [1, 0, 0, 1]
    assert ArrayView({"lists": lists}).list_sizes("lists").tolist() == [1, 0, 1, 2]


def test_the_first_search_for_many_queries_ends() -> None:
    """Whoever comes first codes the rows, in threads too, while the other threads wait for the codes."""
    draw, rows = np.random.default_rng(1), 20_000
    data, lists = draw.standard_normal((rows, 32)).astype(np.float32), draw.integers(0, 5, (rows, 1)).astype(np.int32)
    queries, chosen = draw.standard_normal((64, 32)).astype(np.float32), draw.integers(0, 5, (64, 2))
    found = []

    def search() -> None:
        part = ListBlock(Block(data, np.arange(rows)), ListOrder(lists), None)
        found.append(top_k_in_lists([part], queries, chosen, 5))

    with search_threads(2):
        threads = [threading.Thread(target=search, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert len(found) == 3, "they wait for each other"
    for other in found[1:]:
        np.testing.assert_array_equal(other.keys, found[0].keys)
