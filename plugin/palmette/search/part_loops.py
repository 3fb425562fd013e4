"""The loop over documents of several vectors that numba compiles: import it when first needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from palmette.search.loops import compiled

__all__ = ["best_parts"]


@compiled
def _dot(x: Any, query: Any) -> Any:
    total = np.float32(0)
    for c in range(len(query)):
        total += np.float32(x[c]) * query[c]
    return total


@compiled
def best_parts(
    data: Any,  # [n, F, d] vectors of documents
    scales: Any,  # [n, F] what each is to be multiplied by; of width 0 for 1
    rows: Any,  # [m] documents to score
    of: Any,  # [m] and for which query
    queries: Any,  # [Q, d]
    weights: Any,  # [F] of the parts; 0 for those that do not count
    scores: Any,  # [m]
    which: Any,  # [m] the part that scores best
) -> None:
    """The best weighted inner product of each document's vectors, the first of equal ones.

    A vector of zeros is a part that the document lacks: it outranks no other, and gives 0 where there are none.
    """
    scaled = scales.shape[1] > 0
    for i in range(len(rows)):
        best, at, found = np.float32(0), 0, False
        for f in range(len(weights)):
            if weights[f] > 0:
                score = weights[f] * _dot(data[rows[i], f], queries[of[i]])
                if scaled:
                    score *= scales[rows[i], f]
                if score != 0 and (score > best or not found):
                    best, at, found = score, f, True
        scores[i], which[i] = best, at
