"""The softmax over sets of matches, corrected for how often training draws a document.

Why the correction. A batch holds general documents, which match many queries, most often, so as negatives they are
pushed away most often: a softmax over the batch learns log p(d | q) − log p(d), which sinks exactly the ancestors.
Weighting each negative by 1 / P(the batch holds it) makes the sum over the batch an estimate of the sum over *all*
documents, and the optimum log p(d | q): an ancestor scores as high as the exact match.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def column_weights(counts: Tensor, log_frequency: Tensor, size: int, strength: float) -> Tensor:
    """Log weight of each distinct document of a batch as a negative: [U].

    Args:
        counts: [U] draws of the document in the batch.
        log_frequency: [U] log p, p = P(one draw is this document).
        size: B, draws per batch.
        strength: 1 corrects in full: the weight is 1 / (1 − (1 − p)^B), the inverse chance of being in the batch; 0 is
            a plain softmax over the batch: the weight is the count.
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
    match_weights: Tensor | None = None,
    hard: Tensor | None = None,
) -> Tensor:
    """−log(e^s⁺ / (e^s⁺ + Σ w e^s)) of every match, weighted mean over a query's matches, mean over queries.

    Matches are not negatives of each other. A match itself is not weighted by w: its presence is no accident of
    drawing. With one match per query this is the paper's loss.

    Args:
        queries: [B, d], T included.
        documents: [U, d] distinct documents of the batch.
        log_weights: [U] log w, see :func:`column_weights`.
        rows: [M] query of each match; every query has one.
        columns: [M] document of each match.
        match_weights: [U] weight of a document as a match; ``None`` for equal weights.
        hard: [B, H, d] wrong answers, negatives of their own query only: chosen, not drawn, so not weighted.
    """
    queries = queries.float()
    scores = queries @ documents.float().T  # [B, U]
    negatives = (scores + log_weights).index_put((rows, columns), scores.new_tensor(-torch.inf))
    if hard is not None:
        negatives = torch.cat([negatives, (hard.float() @ queries[:, :, None])[:, :, 0]], dim=1)  # [B, U + H]
    each = F.softplus(negatives.logsumexp(1)[rows] - scores[rows, columns])  # [M]
    weights = torch.ones_like(each) if match_weights is None else match_weights[columns]  # [M]
    total = weights.new_zeros(len(queries)).index_add(0, rows, weights)  # [B]
    return (each * weights / total[rows]).sum() / len(queries)
