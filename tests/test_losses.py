import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from palmette.losses import distillation, info_nce, ntvd
from palmette.search.threads import set_threads


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 5), st.integers(1, 9))
@settings(max_examples=30)
def test_ntvd_is_the_shared_mass_less_one(seed: int, n: int, m: int, width: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = torch.softmax(torch.randn(n, width, generator=generator), -1)
    b = torch.softmax(torch.randn(m, width, generator=generator), -1)
    shared = torch.minimum(a[:, None], b[None]).sum(-1)
    torch.testing.assert_close(ntvd(a, b), shared - 1, atol=1e-5, rtol=0)


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


@pytest.mark.parametrize(("n", "m"), [(0, 4), (3, 0), (1, 1)])
def test_ntvd_of_few_rows(n: int, m: int) -> None:
    assert ntvd(torch.rand(n, 5), torch.rand(m, 5)).shape == (n, m)


def test_info_nce_is_the_mean_of_both_cross_entropies() -> None:
    logits = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
    by_hand = 0.0
    for i in range(6):
        by_hand -= math.log(logits[i, i].exp() / logits[i].exp().sum())
        by_hand -= math.log(logits[i, i].exp() / logits[:, i].exp().sum())
    assert math.isclose(float(info_nce(logits)), by_hand / 12, rel_tol=1e-5)


def test_known_positives_are_no_negatives() -> None:
    logits = torch.tensor([[1.0, 50.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    known = torch.eye(3, dtype=torch.bool)
    known[0, 1] = True
    masked = logits.clone()
    masked[0, 1] = -torch.inf
    expected = 0.5 * (F.cross_entropy(masked, torch.arange(3)) + F.cross_entropy(masked.T, torch.arange(3)))
    torch.testing.assert_close(info_nce(logits, known), expected)
    assert info_nce(logits, known) < 1 < info_nce(logits)


def test_gradients_stay_finite_where_everything_is_known() -> None:
    logits = torch.zeros(3, 3, requires_grad=True)
    loss = info_nce(logits, torch.ones(3, 3, dtype=torch.bool))
    loss.backward()
    assert float(loss.detach()) == 0
    assert torch.isfinite(logits.grad).all()


def test_given_negatives_are_columns_for_the_queries_only() -> None:
    generator = torch.Generator().manual_seed(1)
    logits, extra = torch.randn(4, 4, generator=generator), torch.randn(4, 3, generator=generator)
    known = torch.zeros(4, 3, dtype=torch.bool)
    known[2, 1] = True
    wide = torch.cat([logits, extra.masked_fill(known, -torch.inf)], 1)
    target = torch.arange(4)
    expected = 0.5 * (F.cross_entropy(wide, target) + F.cross_entropy(logits.T, target))
    torch.testing.assert_close(info_nce(logits, None, extra, known), expected)
    assert torch.equal(info_nce(logits, None, extra, torch.ones_like(known)), info_nce(logits))


def test_distillation_is_the_mean_of_both_divergences_from_the_teacher() -> None:
    generator = torch.Generator().manual_seed(2)
    logits, teacher = torch.randn(4, 5, generator=generator), 3 * torch.randn(4, 5, generator=generator)
    by_hand = 0.0
    for student, taught in ((logits, teacher), (logits.T, teacher.T)):
        for s, t in zip(student.double(), taught.double(), strict=True):
            p, q = t.exp() / t.exp().sum(), s.exp() / s.exp().sum()
            by_hand += float((p * (p.log() - q.log())).sum()) / len(student) / 2
    assert math.isclose(float(distillation(logits, teacher)), by_hand, rel_tol=1e-5)
    assert not math.isclose(float(distillation(teacher, logits)), by_hand, rel_tol=0.1), "it has a direction"
    assert float(distillation(teacher, teacher + 1.0)) == pytest.approx(0, abs=1e-6)
