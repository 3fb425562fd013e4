"""The training objective of a tree, as pure functions (B batch, M further negatives, C columns of a level, D depth)."""

from __future__ import annotations

import torch
from torch import Tensor

from palmette.training.maths import ntvd, symmetric_info_nce


def level_loss(
    queries: Tensor,
    documents: Tensor,
    multiplier: Tensor,
    known: Tensor,
    negatives: Tensor | None = None,
    negatives_known: Tensor | None = None,
) -> Tensor:
    """Equation 1 of a batch of pairs at one level: symmetric InfoNCE on sim(a, b) = τ · nTVD(a, b) = −τ/2 · Σ|a − b|.

    The paper has τ = 1; a learned τ per level lets the loss fall below log B − 1.

    Args:
        queries: [B, C] probabilities of the level's nodes.
        documents: [B, C] of the documents that belong to the queries.
        multiplier: τ.
        known: [B, B] right answers, which are no negatives elsewhere in the batch.
        negatives: [M, C] of given wrong answers.
        negatives_known: [B, M] where one of these is a right answer.
    """
    extra = None if negatives is None else ntvd(queries, negatives) * multiplier  # [B, M]
    return symmetric_info_nce(ntvd(queries, documents) * multiplier, known, extra, negatives_known)


def level_probabilities(depth: int) -> Tensor:
    """Weight of each level 1 … D, P(h) ∝ h²: the stochastic schedule of appendix B.2.3."""
    weights = torch.arange(1, depth + 1).float() ** 2
    return weights / weights.sum()


def level_of_step(depth: int, generator: torch.Generator) -> int:
    """Level that a step trains (section 3, appendix B.2.3)."""
    return 1 + int(torch.multinomial(level_probabilities(depth), 1, generator=generator))
