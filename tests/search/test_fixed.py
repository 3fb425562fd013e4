"""Distributions in fixed point: searched exactly, rounded so that every sum stays, folded to coarser levels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.arrays import ONE, as_fixed, as_floats, fold_columns, to_fixed
from palmette.search import flat, set_threads
from palmette.search.faiss_engine import engine_named
from palmette.search.flat import Block, ExactEngine, as_block, top_k
from support.vectors import brute, distributions, same, search


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 700),
    count=st.integers(1, 5),
    k=st.sampled_from([1, 3, 20, 900]),
    share=st.sampled_from([1.0, 0.9, 0.2]),
    fold=st.sampled_from([1, 2, 8]),
    half=st.booleans(),
    ties=st.booleans(),
    threads=st.integers(1, 3),
)
def test_levels_are_searched_as_by_brute_force(
    seed: int, rows: int, count: int, k: int, share: float, fold: int, half: bool, ties: bool, threads: int
) -> None:
    rng = np.random.default_rng(seed)
    fixed = to_fixed(distributions(rng, rows + count, 32, ties))
    level = as_block(
        as_floats(fixed).astype(np.float16) if half else fixed, np.arange(rows + count), fold
    ).data
    data, queries = level[:rows], as_floats(level[rows:])
    keys, wanted = np.cumsum(rng.integers(1, 4, rows)), np.flatnonzero(rng.random(rows) < share)
    set_threads(threads)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flat, "_WORTH_A_THREAD", 1)
            found = top_k([(Block(data, keys), wanted)], queries, "overlap", k, ExactEngine())
    finally:
        set_threads(None)
    if len(wanted):
        assert same(found, brute(data[wanted], keys[wanted], queries, "overlap", k))
    assert found.keys.shape == (count, min(k, len(wanted)))


@pytest.mark.parametrize("engine", ["exact", "faiss"])
@pytest.mark.parametrize("metric", ["overlap", "inner_product"])
def test_fixed_point_rows_are_the_fractions_they_stand_for(engine: str, metric: str) -> None:
    if engine == "faiss":
        pytest.importorskip("faiss")
    rng = np.random.default_rng(1)
    fixed = to_fixed(distributions(rng, 400, 32))
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
    fixed = to_fixed(distributions(np.random.default_rng(4), 20, 32))
    sums = fold_columns(fixed, 8)
    assert sums.dtype == np.uint16
    assert np.array_equal(as_floats(sums), fold_columns(as_floats(fixed), 8))
    heavy = np.full((2, 4), 60_000, np.uint16)
    assert np.array_equal(fold_columns(heavy, 2), np.full((2, 2), 120_000 / ONE, np.float32))
