"""Losses of the learned index (B queries with a document each, C ≥ B documents, P numbers of a path embedding).

Row i's own document is column i; further columns are other irrelevant documents.
"""

from __future__ import annotations

import torch
from torch import Tensor


def triplet(similarity: Tensor, negative: Tensor, margin: float) -> Tensor:
    """Equation 2, L(a, b, c) = [a·c − a·b + γ]₊, averaged over all triplets of a batch.

    L_siamese (equation 3) is this on the embeddings of q, d₊, d₋, L_indexing (equation 4) on their path embeddings.
    ``similarity`` [B, C] is a·c, with a·b on the diagonal; ``negative`` [B, C] is True where c is irrelevant.
    """
    positive = similarity.diagonal()[:, None]  # [B, 1]
    terms = torch.relu(similarity - positive + margin) * negative  # [B, C]
    return terms.sum() / negative.sum().clamp(min=1)


def intra_leaf(paths: Tensor, cosine: Tensor, negative: Tensor, *, similar: float, margin: float) -> Tensor:
    """L_intra-leaf as in algorithm 1, L(T(d₊), T(d₊), T(d₋)) where cos(d₊, d₋) < τ; equation 5 prints a product.

    ``paths`` [C, P] are the documents' path embeddings T, of which the first B are relevant; ``cosine`` [B, C] that of
    their vectors; ``negative`` [B, C] is True where a document is irrelevant to the row's query; ``similar`` is τ.
    """
    return triplet(paths[: len(cosine)] @ paths.T, negative & (cosine.detach() < similar), margin)
