"""When to stop: how probable it is that a document is relevant.

A score alone does not say: queries differ in how high their matches score, and in how many they have. Training
lifts every match above all that does not match, together: above the log of their summed exponentials. So what
tells is the *gap* under a result, g = s − log Σ exp(s') over all lower-scoring nodes: wide under the last match,
narrow everywhere below it. A document is as relevant as the widest gap at or under it is wide, and its score high;
three numbers, fitted after training, make that a probability.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

__all__ = ["CutOff", "fit_cut", "widest_gaps"]

Floats = NDArray[np.float32]

FAR = 50.0
"""A gap is no wider than this."""
AT_ONCE = 64
"""Queries compared with all nodes at a time."""


def widest_gaps(scores: Tensor, nodes: Tensor, deep: int) -> Tensor:
    """How wide the widest gap at or under each score is; it never falls as the score rises.

    Args:
        scores: [Q, k] of documents, nodes or not.
        nodes: [Q, N] of all nodes.
        deep: How many of the best nodes are looked under, one by one: as many as a query may match.

    Returns:
        [Q, k].
    """
    best = nodes.topk(min(deep, nodes.shape[1]), dim=1).values  # [Q, M]
    rest = nodes.masked_fill(nodes >= best[:, -1:], -torch.inf).logsumexp(1, keepdim=True)  # [Q, 1]
    rising = torch.cat([rest, best.flip(1)], dim=1)  # [Q, 1 + M]
    under = rising.logcumsumexp(1)  # [Q, 1 + M]: log of the sum of these and all lower ones
    gaps = torch.cat([torch.full_like(rest, -torch.inf), _gap(rising[:, 1:], under[:, :-1])], dim=1)
    widest = gaps.cummax(1).values  # [Q, 1 + M]
    at = torch.searchsorted(rising[:, 1:].contiguous(), scores.contiguous())  # [Q, k]: nodes that score lower
    return torch.maximum(widest.gather(1, at), _gap(scores, under.gather(1, at)))


def _gap(scores: Tensor, under: Tensor) -> Tensor:
    """Distance to what lies lower; below the last node nothing does, and there is no gap to speak of."""
    return (scores - under).masked_fill(under == -torch.inf, -torch.inf)


def fit_cut(gaps: Tensor, scores: Tensor, relevant: Tensor, steps: int = 100) -> Tensor:
    """How much gap and score say, and the offset: P(relevant) = σ(a · gap + b · score + c), by logistic regression.

    Args:
        gaps: [Q, k] of judged results.
        scores: [Q, k] of the same.
        relevant: [Q, k] which of them match.
        steps: Iterations of L-BFGS at most.

    Returns:
        [3] a and b, which are not negative, and c.
    """
    x = torch.stack([gaps.clamp(-FAR, FAR), scores]).double()  # [2, Q, k]
    spread, truth = x.flatten(1).std(1).clamp(min=1e-6), relevant.double()  # [2], [Q, k]
    free = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64, device=x.device, requires_grad=True)
    solver: torch.optim.Optimizer = torch.optim.LBFGS([free], max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> float:
        solver.zero_grad()
        logits = torch.tensordot(free[:2].square() / spread, x, 1) + free[2]  # [Q, k]
        loss = F.binary_cross_entropy_with_logits(logits, truth) + 1e-4 * free.square().sum()
        torch.autograd.backward(loss)
        return float(loss.detach())

    with torch.inference_mode(False), torch.enable_grad():
        solver.step(closure)
    found = free.detach()
    return torch.cat([found[:2].square() / spread, found[2:]]).float()


@dataclass(frozen=True)
class CutOff:
    """Probabilities from scores, by the gaps among all known nodes: the same whatever an index holds or filters.

    Attributes:
        nodes: [N, d] embeddings of the nodes.
        fitted: [4] what :func:`fit_cut` found, and how deep to look for gaps.
    """

    nodes: Tensor
    fitted: Tensor

    @torch.inference_mode()
    def chances(self, queries: Floats, scores: Floats) -> Floats:
        """P(relevant) of documents that score [Q, k] for queries [Q, d]; 0 where there is none (−∞)."""
        device, parts = self.nodes.device, []
        gap, score, offset, deep = self.fitted.tolist()
        for start in range(0, len(queries), AT_ONCE):
            asked = torch.from_numpy(queries[start : start + AT_ONCE]).to(device)
            given = torch.from_numpy(scores[start : start + AT_ONCE]).to(device)
            gaps = widest_gaps(given, asked @ self.nodes.T, int(deep)).clamp(-FAR, FAR)
            chance = torch.sigmoid(gap * gaps + score * given.clamp(min=-1e9) + offset)
            parts.append(chance.masked_fill(given == -torch.inf, 0.0).cpu().numpy())
        found: Floats = np.concatenate(parts) if parts else np.zeros(scores.shape, np.float32)
        return found
