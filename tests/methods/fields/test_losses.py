"""The losses against their formulas."""

import math

import pytest
import torch

from palmette.methods.fields.losses import contrast, diversity, losses

TAU = 0.5


def batch() -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(0)
    q, h = torch.randn(3, 4, generator=draw), torch.randn(5, 2, 4, generator=draw)
    return q, h, h.mean(1), torch.tensor([0, 2, 4]), torch.zeros(3, 5).bool()


def by_hand(logits: list[list[float]], target: list[int], skip: set[tuple[int, int]] = frozenset()) -> float:
    """Equation 2, in plain Python."""
    total = 0.0
    for b, own in enumerate(target):
        below = sum(math.exp(s) for m, s in enumerate(logits[b]) if (b, m) not in skip)
        total -= math.log(math.exp(logits[b][own]) / below)
    return total / len(target)


def test_every_part_of_equation_6() -> None:
    q, h, aggregate, target, known = batch()
    found = losses(q, h, aggregate, target, known, TAU)
    by_field = [[[float(q[b] @ h[m, f]) / TAU for m in range(5)] for b in range(3)] for f in range(2)]
    together = [[float(q[b] @ aggregate[m]) / TAU for m in range(5)] for b in range(3)]
    best = [[max(by_field[f][b][m] for f in range(2)) for m in range(5)] for b in range(3)]
    rows = target.tolist()
    assert float(found.aggregate) == pytest.approx(by_hand(together, rows), abs=1e-5)
    assert float(found.fields) == pytest.approx(sum(by_hand(one, rows) for one in by_field) / 2, abs=1e-5)
    assert float(found.best) == pytest.approx(by_hand(best, rows), abs=1e-5)
    own = [[by_field[f][b][m] for f in range(2)] for b, m in enumerate(rows)]
    expected = -sum(math.log(math.exp(max(s)) / sum(map(math.exp, s))) for s in own) / 3
    assert float(found.diversity) == pytest.approx(expected, abs=1e-5)


def test_other_answers_are_no_negatives() -> None:
    logits, target = torch.randn(2, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1])
    known = torch.tensor([[True, False, True], [False, True, False]])
    expected = by_hand(logits.tolist(), [0, 1], {(0, 2)})
    assert float(contrast(logits, target, known).mean()) == pytest.approx(expected, abs=1e-5)


def test_a_field_without_a_vector_is_not_asked_to_match() -> None:
    q, h, aggregate, target, known = batch()
    h[2, 0] = 0  # the answer of the second query has nothing in its first field
    found = losses(q, h, aggregate, target, known, TAU)
    by_field = [(q @ h[:, f].T / TAU).tolist() for f in range(2)]
    parts = [
        by_hand([by_field[f][b]], [m])
        for f in range(2)
        for b, m in ((0, 0), (1, 2), (2, 4))
        if (f, b) != (0, 1)
    ]
    assert float(found.fields) == pytest.approx(sum(parts) / 5, abs=1e-5)


def test_diversity_is_zero_where_one_field_says_it_all() -> None:
    logits = torch.stack([torch.full((2, 2), 50.0), torch.full((2, 2), -50.0)])
    assert float(diversity(logits, torch.tensor([0, 1]))) == pytest.approx(0, abs=1e-6)
    assert float(diversity(torch.zeros(4, 2, 2), torch.tensor([0, 1]))) == pytest.approx(
        math.log(4), abs=1e-6
    )
