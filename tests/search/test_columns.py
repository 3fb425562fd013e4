"""Search by columns finds what comparing every row finds, whatever the rows look like."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palmette.search import columns, exact, set_threads
from palmette.search.block import Block
from palmette.search.columns import Columns, _Rounding
from palmette.search.engine import engine_named, top_k
from palmette.search.exact import ExactEngine
from palmette.search.fixed import ONE, as_floats, as_parts, to_fixed
from palmette.search.kernels import folded, searchable
from palmette.search.probe import Found


@pytest.fixture(autouse=True)
def small_blocks_have_columns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in {
        "_MANY": 1,
        "_MANY_IN_BATCH": 1,
        "_WIDE": 1,
        "_SHARE": 0.0,
        "_PER_HIT": 0,
        "_ASKED": 0,
    }.items():
        monkeypatch.setattr(exact, name, value)
    monkeypatch.setattr(columns, "_TILE", 128)
    yield
    set_threads(None)


def tree_like(rng: np.random.Generator, rows: int, depth: int, slope: float) -> np.ndarray:
    """Leaves of a random tree: soft for gentle slopes, nearly one-hot for steep ones."""
    left = 1 / (1 + np.exp(-slope * rng.standard_normal((rows, 6)) @ rng.standard_normal((6, 2**depth - 1))))
    reached = np.ones((rows, 1))
    for level in range(depth):
        turn = left[:, 2**level - 1 : 2 ** (level + 1) - 1]
        reached = np.stack([reached * turn, reached * (1 - turn)], axis=2).reshape(rows, -1)
    return reached.astype(np.float32)


def rows_of(kind: str, rng: np.random.Generator, rows: int) -> np.ndarray:
    match kind:
        case "soft":
            return tree_like(rng, rows, 5, 0.2)
        case "sharp":
            return tree_like(rng, rows, 5, 4)
        case "few different":
            return np.eye(32, dtype=np.float32)[rng.integers(0, 4, (rows, 2))].mean(axis=1)
        case "sparse":
            given = rng.random((rows, 32)) * (rng.random((rows, 32)) < 0.1) + 1e-9
        case _:
            given = rng.dirichlet(np.full(32, 0.3), size=rows)
    return (given / given.sum(axis=1, keepdims=True)).astype(np.float32)


def brute(data: np.ndarray, keys: np.ndarray, queries: np.ndarray, k: int) -> Found:
    """The definition, in float64, rounded once; ties to the smaller key."""
    scores = (
        np.minimum(as_floats(data)[None], queries[:, None].astype(np.float64)).sum(axis=2).astype(np.float32)
    )
    order = np.array([np.lexsort((keys, -row))[:k] for row in scores])
    return Found(keys[order], np.take_along_axis(scores, order, axis=1))


def same(found: Found, expected: Found) -> bool:
    return np.array_equal(found.keys, expected.keys) and np.array_equal(found.scores, expected.scores)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["soft", "sharp", "few different", "sparse", "any"]),
    fixed=st.booleans(),
    rows=st.sampled_from([1, 5, 128, 300, 700]),
    count=st.integers(1, 6),
    k=st.sampled_from([1, 3, 10, 128, 1000]),
    share=st.sampled_from([0.02, 0.5, 1.0]),
    fold=st.sampled_from([1, 2, 8, (1, 1, 2, 4, 8, 16), (31, 1), (4,) * 6 + (1,) * 8]),
    places=st.lists(st.integers(1, 600), max_size=2),
    threads=st.integers(1, 3),
    rounding=st.none()
    | st.builds(_Rounding, st.sampled_from([0.0]), st.sampled_from([1, 8, 256]), st.just(False))
    | st.builds(
        _Rounding, st.sampled_from([0.0, 20.0, 900.5]), st.sampled_from([1.0, 2.0, 70.5]), st.just(True)
    ),
)
def test_columns_are_brute_force(
    seed: int,
    kind: str,
    fixed: bool,
    rows: int,
    count: int,
    k: int,
    share: float,
    fold: int | tuple[int, ...],
    places: list[int],
    threads: int,
    rounding: _Rounding | None,
) -> None:
    rng = np.random.default_rng(seed)
    stored = rows_of(kind, rng, rows + count)
    stored = to_fixed(stored) if fixed else stored
    level = searchable(stored, fold)
    data, queries = level[:rows], as_floats(level[rows:])
    keys = np.cumsum(rng.integers(1, 4, rows))
    wanted = np.flatnonzero(rng.random(rows) < share)
    edges = [0, *sorted({place for place in places if place < rows}), rows]
    blocks = []
    for a, b in zip(edges, edges[1:], strict=False):
        inside = wanted[(wanted >= a) & (wanted < b)] - a
        blocks.append((Block(data[a:b], keys[a:b]), None if share == 1 else inside))
    wanted = np.arange(rows) if share == 1 else wanted
    set_threads(threads)
    with pytest.MonkeyPatch.context() as patch:
        if rounding is not None:
            patch.setattr(_Rounding, "of", lambda sample: rounding)
        found = top_k(blocks, queries, "overlap", k, ExactEngine())
    if len(wanted):
        assert same(found, brute(data[wanted], keys[wanted], queries, k))
    assert found.keys.shape == (count, min(k, len(wanted)))


@pytest.mark.parametrize(("slope", "depth", "half"), [(0.05, 10, True), (4.0, 7, False)])
def test_numbers_close_together_take_half_a_byte(slope: float, depth: int, half: bool, monkeypatch) -> None:
    monkeypatch.setattr(columns, "_TILE", 8192)
    leaves = to_fixed(tree_like(np.random.default_rng(3), 5003, depth, slope))
    block, queries = Block(leaves[:5000], np.arange(5000)), as_floats(leaves[5000:])
    made = Columns.build(block.data)
    assert made.rounding.half == half
    assert made.codes.shape == (1, 2**depth, 2560 if half else 5120)
    for one in (queries[:1], queries):
        found = top_k([(block, None)], one, "overlap", 10, ExactEngine())
        assert same(found, brute(block.data, block.keys, one, 10))
        assert found.refined < 2500


def test_most_rows_are_never_compared() -> None:
    rng = np.random.default_rng(0)
    for slope, most in ((0.1, 0.2), (1.0, 0.1), (4.0, 0.1)):
        leaves = to_fixed(tree_like(rng, 3010, 7, slope))
        block, queries = Block(leaves[:3000], np.arange(3000)), as_floats(leaves[3000:])
        found = top_k([(block, None)], queries, "overlap", 3, ExactEngine())
        assert 3 <= found.refined < most * 3000
        assert found.compared == 3000
        assert found.read < leaves[:3000].nbytes
        assert same(found, brute(block.data, block.keys, queries, 3))


@pytest.mark.parametrize("engine", ["exact", "faiss"])
@pytest.mark.parametrize("metric", ["overlap", "inner_product"])
def test_fixed_point_rows_are_the_fractions_they_stand_for(engine: str, metric: str) -> None:
    if engine == "faiss":
        pytest.importorskip("faiss")
    rng = np.random.default_rng(1)
    parts = to_fixed(rows_of("any", rng, 400))
    for queries in (as_floats(parts[:5]), rng.random((5, 32), np.float32)):  # in whole parts, and not
        for rows in (None, np.arange(0, 400, 3)):
            fixed = top_k([(Block(parts, np.arange(400)), rows)], queries, metric, 7, engine_named(engine))
            floats = top_k(
                [(Block(as_floats(parts), np.arange(400)), rows)], queries, metric, 7, ExactEngine()
            )
            assert same(fixed, floats)


@pytest.mark.parametrize("wrong", [-0.25])
def test_numbers_that_are_no_fractions_are_compared_one_by_one(wrong: float) -> None:
    rng = np.random.default_rng(2)
    data = rows_of("any", rng, 300)
    data[7, 3] = wrong
    assert Columns.build(data) is None
    queries = data[5:9]  # one of them as odd
    found = top_k([(Block(data, np.arange(300)), None)], queries, "overlap", 5, ExactEngine())
    assert same(found, brute(data, np.arange(300), queries, 5))
    assert found.refined == 300


def test_large_fractions_and_full_parts() -> None:
    data = np.zeros((200, 3), np.uint16)
    data[:, 0], data[::2, 1] = ONE, ONE - 1
    data[3] = [255 * 256, 0, 1]
    queries = as_floats(data[:4])
    found = top_k([(Block(data, np.arange(200)), None)], queries, "overlap", 9, ExactEngine())
    assert same(found, brute(data, np.arange(200), queries, 9))


def test_rounding_keeps_every_sum() -> None:
    rng = np.random.default_rng(3)
    fractions = rng.dirichlet(np.full(1000, 0.2), size=50).astype(np.float32) * np.float32(0.9999)
    parts = to_fixed(fractions)
    assert (parts.sum(axis=1) == ONE).all()
    fractions /= fractions.sum(axis=1, keepdims=True)
    for run in (1, 10, 500):
        assert np.abs(as_floats(folded(parts, run)) - folded(fractions, run)).max() < 1.01 / ONE
    assert np.array_equal(to_fixed(as_floats(parts)), parts)
    assert np.array_equal(as_parts(as_floats(parts)), parts)
    assert as_parts(fractions) is None
    assert to_fixed(np.eye(3, dtype=np.float32)).max() == ONE


def test_folding_in_runs() -> None:
    rng = np.random.default_rng(4)
    parts = to_fixed(rows_of("any", rng, 20))
    runs = (1, 2, 5, 8, 16)
    sums = folded(parts, runs)
    assert sums.dtype == np.uint16
    assert np.array_equal(sums[:, 2], parts[:, 3:8].sum(axis=1))
    assert np.array_equal(as_floats(sums), folded(as_floats(parts), runs))
    assert np.array_equal(folded(parts, 4), folded(parts, (4,) * 8))
    heavy = np.full((2, 4), 60_000, np.uint16)
    assert np.array_equal(folded(heavy, 2), np.full((2, 2), 120_000 / ONE, np.float32))
