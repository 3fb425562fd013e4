"""The losses by hand."""

import pytest
import torch

from palmette.methods.paths.losses import imbalance, intra_leaf, triplet


def test_a_triplet_counts_negatives_that_are_not_far_enough() -> None:
    similarity = torch.tensor([[0.9, 0.7, 0.1], [0.2, 0.4, 0.5]])
    negative = torch.tensor([[False, True, True], [False, False, True]])
    expected = (0.7 - 0.9 + 0.3) + 0.0 + (0.5 - 0.4 + 0.3)
    assert float(triplet(similarity, negative, 0.3)) == pytest.approx(expected / 3)
    assert float(triplet(similarity, torch.zeros_like(negative), 0.3)) == 0


def test_unlike_documents_are_kept_apart() -> None:
    paths = torch.tensor([[0.8, 0.2], [0.6, 0.4], [0.1, 0.9]])
    cosine = torch.tensor([[1.0, 0.95, 0.2], [0.95, 1.0, 0.3]])
    negative = torch.tensor([[False, True, True], [True, False, True]])
    # the first two documents are alike (0.95 ≥ τ) and may share a leaf
    own = [0.8**2 + 0.2**2, 0.6**2 + 0.4**2]
    together = [0.8 * 0.1 + 0.2 * 0.9, 0.6 * 0.1 + 0.4 * 0.9]
    form = {"similar": 0.9}
    product = intra_leaf(paths, cosine, negative, margin=None, **form)
    assert float(product) == pytest.approx(sum(together) / 2)
    anchored = intra_leaf(paths, cosine, negative, margin=0.3, **form)
    assert float(anchored) == pytest.approx(
        sum(max(0, t - o + 0.3) for t, o in zip(together, own, strict=True)) / 2
    )


def test_equal_shares_are_balanced() -> None:
    even = torch.eye(4).repeat(1, 2) / 2  # two heights of four
    assert float(imbalance(even, 2)) == pytest.approx(0, abs=1e-6)
    one = torch.tensor([[1.0, 0, 0, 0]])
    assert float(imbalance(one, 1)) == pytest.approx(float(torch.tensor(4.0).log()), abs=1e-5)
