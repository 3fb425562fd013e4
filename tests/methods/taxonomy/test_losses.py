import numpy as np
import pytest
import torch

from palmette.errors import InputError
from palmette.methods.taxonomy.data import Sampler
from palmette.methods.taxonomy.hierarchy import Matches


def matches() -> Matches:
    """Three queries over five documents: {0, 1}, {1, 2, 3} and {4}."""
    queries, documents, distances = [0, 0, 1, 1, 1, 2], [0, 1, 1, 2, 3, 4], [0, 1, 0, 1, 3, 0]
    return Matches.of(*map(np.array, (queries, documents, distances)), count=3, size=5)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("regular", [1 / 6, 1 / 6 + 1 / 9, 1 / 9, 1 / 9, 1 / 3]),
        ("heavy-tail", [0, 1 / 2, 1 / 8, 3 / 8, 0]),
        ("rebalanced", [1 / 24, 7 / 24 + 1 / 36, 1 / 36 + 1 / 16, 1 / 36 + 3 / 16, 1 / 3]),
    ],
)
def test_draws_follow_their_frequencies(kind: str, expected: list[float]) -> None:
    sampler = Sampler(matches(), kind, 0.25)
    generator, queries = torch.Generator().manual_seed(0), np.tile(np.arange(3), 4000)
    kept, drawn = sampler.draw(queries, generator)
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / len(drawn), expected, atol=0.02)
    some = {0, 1} if kind == "heavy-tail" else {0, 1, 2}
    assert set(queries[kept]) == some, "nothing is far from query 2"
    found = np.exp(sampler.log_frequencies.numpy())
    np.testing.assert_allclose(found, np.where(np.array(expected) > 0, expected, 1 / 6), atol=1e-6)
    of = [{0, 1}, {1, 2, 3}, {4}]
    assert all(d in of[q] for q, d in zip(queries[kept].tolist(), drawn.tolist(), strict=True))


def test_every_match_is_drawn_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    generator, queries = torch.Generator().manual_seed(0), np.array([1, 2, 1])
    owner, drawn = Sampler(matches()).draw(queries, generator)
    assert (owner.tolist(), drawn.tolist()) == ([0, 0, 0, 1, 2, 2, 2], [1, 2, 3, 4, 1, 2, 3])
    asked = np.array([1, 2, 1, 1, 1]) / 3  # of three queries so many have the document
    np.testing.assert_allclose(Sampler(matches()).log_frequencies.exp().numpy(), asked, atol=1e-6)
    monkeypatch.setattr("palmette.methods.taxonomy.data.MOST", 2)
    sampler = Sampler(matches())
    owner, drawn = sampler.draw(np.ones(3000, np.int64), generator)
    assert np.bincount(owner).tolist() == [2] * 3000
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / 3000, [0, 2 / 3, 2 / 3, 2 / 3, 0], atol=0.03)
    np.testing.assert_allclose(sampler.log_frequencies.exp()[1], (1 + 2 / 3) / 3, atol=1e-6)


def test_heavy_tails_need_distances() -> None:
    near = Matches.of(np.arange(3), np.arange(3), np.zeros(3, np.int64), 3, 3)
    with pytest.raises(InputError, match="nothing to draw"):
        Sampler(near, "heavy-tail")


def test_matches_by_rows_and_masks() -> None:
    found = matches()
    assert found.counts.tolist() == [2, 3, 1]
    rows, places = found.among(np.array([1, 0, 1]), np.array([1, 2, 4]))
    assert (rows.tolist(), places.tolist()) == ([0, 0, 1, 2, 2], [0, 1, 0, 0, 1])
    some = found.take(np.array([2, 1]))
    assert (some.documents.tolist(), some.distances.tolist()) == ([4, 1, 2, 3], [0, 0, 1, 3])
    twice = Matches.of(np.array([0, 0]), np.array([1, 1]), np.array([4, 2]), 1, 2)
    assert (twice.documents.tolist(), twice.distances.tolist()) == ([1], [2])
