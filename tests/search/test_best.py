import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.arrays import best, best_of_each, highest, unit_rows

few = st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=30)


@given(few, st.integers(1, 35))
def test_the_best_come_first_and_equal_ones_by_place(scores: list[float], k: int) -> None:
    expected = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:k]
    for dtype in (np.float32, np.float64):
        assert best(np.array(scores, dtype), k).tolist() == expected
    least = sorted(scores, reverse=True)[:k][-1]
    assert highest(np.array(scores), k).tolist() == [i for i, s in enumerate(scores) if s >= least]


@pytest.mark.parametrize("k", [1, 3, 7, 9])
def test_every_row_has_its_own_best(k: int) -> None:
    scores = np.random.default_rng(0).integers(0, 4, (5, 7)).astype(np.float32)
    np.testing.assert_array_equal(best_of_each(scores, k), np.argsort(-scores, axis=1, kind="stable")[:, :k])
    assert best_of_each(np.empty((0, 7), np.float32), 3).shape == (0, 3)


def test_unit_rows() -> None:
    rows = unit_rows(np.array([[3, 4], [0, 0]], np.float32))
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0, 0]], rtol=1e-6)
