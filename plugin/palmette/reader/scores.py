"""Span scores, and one softmax over all spans of all passages of a question and "no answer".

A span scores s(first token) + e(last token) + r(its window); "no answer" scores 0. So a window that is no help
lowers all its spans at once, and scores of different passages can be compared because they share one sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["NEVER", "grouped_logsumexp", "reading_loss", "right_spans", "span_scores"]

NEVER = -1e4
"""The score of what is no span: exp of it is 0, and differences of two of them are finite."""


def span_scores(
    starts: Tensor, ends: Tensor, relevance: Tensor, may_start: Tensor, may_end: Tensor, longest: int
) -> Tensor:
    """[W, T], [W, T], [W] → [W, T, L]: the score of the span of l + 1 tokens from each token on."""
    longest = min(longest, ends.shape[1])

    def from_each(values: Tensor, fill: float) -> Tensor:
        """[W, T] → [W, T, L]: the values from each token on."""
        return torch.nn.functional.pad(values, (0, longest - 1), value=fill).unfold(1, longest, 1)

    scores = starts[:, :, None] + from_each(ends, 0.0) + relevance[:, None, None]  # [W, T, L]
    allowed = may_start[:, :, None] & from_each(may_end.to(scores.dtype), 0.0).bool()
    return scores.masked_fill(~allowed, NEVER)


def grouped_logsumexp(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """[W] values, [W] their groups → [count] log Σ exp of each group; ``NEVER`` for a group without any."""
    highest = values.new_full((count,), NEVER).scatter_reduce(0, groups, values.detach(), "amax")
    sums = values.new_zeros(count).index_add(0, groups, (values - highest[groups]).exp())
    return torch.where(sums > 0, highest + sums.clamp_min(1e-30).log(), NEVER)


def right_spans(scores: Tensor, gold: Sequence[Sequence[tuple[int, int]]]) -> Tensor:
    """[W, T, L] scores, and the first and last tokens of the right spans of each window → [W] log Σ exp of those."""
    flat = [(window, first, last - first) for window, spans in enumerate(gold) for first, last in set(spans)]
    if not flat:
        return scores.new_full((len(scores),), NEVER)
    window, first, extra = torch.tensor(flat, device=scores.device).T
    return grouped_logsumexp(scores[window, first, extra], window, len(scores))


def reading_loss(every: Tensor, right: Tensor, questions: Tensor, count: int) -> Tensor:
    """−log of the probability of the right spans together, averaged over the questions.

    Args:
        every: [W] log Σ exp of all spans of a window.
        right: [W] the same of its right spans, ``NEVER`` without any. Where no window of a question has one, "no
            answer" is right.
        questions: [W] which question a window is read for.
        count: How many questions there are.
    """
    spans = grouped_logsumexp(every, questions, count)  # [Q]
    total = torch.logaddexp(spans, torch.zeros_like(spans))  # "no answer" scores 0
    hit = grouped_logsumexp(right, questions, count)  # [Q]
    return (total - torch.where(hit > NEVER / 2, hit, 0.0)).mean()
