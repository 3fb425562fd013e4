"""Search by columns finds what comparing every row finds, whatever the rows look like."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palmette.arrays import ONE, as_fixed, as_floats, fold_columns, to_fixed
from palmette.search import columns, flat, set_threads
from palmette.search.faiss_engine import engine_named
from palmette.search.flat import Block, ExactEngine, as_block, top_k
from support.vectors import brute, same, search


@pytest.fixture(autouse=True)
def small_blocks_have_columns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("_MANY_ROWS", "_WIDE", "_SHARE", "_ROWS_PER_HIT", "_QUERIES_BEFORE"):
        monkeypatch.setattr(flat, name, 0)
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


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["soft", "sharp", "few different", "sparse", "any"]),
    rows=st.integers(1, 700),
    count=st.integers(1, 5),
    k=st.sampled_from([1, 3, 20, 900]),
    share=st.sampled_from([1.0, 0.9, 0.2]),
    fold=st.sampled_from([1, 2, 8]),
    places=st.lists(st.integers(1, 600), max_size=2),
    threads=st.integers(1, 3),
    step=st.sampled_from([None, 1, 8, 256]),
)
def test_columns_are_brute_force(
    seed: int, kind: str, rows: int, count: int, k: int, share: float, fold: int, places: list[int], threads: int,
    step: int | None,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    level = as_block(to_fixed(rows_of(kind, rng, rows + count)), np.arange(rows + count), fold).data
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
        if step is not None:  # codes that tell numbers apart badly
            patch.setattr(columns, "_cut", lambda _, tried: float(tried < step))
        found = top_k(blocks, queries, "overlap", k, ExactEngine())
    if len(wanted):
        assert same(found, brute(data[wanted], keys[wanted], queries, "overlap", k))
    assert found.keys.shape == (count, min(k, len(wanted)))


def test_most_rows_are_never_compared() -> None:
    rng = np.random.default_rng(0)
    for slope, most in ((0.1, 0.25), (1.0, 0.1), (4.0, 0.1)):
        leaves = to_fixed(tree_like(rng, 3003, 7, slope))
        data, queries = leaves[:3000], as_floats(leaves[3000:])
        found = search(data, queries, "overlap", 3, ExactEngine())
        assert 3 <= found.refined < most * 3000
        assert found.visited == 3000
        assert found.read < data.nbytes
        assert same(found, brute(data, np.arange(3000), queries, "overlap", 3))


@pytest.mark.parametrize("engine", ["exact", "faiss"])
@pytest.mark.parametrize("metric", ["overlap", "inner_product"])
def test_fixed_point_rows_are_the_fractions_they_stand_for(engine: str, metric: str) -> None:
    if engine == "faiss":
        pytest.importorskip("faiss")
    rng = np.random.default_rng(1)
    fixed = to_fixed(rows_of("any", rng, 400))
    for queries in (as_floats(fixed[:5]), rng.random((5, 32), np.float32)):  # in whole parts, and not
        for rows in (None, np.arange(0, 400, 3)):
            one, other = (
                top_k([(Block(data, np.arange(400)), rows)], queries, metric, 7, engine_named(name))
                for data, name in ((fixed, engine), (as_floats(fixed), "exact"))
            )
            assert same(one, other)


def test_large_fractions_and_full_parts() -> None:
    data = np.zeros((200, 3), np.uint16)
    data[:, 0], data[::2, 1] = ONE, ONE - 1
    data[3] = [255 * 256, 0, 1]
    queries = as_floats(data[:3])
    found = search(data, queries, "overlap", 9, ExactEngine())
    assert same(found, brute(data, np.arange(200), queries, "overlap", 9))


def test_rounding_keeps_every_sum() -> None:
    rng = np.random.default_rng(3)
    fractions = rng.dirichlet(np.full(1000, 0.2), size=50).astype(np.float32) * np.float32(0.9999)
    fixed = to_fixed(fractions)
    assert (fixed.sum(axis=1) == ONE).all()
    fractions /= fractions.sum(axis=1, keepdims=True)
    for run in (1, 10, 500):
        assert np.abs(as_floats(fold_columns(fixed, run)) - fold_columns(fractions, run)).max() < 1.01 / ONE
    assert np.array_equal(to_fixed(as_floats(fixed)), fixed)
    assert np.array_equal(as_fixed(as_floats(fixed)), fixed)
    assert as_fixed(fractions) is None
    assert to_fixed(np.eye(3, dtype=np.float32)).max() == ONE


def test_folding_is_summing_neighbours() -> None:
    stored = np.random.default_rng(0).integers(0, 9, (300, 12)).astype(np.uint8)
    assert np.array_equal(fold_columns(stored, 4), stored.reshape(300, 3, 4).sum(axis=2))
    assert fold_columns(stored, 1).dtype == np.float32
    fixed = to_fixed(rows_of("any", np.random.default_rng(4), 20))
    sums = fold_columns(fixed, 8)
    assert sums.dtype == np.uint16
    assert np.array_equal(as_floats(sums), fold_columns(as_floats(fixed), 8))
    heavy = np.full((2, 4), 60_000, np.uint16)
    assert np.array_equal(fold_columns(heavy, 2), np.full((2, 2), 120_000 / ONE, np.float32))
