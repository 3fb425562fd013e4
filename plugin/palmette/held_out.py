"""Some of the judged questions, and of the documents that they are ranked against (Q queries, N documents)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from palmette.metrics import Judgements, query_scores, score_ranks

if TYPE_CHECKING:
    from palmette.data import RetrievalData

__all__ = ["HeldOut", "best_places"]

Rows = NDArray[np.int64]

DEV_QUERIES, DEV_DOCUMENTS = 500, 5_000
"""A validation is a sample at most this large."""
NEAR = 100
"""Documents near a held-out query that may take part in it."""


@dataclass(frozen=True)
class HeldOut:
    """The queries, the documents they are ranked against, and the judgements among those."""

    queries: Rows
    documents: Rows
    judgements: Judgements

    @classmethod
    def of(
        cls,
        data: RetrievalData,
        seed: int,
        *,
        split: str = "dev",
        queries: int = DEV_QUERIES,
        documents: int = DEV_DOCUMENTS,
    ) -> Self | None:
        """Sample a split: the judged documents, and others at random; ``None`` where no query of it has an answer."""
        if not data.qrels.get(split):
            return None
        draw = np.random.default_rng(seed)
        every = list(data.split(split).qrels.items())
        chosen = [every[place] for place in np.sort(draw.permutation(len(every))[:queries]).tolist()]
        judged = [
            (at, data.rows[id], grade) for at, (_, known) in enumerate(chosen) for id, grade in known.items()
        ]
        if not any(grade > 0 for _, _, grade in judged):
            return None
        needed = np.unique([document for _, document, _ in judged])
        others = np.setdiff1d(np.arange(len(data.corpus)), needed)
        extra = draw.permutation(others)[: max(0, documents - len(needed))]
        ranked = np.sort(np.concatenate([needed, extra])).astype(np.int64)
        at, document, grade = (np.array(column) for column in zip(*judged, strict=True))
        local = np.searchsorted(ranked, document)
        asked = np.array([data.query_rows[query] for query, _ in chosen], np.int64)
        return cls(asked, ranked, Judgements.of(len(chosen), len(ranked), at, local, grade))

    def among_nearest(self, queries: Tensor, documents: Tensor) -> Self:
        """The same queries (rows of [Q, d]) and as many documents (of [N, d]), but the nearest in place of any.

        Near ones are what a query's answer can be mistaken for, and of many documents few at random are near. Of
        MedQuAD's 16,407, 5,000 at random put a tree's nDCG@10 at .955 where all have .920, and steps seemed to help
        that made it worse; with the nearest it is .919, and falls with the true one.
        """
        count = len(self.documents)
        if count == len(documents):
            return self
        needed = self.documents[np.unique(self.judgements.keys % count)]
        asked, lengths = queries[torch.from_numpy(self.queries)], documents.norm(dim=1).clamp_min(1e-12)
        near = best_places(asked, documents, lambda q, d: q @ d.T / lengths, NEAR)  # [Q, ≤ NEAR]
        ranked, first = np.unique(near.T, return_index=True)
        by_rank = ranked[np.argsort(first)]  # every query's nearest, then every query's next
        taken = np.union1d(needed, by_rank[~np.isin(by_rank, needed)][: count - len(needed)])
        others = np.setdiff1d(self.documents, taken)
        spread = np.linspace(0, len(others) - 1, count - len(taken)).astype(np.int64)
        rows = np.union1d(taken, others[spread]).astype(np.int64)
        query, place = np.divmod(self.judgements.keys, count)
        local = np.searchsorted(rows, self.documents[place])
        grades = self.judgements.grades
        return replace(
            self, documents=rows, judgements=Judgements.of(len(self.queries), count, query, local, grades)
        )

    def each(self, ranks: Rows) -> NDArray[np.float64]:
        """nDCG@10 of every query that has an answer, of the best places among ``documents`` [Q, ≤ 10]."""
        by_query = query_scores(ranks, self.judgements, ks=(10,))["ndcg@10"]
        return by_query[self.judgements.relevant > 0]

    def judge(self, ranks: Rows) -> dict[str, float]:
        """nDCG@10, Recall@10 and MRR@10 of the best places among ``documents`` for each query [Q, ≤ 10]."""
        scores = score_ranks(ranks, self.judgements, ks=(10,))
        return {name: scores[name] for name in ("ndcg@10", "recall@10", "mrr@10")}


def best_places(
    queries: Tensor, documents: Tensor, similarity: Callable[[Tensor, Tensor], Tensor], depth: int = 10
) -> Rows:
    """The most similar documents [N, c] of each query [Q, c], best first: [Q, ≤ depth]."""
    depth = min(depth, len(documents))
    parts = [similarity(part, documents).topk(depth, dim=1).indices for part in torch.split(queries, 64)]
    places: Rows = torch.cat(parts).cpu().numpy()  # [64, N] at a time
    return places
