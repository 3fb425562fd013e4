import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palmette.search.best import best, best_of_each, highest

few = st.lists(st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=30)


@given(few, st.integers(1, 35))
def test_the_best_come_first_and_equal_ones_by_place(scores: list[float], k: int) -> None:
    expected = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:k]
    for dtype in (np.float32, np.float64):
        assert best(np.array(scores, dtype), k).tolist() == expected


@given(few, st.integers(1, 35))
def test_the_highest_are_all_that_could_be_among_the_best(scores: list[float], k: int) -> None:
    least = sorted(scores, reverse=True)[:k][-1]
    assert highest(np.array(scores), k).tolist() == [i for i, s in enumerate(scores) if s >= least]


@pytest.mark.parametrize("k", [1, 3, 7, 9])
def test_every_row_has_its_own_best(k: int) -> None:
    scores = np.random.default_rng(0).integers(0, 4, (5, 7)).astype(np.float32)
    found = best_of_each(scores, k)
    assert found.shape == (5, min(k, 7))
    np.testing.assert_array_equal(found, np.argsort(-scores, axis=1, kind="stable")[:, :k])


def test_no_row_has_none() -> None:
    assert best_of_each(np.empty((0, 7), np.float32), 3).shape == (0, 3)
