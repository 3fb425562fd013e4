"""Shared losses, similarities and linear algebra against naive forms."""

import math

import pytest
import torch
from torch.nn import functional as F

from palmette.machine.threads import set_threads
from palmette.training.maths import info_nce, ntvd, principal_directions, ridge, symmetric_info_nce


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("strided", [False, True])
def test_ntvd_without_gradients_is_ntvd_with_them(threads: int, strided: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.rand(37, 66, generator=generator), torch.rand(900, 66, generator=generator)
    if strided:
        a, b = a[:, ::2], b[:, 1::2]
    set_threads(threads)
    try:
        quick = ntvd(a, b)
        with torch.inference_mode():
            quicker = ntvd(a, b)
    finally:
        set_threads(None)
    learning = ntvd(a.clone().requires_grad_(), b)
    assert learning.requires_grad
    assert not quick.requires_grad
    torch.testing.assert_close(quick, learning.detach(), atol=1e-5, rtol=0)
    torch.testing.assert_close(quick.double(), ntvd(a.double(), b.double()), atol=1e-5, rtol=0)
    torch.testing.assert_close(quick, quicker, atol=0, rtol=0)
    same = ntvd(a, a)
    assert float(same.max()) <= 0
    torch.testing.assert_close(same.diag(), torch.zeros(37), atol=1e-5, rtol=0)


def test_known_positives_are_no_negatives() -> None:
    logits = torch.tensor([[1.0, 50.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    known = torch.eye(3, dtype=torch.bool)
    known[0, 1] = True
    masked = logits.clone()
    masked[0, 1] = -torch.inf
    expected = 0.5 * (F.cross_entropy(masked, torch.arange(3)) + F.cross_entropy(masked.T, torch.arange(3)))
    torch.testing.assert_close(symmetric_info_nce(logits, known), expected)


def test_gradients_stay_finite_where_everything_is_known() -> None:
    logits = torch.zeros(3, 3, requires_grad=True)
    loss = symmetric_info_nce(logits, torch.ones(3, 3, dtype=torch.bool))
    loss.backward()
    assert float(loss.detach()) == 0
    assert torch.isfinite(logits.grad).all()


def test_info_nce_is_the_cross_entropy_with_each_rows_own_column() -> None:
    generator = torch.Generator().manual_seed(3)
    logits, extra = torch.randn(2, 3, 5, generator=generator), torch.randn(2, 3, 2, generator=generator)
    own = torch.tensor([4, 0, 4])
    known = F.one_hot(own, 5).bool()
    known[0, 1] = known[2, 0] = True
    left_out = torch.tensor([[False, True], [False, False], [True, True]])
    by_hand = torch.zeros(2, 3)
    for layer in range(2):
        for row in range(3):
            column = int(own[row])
            kept = [logits[layer, row, m] for m in range(5) if m == column or not known[row, m]]
            kept += [extra[layer, row, m] for m in range(2) if not left_out[row, m]]
            by_hand[layer, row] = torch.stack(kept).logsumexp(0) - logits[layer, row, column]
    found = info_nce(logits, own, known, extra, left_out, reduction="none")
    torch.testing.assert_close(found, by_hand)
    torch.testing.assert_close(info_nce(logits, own, known, extra, left_out), by_hand.mean())
    torch.testing.assert_close(info_nce(logits, own), -logits.log_softmax(-1)[..., torch.arange(3), own].mean())


@pytest.mark.parametrize("centre", [True, False])
def test_principal_directions_are_the_right_singular_vectors(centre: bool) -> None:
    scale = torch.tensor([5.0, 3.0, 2.0, 1.0, 0.5])
    x = torch.randn(200, 5, generator=torch.Generator().manual_seed(4)) * scale + 1
    found = principal_directions(x, centre=centre)
    expected = torch.linalg.svd(x - x.mean(0) if centre else x, full_matrices=False)[2]
    torch.testing.assert_close((found * expected).sum(1).abs(), torch.ones(5), atol=1e-3, rtol=0)
    assert len(principal_directions(x[:2], centre=centre)) == 2


def test_ridge_is_least_squares_with_a_penalty() -> None:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(60, 4, generator=generator) + 2
    weight, bias = torch.randn(3, 4, generator=generator), torch.randn(3, generator=generator)
    exact = ridge(x, x @ weight.T + bias, penalty=0.0)
    torch.testing.assert_close(exact, (weight, bias), atol=1e-4, rtol=1e-4)
    y = x @ weight.T + bias + torch.randn(60, 3, generator=generator)
    found, _ = ridge(x, y, penalty=7.0)
    centred, wanted = x - x.mean(0), y - y.mean(0)
    wide = torch.cat([centred, math.sqrt(7.0) * torch.eye(4)])  # the penalty as four more rows
    expected = torch.linalg.lstsq(wide, torch.cat([wanted, torch.zeros(4, 3)])).solution.T
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
