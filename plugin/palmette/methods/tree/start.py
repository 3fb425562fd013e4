"""Where training begins.

With gentle slopes a node's probability is nearly linear in the embedding, so that nTVD
is an L1 sketch of the encoder's own distance: a tree of principal directions retrieves about as well as the
encoder before its first step. Measured beside a random start in ``tests/benchmarks/results/``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from palmette.losses import info_nce, ntvd
from palmette.methods.tree.config import TreeConfig
from palmette.methods.tree.module import Tree

__all__ = ["begin", "fit_multiplier"]

PART = 16_384
"""Rows that are held in double precision at a time."""


def _directions(config: TreeConfig, x: Tensor, generator: torch.Generator) -> Tensor:
    """Unit directions per split node, level by level: the principal ones first, random ones after."""
    drawn = torch.randn(config.splits, config.width, generator=generator)  # [N, d]
    directions: Tensor = drawn / drawn.norm(dim=1, keepdim=True)
    if config.start == "principal":
        axes = _principal(x)[: config.splits]
        directions[: len(axes)] = axes
    return directions


def _principal(x: Tensor) -> Tensor:
    """Principal directions of [n, d], widest first: [min(n, d), d].

    Eigenvectors of the covariance, summed in pieces: the memory is that of [d, d], however many documents.
    """
    mean = x.mean(0, dtype=torch.float64)  # [d]
    covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64)  # [d, d]
    for part in torch.split(x, PART):
        centred = part.double() - mean
        covariance += centred.T @ centred
    _, vectors = torch.linalg.eigh(covariance)  # ascending, as columns
    axes: Tensor = vectors.flip(1).T[: min(x.shape)].float()
    return axes


@torch.no_grad()
def begin(tree: Tree, x: Tensor, generator: torch.Generator) -> None:
    """Set directions, slopes and offsets from the embeddings of all documents [n, d]."""
    config = tree.config
    x = x.float().cpu()
    levels = torch.log2(torch.arange(1, config.splits + 1).double() + 1e-9).floor()  # [N]: level of each node
    slopes = (config.slope * config.growth**levels).float()  # [N]
    directions = _directions(config, x, generator) * slopes[:, None]  # [N, d]
    tree.directions.copy_(directions)
    tree.offsets.copy_(-directions @ x.mean(0))  # the average document goes either way


@torch.no_grad()
def fit_multiplier(tree: Tree, queries: Tensor, documents: Tensor, known: Tensor) -> None:
    """Start the multiplier where a first batch of pairs ([B, d] each) has its lowest loss."""
    similarity = ntvd(tree(queries), tree(documents))  # [B, B]
    candidates = torch.logspace(0, 3, 25).to(similarity.device)
    losses = torch.stack([info_nce(similarity * value, known) for value in candidates])
    tree.log_multiplier.copy_(candidates[losses.argmin()].log())
