"""The loss of a dual encoder for sets of matches, and how often documents are drawn.

Why the correction. A batch holds documents as often as training draws them, and draws ancestors of many nodes
most often. As negatives they are then pushed away most often too: what a softmax over the batch learns is
log p(d | q) − log p(d), which sinks exactly the general documents. Weighing each negative by 1 / P(a batch holds
it) makes the sum over the batch an estimate of the sum over *all* documents, and what is learned log p(d | q):
an ancestor is as good as the exact match.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["column_weights", "matches_softmax", "sampled_softmax"]


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


def sampled_softmax(logits: Tensor, target: Tensor, log_weights: Tensor) -> Tensor:
    """Cross entropy of each query's drawn match against all other documents of the batch, as the paper has it.

    The match itself stands in the sum once, uncorrected: its presence is no accident of drawing.

    Args:
        logits: [B, U] of queries and the distinct documents of the batch.
        target: [B] column of each query's drawn match.
        log_weights: [U] of the columns as negatives, see :func:`column_weights`.

    Returns:
        Scalar.
    """
    own = logits.gather(1, target[:, None])  # [B, 1]
    others = (logits + log_weights).scatter(1, target[:, None], -torch.inf)  # [B, U]
    return (torch.cat([own, others], dim=1).logsumexp(1) - own[:, 0]).mean()


def matches_softmax(logits: Tensor, log_weights: Tensor, known: Tensor) -> Tensor:
    """Cross entropy of every match that the batch happens to hold, each against what does not match.

    Matches are no negatives of each other, and none goes unused: an ancestor that one query drew is a target of
    all queries below it.

    Args:
        logits: [B, U] of queries and the distinct documents of the batch.
        log_weights: [U] of the columns as negatives, see :func:`column_weights`.
        known: [B, U] True where a document matches the query: at least once in each row.

    Returns:
        Scalar: the mean over the queries of the mean over their matches.
    """
    others = (logits + log_weights).masked_fill(known, -torch.inf).logsumexp(1)  # [B]
    row, column = known.nonzero(as_tuple=True)  # [M], [M]
    losses = F.softplus(others[row] - logits[row, column])  # [M]: log(e^own + Σ) − own
    return (losses / known.sum(1)[row]).sum() / len(logits)
