"""One softmax over all spans of a question's passages and "no answer"."""

from __future__ import annotations

import math

import pytest
import torch

from palmette.reader.exam import best_threshold
from palmette.reader.scores import NEVER, grouped_logsumexp, reading_loss, right_spans, span_scores


def test_every_allowed_span_scores_its_ends_and_its_window() -> None:
    draw = torch.Generator().manual_seed(0)
    starts, ends, relevance = (torch.randn(size, generator=draw) for size in ((2, 5), (2, 5), (2,)))
    may_start = torch.rand((2, 5), generator=draw) < 0.6
    may_end = torch.rand((2, 5), generator=draw) < 0.6
    scores = span_scores(starts, ends, relevance, may_start, may_end, 3)
    assert scores.shape == (2, 5, 3)
    for window in range(2):
        for first in range(5):
            for extra in range(3):
                last = first + extra
                there = last < 5 and may_start[window, first] and may_end[window, last]
                expected = starts[window, first] + ends[window, last] + relevance[window] if there else NEVER
                assert scores[window, first, extra] == pytest.approx(float(expected), rel=1e-5)


def test_groups_are_summed_apart_and_an_empty_one_has_nothing() -> None:
    values = torch.tensor([1.0, 2.0, -3.0, NEVER, NEVER], requires_grad=True)
    sums = grouped_logsumexp(values, torch.tensor([0, 0, 2, 3, 3]), 4)
    assert sums[:3].tolist() == pytest.approx([math.log(math.e + math.e**2), NEVER, -3.0])
    assert sums[3] < NEVER / 2
    sums[0].backward()
    assert values.grad is not None
    assert values.grad[:2].sum() == pytest.approx(1.0)


def test_the_loss_is_the_probability_of_the_right_spans_or_of_no_answer() -> None:
    scores = torch.full((3, 4, 2), NEVER)
    scores[0, 0, 0], scores[0, 1, 1], scores[1, 2, 0], scores[2, 0, 0] = 1.0, 2.0, 0.5, 3.0
    gold = [[(0, 0), (0, 0)], [(2, 2)], []]  # windows 0 and 1 are of question 0: two right spans of three
    loss = reading_loss(scores.flatten(1).logsumexp(1), right_spans(scores, gold), torch.tensor([0, 0, 1]), 2)
    first = (math.e + math.exp(0.5)) / (1 + math.e + math.exp(2) + math.exp(0.5))
    second = 1 / (1 + math.exp(3))  # nothing is right: "no answer", which scores 0
    assert float(loss) == pytest.approx(-(math.log(first) + math.log(second)) / 2, rel=1e-5)


def test_the_threshold_balances_precision_and_recall() -> None:
    there, worth = [0.9, 0.3, 0.8, 0.2], [1.0, 0.0, 0.5, 0.0]
    # 2 · 1.5 / (3 + 2) of three answers is less than 2 · 1.5 / (2 + 2) of two
    assert best_threshold(there, worth, 2) == pytest.approx((0.55, 0.75))
    assert best_threshold([0.4, 0.6], [1.0, 1.0], 2) == pytest.approx((0.2, 1.0))  # all are answered
    assert best_threshold([0.4, 0.6], [0.0, 0.0], 0) == pytest.approx((0.8, 0.0))  # none is
    assert best_threshold([], [], 0) == pytest.approx((0.5, 0.0))
