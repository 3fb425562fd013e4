"""The losses against their formulas."""

import math

import pytest
import torch

from palmette.methods.fields import FieldsConfig
from palmette.methods.fields.losses import charm_loss, losses

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
    by_aggregate, by_fields, by_best = losses(q, h, aggregate, target, known, TAU)
    by_field = [[[float(q[b] @ h[m, f]) / TAU for m in range(5)] for b in range(3)] for f in range(2)]
    together = [[float(q[b] @ aggregate[m]) / TAU for m in range(5)] for b in range(3)]
    best = [[max(by_field[f][b][m] for f in range(2)) for m in range(5)] for b in range(3)]
    rows = target.tolist()
    assert float(by_aggregate) == pytest.approx(by_hand(together, rows), abs=1e-5)
    assert float(by_fields) == pytest.approx(sum(by_hand(one, rows) for one in by_field) / 2, abs=1e-5)
    assert float(by_best) == pytest.approx(by_hand(best, rows), abs=1e-5)
    config = FieldsConfig(aggregate_weight=0.5, fields_weight=2.0, best_weight=3.0, temperature=TAU)
    total = charm_loss(config, q, h, aggregate, target, known)
    expected = 0.5 * by_aggregate + 2 * by_fields + 3 * by_best
    assert float(total) == pytest.approx(float(expected), abs=1e-5)


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
