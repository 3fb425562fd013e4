"""Where new split nodes begin (n documents, d width, N nodes, G new ones, r rank)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["unused_directions"]

PART = 16_384
"""Rows that are held in double precision at a time."""


def unused_directions(used: Tensor, x: Tensor, many: int, generator: torch.Generator) -> Tensor:
    """Directions that a tree does not look along yet, a different one for each new node: [G, d], of length 1.

    First the principal directions of what the tree's own leave of the documents, widest first; then random
    orthonormal bases: what a tree with one more level would have begun with. The principal direction of each
    leaf's own documents does worse: in a gentle tree leaves share their documents, and so that direction.

    Args:
        used: [N, d] directions of the tree's nodes.
        x: [n, d] embeddings of the documents in the leaves that split.
        many: G.
        generator: Of the random bases.
    """
    width = x.shape[1]
    _, values, basis = torch.linalg.svd(nn.functional.normalize(used).double(), full_matrices=False)
    basis = basis[values > 1e-3 * values[0]]  # [r, d] orthonormal
    parts: list[Tensor] = []
    if len(basis) < width:
        covariance = torch.zeros(width, width, dtype=torch.float64)
        mean = x.mean(0, dtype=torch.float64)
        for part in torch.split(x, PART):
            rest = part.double() - mean
            rest = rest - rest @ basis.T @ basis
            covariance += rest.T @ rest
        _, vectors = torch.linalg.eigh(covariance)  # ascending, as columns
        parts.append(vectors.flip(1).T[: min(width - len(basis), len(x))].float())
    while sum(map(len, parts)) < many:
        parts.append(torch.linalg.qr(torch.randn(width, width, generator=generator))[0])
    return torch.cat(parts)[:many]
