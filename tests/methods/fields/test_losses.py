"""The losses against their formulas."""

import math

import pytest
import torch

from palmette.methods.fields.losses import losses

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


def test_other_answers_are_no_negatives() -> None:
    q, h, aggregate, target, known = batch()
    known[0, 3] = known[0, 0] = True
    together = (q @ aggregate.T / TAU).tolist()
    found, _, _ = losses(q, h, aggregate, target, known, TAU)
    assert float(found) == pytest.approx(by_hand(together, target.tolist(), {(0, 3)}), abs=1e-5)


def test_a_field_without_a_vector_is_not_asked_to_match() -> None:
    q, h, aggregate, target, known = batch()
    h[2, 0] = 0  # the answer of the second query has nothing in its first field
    _, found, _ = losses(q, h, aggregate, target, known, TAU)
    by_field = [(q @ h[:, f].T / TAU).tolist() for f in range(2)]
    places = [(f, b, m) for f in range(2) for b, m in ((0, 0), (1, 2), (2, 4)) if (f, b) != (0, 1)]
    parts = [by_hand([by_field[f][b]], [m]) for f, b, m in places]
    assert float(found) == pytest.approx(sum(parts) / 5, abs=1e-5)
