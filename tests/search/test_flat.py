"""Exact search, by any engine, over any cut of the rows: the same hits as brute force in float64."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.errors import ConfigError, EncodingError, InputError, MissingExtraError
from palmette.search import codes, flat, get_threads, kernels, set_threads
from palmette.search.faiss_engine import engine_named
from palmette.search.flat import Block, Engine, ExactEngine, Shortlist, exact_scores, overlap_scores, top_k
from palmette.search.plan import Candidates, Lists, Score, SearchPlan
from palmette.store.filters import parse_filter
from palmette.store.local import LocalBackend
from support.stores import SPECS, arrays_of, doc, program_environment, put
from support.vectors import brute, cut, distributions, same, search

METRICS = ["overlap", "inner_product"]


@pytest.fixture(params=["exact", "faiss"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "faiss":
        pytest.importorskip("faiss")
    return engine_named(request.param)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 60),
    columns=st.sampled_from([1, 2, 7, 16, 33]),
    count=st.integers(1, 9),
    k=st.integers(1, 70),
    metric=st.sampled_from(METRICS),
    ties=st.booleans(),
    places=st.lists(st.integers(1, 59), max_size=3),
    signed=st.booleans(),
)
def test_any_cut_is_brute_force(
    seed: int,
    rows: int,
    columns: int,
    count: int,
    k: int,
    metric: str,
    ties: bool,
    places: list[int],
    signed: bool,
) -> None:
    pytest.importorskip("faiss")
    rng = np.random.default_rng(seed)
    data, queries = distributions(rng, rows, columns, ties), distributions(rng, count, columns, ties)
    if signed:
        data, queries = data * rng.choice([-3, 1], data.shape), queries * rng.choice([-1, 1], queries.shape)
        data, queries = data.astype(np.float32), queries.astype(np.float32)
    keys = np.cumsum(rng.integers(1, 4, rows))
    expected = brute(data, keys, queries, metric, k)
    for name in ("exact", "faiss"):
        found = top_k(cut(data, keys, places), queries, metric, k, engine_named(name))
        assert found.keys.shape == (count, min(k, rows))
        assert same(found, expected)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("tile", [7, 500])
def test_tiles_batches_and_threads_change_nothing(
    engine: Engine, metric: str, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    data, queries, keys = distributions(rng, 900, 24), distributions(rng, 30, 24), np.arange(900) * 3
    expected = brute(data, keys, queries, metric, 40)
    for name, value in {"_TILE": tile, "_BATCH": 11, "_WORTH_A_THREAD": 1, "_FEW": 0}.items():
        monkeypatch.setattr(flat, name, value)
    for name, value in {"_TILE": tile, "_PRODUCTS": 1, "_WORTH_A_THREAD": 1}.items():
        monkeypatch.setattr(codes, name, value)
    try:
        for threads in (1, 3):
            set_threads(threads)
            assert same(top_k(cut(data, keys, [100, 101, 640]), queries, metric, 40, engine), expected)
            for row, query in enumerate(queries[:5]):
                single = top_k(cut(data, keys, []), query[None], metric, 40, engine)
                assert same(single, expected.one_query(row))
    finally:
        set_threads(None)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("share", [0.01, 0.2, 0.6, 0.99])
def test_only_allowed_rows_are_ranked(engine: Engine, metric: str, share: float) -> None:
    rng = np.random.default_rng(int(share * 100))
    data, queries, keys = distributions(rng, 700, 16), distributions(rng, 5, 16), np.arange(700) + 50
    rows = np.flatnonzero(rng.random(700) < share)
    for k in (1, 3, 1000):
        found = top_k([(Block(data, keys), rows)], queries, metric, k, engine)
        assert same(found, brute(data[rows], keys[rows], queries, metric, k))
    nothing = top_k([(Block(data, keys), rows[:0])], queries, metric, 3, engine)
    assert nothing.keys.shape == (5, 0)


@pytest.mark.parametrize("metric", METRICS)
def test_near_ties_below_the_rounding_of_the_kernels(engine: Engine, metric: str) -> None:
    """Scores that differ in their last bits are ranked as float64 ranks them, however wide the field."""
    rng = np.random.default_rng(3)
    data = np.repeat(distributions(rng, 1, 512), 400, axis=0)
    data[np.arange(400), rng.integers(0, 512, 400)] += rng.choice([0, 1e-7, -1e-7], 400).astype(np.float32)
    queries = distributions(rng, 3, 512)
    assert same(search(data, queries, metric, 20, engine), brute(data, np.arange(400), queries, metric, 20))


def test_overlaps_keep_their_bound() -> None:
    rng = np.random.default_rng(0)
    data, queries = distributions(rng, 300, 700), distributions(rng, 6, 700)
    rows = np.arange(0, 300, 2)
    margin = Block(data, np.arange(300)).margin(queries, "overlap")
    for fast, query in zip(overlap_scores(data, rows, queries), queries, strict=True):
        pairs = Shortlist(np.zeros(len(rows), np.int64), rows, 0, 0)
        assert np.abs(fast - exact_scores(data, pairs, query[None], "overlap")).max() <= margin.min() / 2


def test_searches_in_parallel_threads_agree(engine: Engine) -> None:
    rng = np.random.default_rng(8)
    data, keys, queries = distributions(rng, 2000, 32), np.arange(2000), distributions(rng, 40, 32)
    block = Block(data, keys)
    expected = brute(data, keys, queries, "inner_product", 5)
    with ThreadPoolExecutor(8) as threads:
        found = threads.map(
            lambda query: top_k([(block, None)], query[None], "inner_product", 5, engine), queries
        )
        assert np.array_equal(np.concatenate([one.keys for one in found]), expected.keys)


def test_engines_agree_in_an_index_with_filters_and_folds() -> None:
    pytest.importorskip("faiss")
    with LocalBackend.in_memory(SPECS) as exact, LocalBackend.in_memory(SPECS, engine="faiss") as other:
        for backend in (exact, other):
            put(backend, *(doc(f"d{i}", n=i % 10) for i in range(200)))
            put(backend, *(doc(f"d{i}", "changed", n=1) for i in range(0, 200, 7)))
        queries = arrays_of([doc("q"), doc("r")])["leaves"]
        for condition in (None, {"n": {"$lt": 3}}, {"n": 1}):
            for metric in METRICS:
                for fold in (1, 4):
                    asked = queries.reshape(2, -1, fold).sum(axis=2).astype(np.float32)
                    plan = SearchPlan(Score("leaves", asked, metric, fold))
                    with exact.read(parse_filter(condition)) as a, other.read(parse_filter(condition)) as b:
                        assert same(a.candidates(plan, 12), b.candidates(plan, 12))


def test_plans_that_cannot_be_executed_are_refused() -> None:
    ones, weights = np.ones((1, 2), np.float32), np.ones(2, np.float32)
    with LocalBackend.in_memory(SPECS) as backend:
        put(backend, doc("a"))
        with backend.read() as view:
            for fold in (0, 3):
                with pytest.raises(InputError, match="do not fit"):
                    view.candidates(SearchPlan(Score("leaves", ones, "overlap", fold)), 1)
            with pytest.raises(InputError, match="do not fit"):
                view.candidates(SearchPlan(Score("leaves", ones, part_weights=weights)), 1)
            with pytest.raises(InputError, match="stores no array 'others'"):
                view.candidates(SearchPlan(Score("others", ones)), 1)
            with pytest.raises(InputError, match="k must be at least 1"):
                view.candidates(SearchPlan(Score("leaves", ones, fold=4)), 0)
            for metric, fold in (("overlap", 1), ("inner_product", 4)):
                lists = Lists("leaves", np.zeros((1, 1), np.int64))
                with pytest.raises(InputError, match="compares by inner_product, with fold=1"):
                    view.candidates(SearchPlan(Score("leaves", ones, metric, fold), lists=lists), 1)
    with pytest.raises(InputError, match=r"unknown metric 'cosine'. Metrics: inner_product, overlap"):
        Score("leaves", ones, "cosine")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"\[Q, d\] float32"):
        Score("leaves", ones[0])
    with pytest.raises(EncodingError, match="query 0 holds NaN"):
        Score("leaves", ones * np.float32(np.nan))
    for wrong in ([0, 0], [1, -1]):
        with pytest.raises(InputError, match="at least 0, and one of them above 0"):
            Score("parts", ones, part_weights=np.array(wrong, np.float32))
    with pytest.raises(InputError, match="must be float32"):
        Score("parts", ones, part_weights=np.ones(2))


def test_faiss_itself_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    rng = np.random.default_rng(1)
    data, queries, rows = distributions(rng, 500, 16), distributions(rng, 4, 16), np.arange(0, 500, 3)
    monkeypatch.delattr(ExactEngine, "shortlist")
    found = top_k([(Block(data, np.arange(500)), rows)], queries, "inner_product", 5, engine_named("faiss"))
    assert same(found, brute(data[rows], rows, queries, "inner_product", 5))


def test_faiss_is_not_trusted_among_near_ties() -> None:
    pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    data = rng.permuted(
        np.repeat(distributions(rng, 1, 512), 3000, axis=0), axis=1
    )  # equal sums, but in float32
    queries = np.full((1, 512), 1 / 512, np.float32)
    found = search(data, queries, "inner_product", 1, engine_named("faiss"))
    assert same(found, brute(data, np.arange(3000), queries, "inner_product", 1))


def test_a_missing_faiss_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'palmette\[cpu\]'"):
        LocalBackend.in_memory(SPECS, engine="faiss")


def test_threads_are_chosen_by_call_environment_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        monkeypatch.setenv("PALMETTE_THREADS", "3")
        assert get_threads() == 3
        set_threads(5)
        assert get_threads() == 5
        with pytest.raises(ConfigError, match="at least 1.*0"):
            set_threads(0)
        set_threads(None)
        monkeypatch.setenv("PALMETTE_THREADS", "many")
        with pytest.raises(ConfigError, match="PALMETTE_THREADS.*'many'"):
            get_threads()
        monkeypatch.delenv("PALMETTE_THREADS")
        assert get_threads() >= 1
    finally:
        set_threads(None)


def fresh_python(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], env=program_environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_heavy_modules_are_loaded_only_when_needed() -> None:
    script = """
import sys
import numpy as np
from support.stores import SPECS, doc, put
from palmette.search.plan import Score, SearchPlan
from palmette.store.local import LocalBackend
def loaded():
    return sorted({"faiss", "numba", "torch"} & set(sys.modules))
with LocalBackend.in_memory(SPECS) as backend:
    put(backend, doc("a"))
    with backend.read() as view:
        assert view.ids([view.key_of("a")]) == ["a"]
        print(loaded())
        for metric in ("inner_product", "overlap"):
            view.candidates(SearchPlan(Score("leaves", np.ones((1, 8), np.float32), metric)), 1)
            print(loaded())
"""
    assert fresh_python(script).splitlines() == ["[]", "['numba']", "['numba']"]


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
    assert fresh_python(script).split() == ["[[1.", "1.", "1.]]", "NullCache"]


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
    for found, expected in zip(
        kernels.at_least(table, limits), np.nonzero(table >= limits[:, None]), strict=True
    ):
        assert found.tolist() == expected.tolist()
