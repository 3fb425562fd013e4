"""Hard negatives: wrong answers that the index, as it is, would show."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from palmette.methods.paths.inputs import Inputs
from palmette.methods.paths.module import Paths
from palmette.pairs import EncodedPairs

__all__ = ["Mined", "mine"]

KEPT = 20
"""Wrong answers kept for each query, nearest first."""
PART = 256

Rows = NDArray[np.int64]


class Mined(NamedTuple):
    """Wrong answers [P, n] of each training row, −1 where there are fewer."""

    documents: Rows

    def drawn(self, rows: Rows, generator: torch.Generator) -> Rows:
        """One for each of these training rows that has any, each document once."""
        choice = torch.randint(self.documents.shape[1], (len(rows),), generator=generator).numpy()
        drawn = np.unique(self.documents[rows, choice])
        return drawn[drawn >= 0]


@torch.no_grad()
def mine(module: Paths, pairs: EncodedPairs, inputs: Inputs) -> Mined:
    """The nearest documents of every training query that do not answer it.

    ``leaves``: among those in the leaf that the query goes to (the paper's); ``nearest``: of all documents (ANCE).
    """
    corpus = inputs.document_embeddings(np.arange(len(pairs.data.corpus)))
    vectors = torch.cat([module.embed(part) for part in torch.split(corpus, 4096)])
    inside = module.config.negatives == "leaves"
    placed = torch.cat([module.indexer.beam(v, 1).leaves[:, 0] for v in torch.split(vectors, 4096)])
    asked, back = np.unique(pairs.query_rows, return_inverse=True)
    found = []
    for start in range(0, len(asked), PART):
        rows = asked[start : start + PART]
        queries = module.embed(inputs.query_embeddings(rows))
        scores = queries @ vectors.T  # [256, N]
        answers = pairs.data.positives_mask(rows, np.arange(len(corpus)))
        out = torch.from_numpy(answers).to(scores.device)
        if inside:
            out |= module.indexer.beam(queries, 1).leaves != placed
        best = scores.masked_fill(out, -torch.inf).topk(min(KEPT, len(corpus)), dim=1)
        found.append(best.indices.masked_fill(best.values == -torch.inf, -1).cpu().numpy())
    return Mined(np.concatenate(found)[back])
