"""The best of scores; distributions in fixed point, rounded so that every sum stays; ragged rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.arrays import ONE, Ragged, as_fixed, as_floats, best, fold_columns, highest, to_fixed
from palmette.errors import InputError
from support.stores import ragged_of
from support.vectors import distributions

few = st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=30)


@given(few, st.integers(1, 35))
def test_the_best_come_first_and_equal_ones_by_place(scores: list[float], k: int) -> None:
    expected = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:k]
    for dtype in (np.float32, np.float64):
        assert best(np.array(scores, dtype), k).tolist() == expected
    least = sorted(scores, reverse=True)[:k][-1]
    assert highest(np.array(scores), k).tolist() == [i for i, s in enumerate(scores) if s >= least]


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


def test_ragged_rows() -> None:
    rows = [np.arange(count * 2).reshape(count, 2) + count for count in (2, 0, 3, 1)]
    ragged = ragged_of(*rows)
    assert len(ragged) == 4
    taken = ragged.take(np.array([2, 1, 2, 0]))
    for at, row in enumerate((2, 1, 2, 0)):
        assert np.array_equal(taken.row(at), rows[row])
    assert np.array_equal(ragged.row(-1), ragged.take(np.array([-1])).row(0))
    assert np.array_equal(ragged.take(np.array([False, False, True, False])).row(0), rows[2])
    parts = [ragged, Ragged.empty(2, (2,), "int64"), taken]
    whole = Ragged.concatenate(parts)
    assert [len(part) for part in parts] == [4, 2, 4]
    assert len(whole) == 10
    assert np.array_equal(whole.row(6), rows[2])
    assert len(Ragged.empty(0, (2,), "int8").take(np.array([], np.int64))) == 0


@pytest.mark.parametrize("starts", [[0, 2], [1, 3], [0, 2, 1, 3], [], [[0, 3]], [0.0, 3.0]])
def test_starts_must_fit_the_rows(starts: list) -> None:
    with pytest.raises(InputError, match="rise from 0 to the number of rows, 3"):
        Ragged(np.zeros((3, 2)), np.array(starts, float if 0.0 in starts and starts else np.int64))
