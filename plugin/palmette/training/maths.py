"""Losses, similarities and linear algebra shared by the methods (B batch, M columns, d width)."""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from palmette.machine.threads import get_threads, run_in_threads
from palmette.search.flat import overlap_scores

ROWS_OF_A_BLOCK = 16_384
"""Rows of a covariance summed at a time."""


def overlap(a: Tensor, b: Tensor) -> Tensor:
    """Σ min(a, b) of every row with every row, without gradients, by the search kernel: [B, d], [M, d] → [B, M]."""
    queries, data = a.detach().contiguous().numpy(), b.detach().contiguous().numpy()
    parts = np.array_split(np.arange(len(data)), max(1, min(get_threads(), len(data) // 256)))
    tasks = [partial(overlap_scores, data, rows, queries) for rows in parts]
    return torch.from_numpy(np.concatenate(run_in_threads(tasks), axis=1))


def ntvd(a: Tensor, b: Tensor) -> Tensor:
    """Negative total variation distance of every row of ``a`` [B, d] to every row of ``b`` [M, d]: [B, M].

    nTVD(a, b) = −½ Σ|a − b| = Σ min(a, b) − ½ Σ(a + b); for distributions it is Σ min(a, b) − 1, in [−1, 0]. On a
    CPU, and where no gradients are needed, :func:`overlap` takes a tenth of the time.
    """
    learning = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    if learning or not all(x.device.type == "cpu" and x.dtype == torch.float32 for x in (a, b)):
        return -0.5 * torch.cdist(a, b, p=1.0)
    return (overlap(a, b) - 0.5 * (a.sum(1)[:, None] + b.sum(1))).clamp_max(0)


def info_nce(
    logits: Tensor,
    own: Tensor,
    known: Tensor | None = None,
    extra: Tensor | None = None,
    extra_known: Tensor | None = None,
    *,
    reduction: Literal["mean", "none"] = "mean",
) -> Tensor:
    """InfoNCE: −log softmax of each row's own column; other known positives are no negatives.

    Args:
        logits: [..., B, M] similarities of queries (rows) and documents (columns), already scaled.
        own: [B] the column of each row's positive.
        known: [B, M] True where a document answers a query.
        extra: [..., B, K] similarities to further negatives.
        extra_known: [B, K] True where such a document answers the query all the same.
        reduction: ``"mean"`` for a scalar, ``"none"`` for [..., B].
    """
    if known is not None:
        logits = logits.masked_fill(known & ~F.one_hot(own, logits.shape[-1]).bool(), -torch.inf)
    if extra is not None:
        logits = torch.cat([logits, extra if extra_known is None else extra.masked_fill(extra_known, -torch.inf)], -1)
    shape = logits.shape[:-1]  # [..., B]
    losses = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), own.expand(shape).reshape(-1), reduction=reduction)
    return losses if reduction == "mean" else losses.view(shape)


def symmetric_info_nce(
    logits: Tensor, known: Tensor | None = None, extra: Tensor | None = None, extra_known: Tensor | None = None
) -> Tensor:
    """InfoNCE of queries over documents and of documents over queries, averaged (ReTreever, equation 1).

    Row i and column i of ``logits`` [B, B] belong together; ``extra`` [B, K] are more columns for the queries only.
    """
    own = torch.arange(len(logits), device=logits.device)
    back = None if known is None else known.T
    return 0.5 * (info_nce(logits, own, known, extra, extra_known) + info_nce(logits.T, own, back))


@torch.no_grad()
def principal_directions(x: Tensor, *, centre: bool = True) -> Tensor:
    """Directions along which rows [N, d] spread most, widest first: [min(N, d), d].

    Eigenvectors of the covariance, summed in blocks: memory is that of [d, d] for any number of rows. ``centre``
    subtracts the mean.
    """
    width = x.shape[1]
    mean = x.mean(0, dtype=torch.float64) if centre else x.new_zeros(width, dtype=torch.float64)
    covariance = x.new_zeros(width, width, dtype=torch.float64)
    for block in torch.split(x, ROWS_OF_A_BLOCK):
        centred = block.double() - mean
        covariance += centred.T @ centred
    _, vectors = torch.linalg.eigh(covariance)  # ascending, as columns
    directions: Tensor = vectors.flip(1).T[: min(len(x), width)].float()
    return directions


@torch.no_grad()
def ridge(x: Tensor, y: Tensor, penalty: float = 1.0) -> tuple[Tensor, Tensor]:
    """Weight [d, p] and bias [d] of the linear map of x [n, p] to y [n, d] with the least penalised squared error."""
    x, y = x.double(), y.double()
    x_mean, y_mean = x.mean(0), y.mean(0)
    x, y = x - x_mean, y - y_mean
    gram = x.T @ x
    gram.diagonal().add_(penalty)
    weight = torch.linalg.solve(gram, x.T @ y).T
    return weight.float(), (y_mean - weight @ x_mean).float()
