"""Initial indexer: k-means of the corpus, and of its residuals at every further height.

From a random start the leaves collapse: the losses see only the batch, and nothing keeps a path to few documents. A
k-means is an indexer that keeps the encoder's geometry, and the losses continue from there. It can be written exactly:
argmin ‖x − c‖² = argmax (c·x − ½‖c‖²) is linear in x, and at height h, where x is the residual after earlier centres
c(i), c·c(i) is one number per earlier child: a row of its one-hot.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from palmette.methods.paths.config import SHARPNESS
from palmette.methods.paths.module import Indexer

ROUNDS, POINTS = 20, 256
"""Rounds of a k-means, and points per centre that it looks at."""


def kmeans(x: Tensor, centres: int, seed: int) -> Tensor:
    """Centres [K, m] of points [n, m]."""
    from sklearn.cluster import KMeans  # slow to load, and only training needs it
    from sklearn.exceptions import ConvergenceWarning

    order = np.random.default_rng(seed).permutation(len(x))[: POINTS * centres]
    points = x[np.resize(order, max(len(order), centres))].numpy()  # at least one point per centre
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than centres
        found = KMeans(centres, init="random", n_init=1, max_iter=ROUNDS, random_state=seed).fit(points)
    return torch.from_numpy(found.cluster_centers_).to(x.dtype)


@torch.no_grad()
def initialise(indexer: Indexer, x: Tensor, seed: int) -> None:
    """Set an indexer to the k-means of unit vectors [n, m]."""
    earlier: list[Tensor] = []
    residual = x
    for h in range(indexer.height):
        c = kmeans(residual, indexer.branches, seed + h)  # [B, m]
        half = 0.5 * c.square().sum(1)
        crossed = [-(before @ c.T) for before in reversed(earlier)]  # [B, B] each, the last turn first
        indexer.outer[h].copy_(torch.cat([*crossed, c.T]) * SHARPNESS)
        indexer.bias[h].copy_(-half * SHARPNESS)
        nearest = torch.cat([(part @ c.T - half).argmax(1) for part in torch.split(residual, 16_384)])
        residual = residual - c[nearest]
        earlier.append(c)
