"""Learning without judgements: from what the encoder as it begins and shared words rank first together.

Either side alone ranks worse than both (tests/benchmarks/results/fields.md): what trains is to have both in its
vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from palmette.data.rows import RowLists
from palmette.lexical.given import Given
from palmette.lexical.tokens import LANGUAGE, analyser_of

__all__ = ["MOST", "Teacher"]

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]

WORDS = 0.3
"""What full agreement in words adds to a cosine."""
LEAD = 0.1
"""By so much a judged answer leads what would be the best."""
MOST = 50_000
"""Documents of a large collection that the teacher ranks."""
DEPTH, EACH = 30, 4
"""Of its best documents for a query so many are drawn for a batch."""
OTHERS = 128
"""Documents drawn at random beside them."""


class Teacher:
    """Ranks documents for queries by the encoder's vectors and by words.

    Args:
        rows: [N] which documents these are.
        vectors: [N, d] theirs, as the encoder makes them.
        texts: [N] theirs.
        queries: [Q, d] the vectors of all queries.
        asked_for: [Q] the queries.
        answers: [Q] Places in ``rows`` of what judges said answers them, if any did.
    """

    def __init__(
        self,
        rows: Rows,
        vectors: Floats,
        texts: Sequence[str],
        queries: Floats,
        asked_for: Sequence[str],
        answers: RowLists | None = None,
    ) -> None:
        self.rows, self.vectors, self.queries, self.asked_for = rows, vectors, queries, asked_for
        self.answers = answers or RowLists.of(np.empty(0, np.int64), np.empty(0, np.int64), len(queries))
        self.words = Given(analyser_of(LANGUAGE), texts)

    def scores(self, queries: Rows) -> Floats:
        """[B, N] of all documents for some queries."""
        words = np.stack([self.words.shares(self.asked_for[row]) for row in queries.tolist()])
        scores: Floats = self.queries[queries] @ self.vectors.T + np.float32(WORDS) * words
        asked, answers = self.answers.flat(queries)
        scores[asked, answers] = scores.max(1)[asked] + np.float32(LEAD)
        return scores

    def lesson(
        self, queries: Rows, draw: np.random.Generator, each: int = EACH, others: int = OTHERS
    ) -> tuple[Rows, Floats]:
        """Documents to tell apart for some queries [M], and their scores [B, M]."""
        scores = self.scores(queries)
        count = scores.shape[1]
        depth = min(DEPTH, count)
        best = np.argpartition(-scores, depth - 1, axis=1)[:, :depth]
        columns = draw.integers(depth, size=(len(queries), min(each, depth)))
        near = np.take_along_axis(best, columns, 1)
        judged = self.answers.sample(queries, 1, draw).ravel()
        chosen = np.concatenate([near.ravel(), judged[judged >= 0], draw.integers(count, size=others)])
        chosen = np.unique(chosen)
        return self.rows[chosen], scores[:, chosen]
