"""Exact search, by any engine, over any cut of the rows: the same hits as brute force in float64."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from itertools import product as every
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.arrays import as_floats, to_fixed
from palmette.errors import ConfigError, EncodingError, InputError, MissingExtraError
from palmette.search import codes, flat, get_threads, kernels, set_threads
from palmette.search.faiss_engine import engine_named
from palmette.search.flat import Block, ExactEngine, Shortlist, as_block, exact_scores, overlap_scores, top_k
from palmette.search.plan import Candidates, Score, SearchPlan
from palmette.store.local.backend import LocalBackend
from support.stores import SPECS, arrays_of, doc, put, run_python
from support.threads import search_threads
from support.vectors import brute, cut, distributions, same, search, vectors

METRICS = ["overlap", "inner_product"]


@pytest.fixture(params=["exact", "faiss"])
def engine(request: pytest.FixtureRequest) -> ExactEngine:
    if request.param == "faiss":
        pytest.importorskip("faiss")
    return engine_named(request.param)


PRODUCTS = [codes.product_of_floats, codes.matrix_product()]  # that of bytes saturates on some processors
SHARES = ["shares", "halves", "signed"]
SMALL = {"_TILE": 64, "_BATCH": 11, "_PAIRS_IN_FULL": 0, "_PRODUCTS": 1, "_WORTH_A_THREAD": 1, "_PIECE": 500}


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    how=st.one_of(
        st.tuples(st.just("inner_product"), st.sampled_from([*SHARES, "any", "ties", "close", "lengths", "spikes"])),
        st.tuples(st.just("overlap"), st.sampled_from(SHARES)),
    ),
    dtype=st.sampled_from(["float32", "float16", "uint16"]),
    whole=st.booleans(),
    fold=st.sampled_from([1, 2, 8]),
    rows=st.integers(1, 400),
    width=st.sampled_from([1, 3, 8, 31, 64, 65, 130]),
    count=st.sampled_from([1, 4, 5, 19]),
    k=st.sampled_from([1, 3, 20, 500]),
    share=st.sampled_from([1.0, 0.9, 0.2]),
    places=st.lists(st.integers(1, 399), max_size=3),
    tile=st.sampled_from([1, 64, 1000]),
    threads=st.integers(1, 3),
    product=st.sampled_from(PRODUCTS),
)  # fmt: skip
def test_any_search_of_any_cut_is_brute_force(
    seed: int, how: tuple[str, str], dtype: str, whole: bool, fold: int, rows: int, width: int, count: int, k: int,
    share: float, places: list[int], tile: int, threads: int, product: Any,
) -> None:  # fmt: skip
    rng, (metric, kind) = np.random.default_rng(seed), how
    data, queries = vectors(rng, kind, rows, width * fold), vectors(rng, kind, count, width)
    if dtype == "uint16":
        data = to_fixed(distributions(rng, rows, width * fold, ties=kind == "halves"))
    elif dtype == "float16":
        data = data.clip(-6e4, 6e4).astype(np.float16)
    if whole and kind in SHARES[:2]:  # in parts of fixed point
        queries = as_floats(to_fixed(queries))
    keys = np.cumsum(rng.integers(1, 4, rows))
    wanted = np.flatnonzero(rng.random(rows) < share)
    with pytest.MonkeyPatch.context() as patch, search_threads(threads), np.errstate(over="ignore"):
        for module in (flat, codes):
            for name, value in {**SMALL, "_TILE": tile}.items():
                patch.setattr(module, name, value, raising=False)
        patch.setattr(codes, "matrix_product", lambda: product)
        level = as_block(data, keys, fold).data
        expected = brute(level[wanted], keys[wanted], queries, metric, k)
        for name in ("exact", "faiss") if kind in SHARES and find_spec("faiss") else ("exact",):
            parts = cut(level, keys, places, None if share == 1 else wanted)
            found = top_k(parts, queries, metric, k, engine_named(name))
            assert found.keys.shape == (count, min(k, len(wanted)))
            assert not len(wanted) or same(found, expected)


def test_few_rows_are_compared_in_full() -> None:
    rng = np.random.default_rng(0)
    data, queries = vectors(rng, "any", 20_000, 64), vectors(rng, "any", 6, 64)
    near = ExactEngine().shortlist(Block(data, np.arange(20_000)), None, queries, "inner_product", 10)
    assert 60 <= len(near.rows) < 600
    assert search(data, queries, "inner_product", 10, ExactEngine()).visited == 20_000


@pytest.mark.parametrize("count", [1, 7])
def test_what_the_bytes_of_a_query_lose_is_allowed_for(count: int) -> None:
    data, queries = np.zeros((9_000, 16), np.float32), np.full((count, 16), 0.0035, np.float32)
    data[:, 0], data[7, 0], queries[:, 0] = 100, 127, 1
    data[8_000] = [126, *[127] * 15]  # the best, by numbers of the query that its bytes round to 0
    assert (search(data, queries, "inner_product", 1, ExactEngine()).keys == 8_000).all()


@pytest.mark.parametrize("count", [1, 7])
def test_a_row_that_is_not_finite_is_never_left_out(count: int) -> None:
    rng = np.random.default_rng(0)
    data, queries = vectors(rng, "any", 9_000, 16), np.abs(vectors(rng, "any", count, 16))
    data[5_000, 3], data[6_000, 2] = np.inf, -np.inf
    found = search(data, queries, "inner_product", 3, ExactEngine())
    assert (found.keys[:, 0] == 5_000).all()
    assert (found.scores[:, 0] == np.inf).all()
    assert (found.keys != 6_000).all()


def test_overlaps_keep_their_bound() -> None:
    rng = np.random.default_rng(0)
    data, queries = distributions(rng, 300, 700), distributions(rng, 6, 700)
    rows = np.arange(0, 300, 2)
    margin = Block(data, np.arange(300)).margin(queries, "overlap")
    for fast, query in zip(overlap_scores(data, rows, queries), queries, strict=True):
        pairs = Shortlist(np.zeros(len(rows), np.int64), rows, 0)
        assert (
            np.abs(fast - exact_scores(Block(data, np.arange(300)), pairs, query[None], "overlap")).max()
            <= margin.min() / 2
        )


def test_an_index_is_searched_under_filters_and_folds(engine: ExactEngine) -> None:
    with LocalBackend.in_memory(SPECS, engine="exact" if type(engine) is ExactEngine else "faiss") as backend:
        put(backend, *(doc(f"d{i}", n=i % 10) for i in range(200)))
        put(backend, *(doc(f"d{i}", "changed", n=1) for i in range(0, 200, 7)))
        queries = arrays_of([doc("q"), doc("r")])["leaves"]
        for condition, metric, fold in every((None, {"n": {"$lt": 3}}, {"n": 1}), METRICS, (1, 4)):
            asked = queries.reshape(2, -1, fold).sum(axis=2).astype(np.float32)
            with backend.read(condition) as view:
                keys = view.keys()
                given = as_block(arrays_of(view.documents(keys.tolist()))["leaves"], keys, fold).data
                found = view.candidates(SearchPlan(Score("leaves", asked, metric, fold)), 12)
            assert same(found, brute(given, keys, asked, metric, 12))


def test_plans_that_cannot_be_executed_are_refused() -> None:
    ones, weights = np.ones((1, 2), np.float32), np.ones(2, np.float32)
    wide, narrow = np.ones((1, 8), np.float32), np.ones((1, 6), np.float32)
    with LocalBackend.in_memory(SPECS) as backend:
        put(backend, doc("a"))
        with backend.read() as view:
            for score, told in (
                (Score("leaves", ones, "overlap", 0), "do not fit"),
                (Score("leaves", ones, "overlap", 3), "do not fit"),
                (Score("leaves", ones, part_weights=weights), "do not fit"),
                (Score("leaves", wide, "overlap", 2), r"\(8,\) numbers.*\(16,\)"),
                (Score("leafs", wide), "no array 'leafs'.*leaves, tokens"),
                (Score("sentences", wide), r"'sentences' has any number of rows.*view\.ragged"),
                (Score("tokens", narrow), r"'tokens'.*\(2, 3\)"),
            ):
                with pytest.raises(InputError, match=told):
                    view.candidates(SearchPlan(score), 1)
    for error, values, told in (
        (InputError, (ones[0],), r"\[Q, d\] float32"),
        (EncodingError, (np.array([[1, 1], [1, np.nan]], np.float32),), "query 1 holds NaN"),
    ):
        with pytest.raises(error, match=told):
            Score("leaves", *values)


def test_faiss_is_not_trusted_among_near_ties() -> None:
    pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    # equal sums, but in float32
    data = rng.permuted(np.repeat(distributions(rng, 1, 512), 3000, axis=0), axis=1)
    queries = np.full((1, 512), 1 / 512, np.float32)
    found = search(data, queries, "inner_product", 1, engine_named("faiss"))
    assert same(found, brute(data, np.arange(3000), queries, "inner_product", 1))


def test_a_missing_faiss_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'palmette\[cpu\]'"):
        engine_named("faiss")


def test_threads_are_chosen_by_call_environment_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PALMETTE_THREADS", "3")
    assert get_threads() == 3
    with search_threads(5):
        assert get_threads() == 5
        with pytest.raises(ConfigError, match="at least 1.*0"):
            set_threads(0)
    assert get_threads() == 3
    monkeypatch.setenv("PALMETTE_THREADS", "many")
    with pytest.raises(ConfigError, match="PALMETTE_THREADS.*'many'"):
        get_threads()
    monkeypatch.delenv("PALMETTE_THREADS")
    assert get_threads() >= 1


def test_the_kernel_compiles_without_a_place_to_keep_it() -> None:
    script = """
import numpy as np
import numba.core.caching as caching
class Nowhere:
    @classmethod
    def from_function(cls, function, path):
        return None
caching.CacheImpl._locator_classes = [Nowhere]
from palmette.search import flat, kernels
x = np.full((3, 4), 0.25, np.float32)
print(flat.overlap_scores(x, np.arange(3), x[:1]), type(kernels.overlaps._cache).__name__)
"""
    done = run_python(script, timeout=120)
    assert done.stdout.split() == ["[[1.", "1.", "1.]]", "NullCache"], done.stderr


def test_candidates_of_one_query_have_no_padding() -> None:
    found = Candidates(np.array([[3, 1], [2, -1]]), np.array([[2, 1], [5, -np.inf]], np.float32))
    assert found.one_query(1).keys.tolist() == [[2]]
    assert found.one_query(1).scores.tolist() == [[5]]


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_infinities_are_no_other_numbers_in_compiled_loops() -> None:
    """Products of large numbers overflow; loops that assume finite ones made a 0 of them."""
    draw, infinite = np.random.default_rng(0), np.float32(np.inf)
    data = draw.normal(size=(40, 33)).astype(np.float32)
    data[3], data[7, 0] = data[3] * np.float32(1e30), -infinite
    query = draw.normal(size=(1, 33)).astype(np.float32) * np.float32(1e20)
    scores, which = np.empty(40, np.float32), np.empty(40, np.int64)
    rows, of = np.arange(40), np.zeros(40, np.int64)
    scales, weights = np.ones((40, 0), np.float32), np.ones(1, np.float32)
    kernels.best_parts(data[:, None], scales, rows, of, query, weights, scores, which)
    np.testing.assert_allclose(scores, data @ query[0], rtol=1e-3)
    table = np.array([[-infinite, 1, infinite, 2] * 9] * 3, np.float32)
    limits = np.array([-infinite, 1, infinite], np.float32)
    for found, expected in zip(kernels.at_least(table, limits), np.nonzero(table >= limits[:, None]), strict=True):
        assert found.tolist() == expected.tolist()
