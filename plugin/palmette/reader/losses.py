"""One softmax over the candidates of all passages of a question ("no answer" scores 0): what readers learn by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palmette.arrays import Floats
from palmette.reader.scores import NEVER

BIAS_PENALTY = 0.05
"""Penalty of w, and of b where an average passage biases something, beside the sum over the questions."""


def grouped_logsumexp(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """[W] values, [W] their groups → [count] log Σ exp of each group; ``NEVER`` for a group without any."""
    highest = values.new_full((count,), NEVER).scatter_reduce(0, groups, values.detach(), "amax")
    sums = values.new_zeros(count).index_add(0, groups, (values - highest[groups]).exp())
    return torch.where(sums > 0, highest + sums.clamp_min(1e-30).log(), NEVER)


def reading_loss(every: Tensor, right: Tensor, questions: Tensor, count: int) -> Tensor:
    """[count] −log probability of the right candidates of each question, or of "no answer" where there are none.

    Args:
        every: [W] log Σ exp of the candidates of a window, or the score of one candidate.
        right: [W] log Σ exp of its right candidates, ``NEVER`` without any.
        questions: [W] question of each window.
        count: Number of questions.
    """
    spans = grouped_logsumexp(every, questions, count)
    total = torch.logaddexp(spans, torch.zeros_like(spans))  # "no answer" scores 0
    hit = grouped_logsumexp(right, questions, count)
    return total - torch.where(hit > NEVER / 2, hit, 0.0)


def minimise(weights: Tensor, loss: Callable[[], Tensor], steps: int = 100) -> None:
    """Minimise a loss over weights, in place, by L-BFGS."""
    weights.requires_grad_(True)
    search: Any = torch.optim.LBFGS([weights], max_iter=steps, line_search_fn="strong_wolfe")

    def step() -> float:
        search.zero_grad()
        value = loss()
        torch.autograd.backward(value)
        return float(value.detach())

    with torch.enable_grad():
        search.step(step)
    weights.requires_grad_(False).grad = None


def learn_passage_bias(
    totals: Sequence[NDArray[np.float64]], signs: Sequence[Floats], right: Sequence[Sequence[bool]]
) -> tuple[Tensor, Tensor]:
    """Find w, under which right passages are most probable among those of their question, and then b.

    Found together, questions without an answer, whose passages look as right as any, would talk w down.

    Args:
        totals: [P] log Σ exp of the spans of each passage, by question.
        signs: [P, 2] x of each passage, by question.
        right: [P] true for passages that answer, by question.
    """
    base, x = (torch.from_numpy(np.concatenate(values)).double() for values in (totals, signs))
    wrong = ~torch.from_numpy(np.concatenate(right).astype(bool))
    count, sizes = len(right), [len(values) for values in right]
    owner = torch.from_numpy(np.repeat(np.arange(count), sizes))
    w, b = torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)

    def choice() -> Tensor:
        scores = base + x @ w
        every = grouped_logsumexp(scores, owner, count)
        hit = grouped_logsumexp(scores.masked_fill(wrong, NEVER), owner, count)
        return torch.where(hit > NEVER / 2, every - hit, 0.0).sum() + BIAS_PENALTY * w.square().sum()

    def answer() -> Tensor:
        scores = base + x @ w + b
        loss = reading_loss(scores, scores.masked_fill(wrong, NEVER), owner, count).sum()
        return loss + BIAS_PENALTY * (b + x.mean(0) @ w).square().sum()

    minimise(w, choice)
    minimise(b, answer)
    return w, b
