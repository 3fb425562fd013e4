"""Training objectives as pure functions over tensors (B batch, d width)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["distillation", "info_nce", "ntvd"]


def ntvd(a: Tensor, b: Tensor) -> Tensor:
    """Negative total variation distance of every row of ``a`` to every row of ``b``, in [−1, 0].

    nTVD(a, b) = −½ Σ|a − b|; for distributions it is Σ min(a, b) − 1.

    Args:
        a: [B, d] distributions.
        b: [C, d] distributions.

    Returns:
        [B, C] similarities.
    """
    return -0.5 * torch.cdist(a, b, p=1.0)


def info_nce(
    logits: Tensor,
    known: Tensor | None = None,
    extra: Tensor | None = None,
    extra_known: Tensor | None = None,
) -> Tensor:
    """Symmetric in-batch InfoNCE (ReTreever, equation 1): mean of the two cross entropies.

    Row i and column i belong together; all other cells are negatives, except those that are known positives
    as well (the same document twice in a batch, a second right answer): they are left out.

    Args:
        logits: [B, B] similarities of queries (rows) and documents (columns), already scaled.
        known: [B, B] True where a query and a document belong together.
        extra: [B, M] similarities of the queries to further negatives: more columns of the first cross entropy.
        extra_known: [B, M] True where such a document answers the query all the same.

    Returns:
        Scalar: ½ (CE over documents for each query + CE over queries for each document).
    """
    target = torch.arange(len(logits), device=logits.device)  # [B]
    if known is not None:
        others = known & ~torch.eye(len(logits), dtype=torch.bool, device=logits.device)  # [B, B]
        logits = logits.masked_fill(others, -torch.inf)
    wide = logits  # [B, B + M]
    if extra is not None:
        left = extra if extra_known is None else extra.masked_fill(extra_known, -torch.inf)
        wide = torch.cat([logits, left], dim=1)
    return 0.5 * (F.cross_entropy(wide, target) + F.cross_entropy(logits.T, target))


def distillation(logits: Tensor, teacher: Tensor) -> Tensor:
    """Symmetric in-batch distillation: how far the logits' rankings are from a teacher's, row by row and back.

    Args:
        logits: [B, C] similarities of queries (rows) and documents (columns), already scaled.
        teacher: [B, C] the same of the teacher, divided by its temperature.

    Returns:
        Scalar: ½ (KL over documents for each query + KL over queries for each document).
    """
    rows = F.kl_div(logits.log_softmax(1), teacher.log_softmax(1), reduction="batchmean", log_target=True)
    columns = F.kl_div(
        logits.T.log_softmax(1), teacher.T.log_softmax(1), reduction="batchmean", log_target=True
    )
    return 0.5 * (rows + columns)
