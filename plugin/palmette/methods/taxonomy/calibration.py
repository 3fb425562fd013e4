"""When to stop: how probable it is that a document is relevant, from its score and the query.

A score alone does not say: queries differ in how high their matches score. So the threshold is a function of
the query, t(q) = w·q + b, as if it were one more document whose score has to be beaten; and
P(relevant) = σ(a · s − t(q)), fitted by logistic regression on judged queries after training.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

__all__ = ["fit_calibration", "probabilities"]

Floats = NDArray[np.float32]


def probabilities(calibration: Floats, queries: Floats, scores: Floats) -> Floats:
    """P(relevant) of scores [Q, k] for queries [Q, d], with the calibration [d + 2] = (w, b, a)."""
    stop = queries @ calibration[:-2] + calibration[-2]  # [Q]
    logits = np.where(np.isfinite(scores), scores, -1e9) * calibration[-1] - stop[:, None]  # [Q, k]
    chance: Floats = (0.5 * (1 + np.tanh(0.5 * logits))).astype(np.float32)
    return chance


def fit_calibration(queries: Tensor, scores: Tensor, relevant: Tensor, steps: int = 100) -> Tensor:
    """Fit (w, b, a) to judged results.

    Args:
        queries: [Q, d].
        scores: [Q, k] of each query's best documents, and of all its matches.
        relevant: [Q, k] which of them match.
        steps: Iterations of L-BFGS at most.

    Returns:
        [d + 2].
    """
    queries, scores, truth = queries.double(), scores.double(), relevant.double()
    centre, spread = scores.mean(), scores.std().clamp(min=1e-6)
    width = queries.std().clamp(min=1e-6)
    free = torch.zeros(queries.shape[1] + 2, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        free[-1] = 1.0
    solver = torch.optim.LBFGS([free], max_iter=steps, line_search_fn="strong_wolfe")

    def logits() -> Tensor:
        stop = (queries / width) @ free[:-2] + free[-2]  # [Q]
        return (scores - centre) / spread * free[-1] - stop[:, None]  # [Q, k]

    def closure() -> Tensor:
        solver.zero_grad()
        loss = F.binary_cross_entropy_with_logits(logits(), truth) + 1e-3 * free[:-2].square().sum()
        torch.autograd.backward(loss)
        return loss

    with torch.enable_grad():
        solver.step(closure)
    found = free.detach()
    slope = found[-1] / spread
    return torch.cat([found[:-2] / width, (found[-2] + slope * centre)[None], slope[None]]).float()
