"""The loss of a dual encoder for sets of matches, and how often documents are drawn.

Why the correction. A batch holds documents as often as training draws them, and draws ancestors of many nodes
most often. As negatives they are then pushed away most often too: what a softmax over the batch learns is
log p(d | q) − log p(d), which sinks exactly the general documents. Weighing each negative by 1 / P(a batch holds
it) makes the sum over the batch an estimate of the sum over *all* documents, and what is learned log p(d | q):
an ancestor is as good as the exact match.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["column_weights", "matches_softmax"]

CELLS = 1 << 20
"""Scores that a CPU holds at a time: they stay in its cache."""
CELLS_GPU = 1 << 26
"""The same of a GPU: few large steps."""


def column_weights(counts: Tensor, log_frequency: Tensor, size: int, strength: float) -> Tensor:
    """Log weight of each distinct document of a batch as a negative.

    Args:
        counts: [U] how often the batch drew it.
        log_frequency: [U] log p, p = P(a draw is this document).
        size: B, draws per batch.
        strength: 1 corrects in full: the weight is one over 1 − (1 − p)^B, the chance of being in the batch at
            all; 0 not at all: the weight is the count, as in a softmax over the batch.

    Returns:
        [U].
    """
    present = -torch.expm1(size * torch.log1p(-log_frequency.double().exp().clamp(max=1 - 1e-9)))  # [U]
    weights: Tensor = (1 - strength) * counts.log() - strength * present.log().to(counts.dtype)
    return weights


def matches_softmax(
    queries: Tensor,
    documents: Tensor,
    log_weights: Tensor,
    rows: Tensor,
    columns: Tensor,
    worth: Tensor | None = None,
    near: Tensor | None = None,
) -> Tensor:
    """Cross entropy of every match, each against what does not match: −log(e^s⁺ / (e^s⁺ + Σ w e^s)).

    Matches are no negatives of each other. With all matches that the batch happens to hold none goes unused: an
    ancestor that one query drew is a target of all queries below it. With one match per query it is the paper's
    loss. A match stands in its sum once, uncorrected: its presence is no accident of drawing.

    Args:
        queries: [B, d], T included.
        documents: [U, d] the distinct documents of the batch.
        log_weights: [U] of the documents as negatives, see :func:`column_weights`.
        rows: [M] ascending: queries of the matches, each at least once.
        columns: [M] documents of the matches.
        worth: [U] how much a document counts as a match; ``None`` for all alike.
        near: [B, H, d] wrong answers, each a negative of its own query alone: chosen, not drawn, so not weighted.

    Returns:
        Scalar: the mean over the queries of the weighted mean over their matches.
    """
    counted = torch.ones_like(rows, dtype=torch.float32) if worth is None else worth[columns]  # [M]
    total = torch.zeros(len(queries), device=counted.device).index_add_(0, rows, counted)  # [B]
    share = counted / (len(queries) * total[rows])  # [M] of a match in the mean
    apply: Callable[..., Tensor] = _MatchesSoftmax.apply
    near = None if near is None else near.float()
    return apply(queries.float(), documents.float(), log_weights, rows, columns, share, near)


class _MatchesSoftmax(torch.autograd.Function):
    """Loss and gradient in one go, some queries at a time: the scores [B, U] never exist as a whole."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        documents: Tensor,
        log_weights: Tensor,
        rows: Tensor,
        columns: Tensor,
        share: Tensor,
        near: Tensor | None,
    ) -> Tensor:
        matches = torch.bincount(rows, minlength=len(queries))  # [B]
        by_query, by_document = torch.empty_like(queries), torch.zeros_like(documents)
        by_near = None if near is None else torch.empty_like(near)
        loss, done = queries.new_zeros(()), 0
        step = max(1, (CELLS_GPU if queries.is_cuda else CELLS) // max(1, len(documents)))
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            these = slice(done, done := done + int(matches[part].sum()))
            row, column = rows[these] - start, columns[these]  # [m], [m]
            e = torch.addmm(log_weights, queries[part], documents.T)  # [b, U]
            own = e[row, column] - log_weights[column]  # [m]
            e[row, column] = -torch.inf
            top = e.amax(1, keepdim=True).clamp(min=torch.finfo(e.dtype).min)  # [b, 1]
            own_near = queries.new_empty(len(e), 0)  # [b, H]
            if near is not None:
                own_near = torch.bmm(near[part], queries[part, :, None])[:, :, 0]
                top = torch.maximum(top, own_near.amax(1, keepdim=True))
            total = e.sub_(top).exp_().sum(1) + own_near.sub_(top).exp_().sum(1)  # [b]
            gap = (total.log() + top[:, 0])[row] - own  # [m]: log Σ − s⁺
            loss += (F.softplus(gap) * share[these]).sum()
            pull = torch.sigmoid(gap) * share[these]  # [m]
            push = torch.zeros_like(total).index_add_(0, row, pull) / total.clamp(min=1e-30)  # [b]
            e.mul_(push[:, None])[row, column] = -pull  # now ∂ loss / ∂ scores
            by_query[part] = e @ documents
            by_document.addmm_(e.T, queries[part])
            if near is not None and by_near is not None:
                own_near.mul_(push[:, None])
                by_query[part] += torch.bmm(own_near[:, None], near[part])[:, 0]
                by_near[part] = own_near[:, :, None] * queries[part, None]
        ctx.save_for_backward(by_query, by_document, by_near)
        return loss

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        by_query, by_document, by_near = ctx.saved_tensors
        nearer = None if by_near is None else upstream[0] * by_near
        return upstream[0] * by_query, upstream[0] * by_document, None, None, None, None, nearer
