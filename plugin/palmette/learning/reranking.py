"""The weight that a reranker deserves in a search, learned from judged questions.

It is the mean of all weights whose nDCG@10 lies within one standard error of the best one's, pulled towards the shipped
weight by as much as ten questions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from palmette.data.metrics import ndcg
from palmette.errors import InputError
from palmette.index import Index
from palmette.learning.probability import FEWEST_QUESTIONS, judged_questions
from palmette.ranking.second_stage import RERANK_SCORE, WEIGHT, Rerank, Reranker, as_reranker

WEIGHTS = (*np.round(np.arange(0, 1, 0.05), 2).tolist(), 1.0, 1.25, 1.5, 2.0)
"""Candidate weights."""
SHIPPED_QUESTIONS = 10
"""Strength of the shipped weight, in questions."""
DEPTH = 10
"""Depth of nDCG."""


def weigh_reranker(index: Index, rerank: Rerank, judged: Mapping[str, Mapping[str, int]] | None = None) -> Reranker:
    """Return a reranker with the weight that it deserves on an index.

    Args:
        index: An index that is searched with its default options.
        rerank: The reranker, see :class:`palmette.ranking.second_stage.Reranker`.
        judged: Grades of documents by question and id (0: not relevant). ``None`` takes the votes that the index has
            kept.
    """
    reranker, questions, quality = as_reranker(rerank), judged_questions(index, judged), list[NDArray[np.float64]]()
    trial = reranker.replace(weight=0.0)
    results = index.search(list(questions), k=reranker.hits, rerank=trial) if questions else []
    # 1. nDCG@10 of each question by weight, where the reranker's scores differ and so do the grades of its hits.
    for grades, hits in zip(questions.values(), results, strict=True):
        own = np.array([hit.evidence.get(RERANK_SCORE, np.nan) for hit in hits])
        scored = ~np.isnan(own)
        if not scored.any() or own[scored].std() < 1e-9:
            continue
        z = np.nan_to_num((own - own[scored].mean()) / own[scored].std())
        p = np.clip([hit.score for hit in hits], 1e-7, 1 - 1e-7)
        logits = np.log(p / (1 - p))
        gains = {hit.id: max(0, grades.get(hit.id, 0)) for hit in hits}
        if any(gains.values()) and not all(gains.values()):
            ranked = np.zeros((len(WEIGHTS), DEPTH))
            for row, weight in enumerate(WEIGHTS):
                order = np.argsort(-(logits + weight * z), kind="stable").tolist()
                first = list(dict.fromkeys(hits[place].id for place in order))[:DEPTH]  # by its best passage
                ranked[row, : len(first)] = [gains[id] for id in first]
            ideal = sorted((max(0, grade) for grade in grades.values()), reverse=True)[:DEPTH]
            quality.append(ndcg(ranked, np.tile(np.array(ideal, np.float64), (len(WEIGHTS), 1))))
    if len(quality) < FEWEST_QUESTIONS:
        raise InputError(
            f"{len(quality)} questions have relevant hits beside others and scores of {reranker.name}, and "
            f"{FEWEST_QUESTIONS} are needed to weigh a reranker"
        )
    # 2. The mean of the weights that are about as good as the best one, pulled towards the shipped weight.
    table = np.stack(quality)  # [Q, weights]
    lost = table[:, [int(table.mean(axis=0).argmax())]] - table
    as_good = lost.mean(axis=0) <= np.sqrt(lost.var(axis=0) / len(lost))
    share = len(quality) / (len(quality) + SHIPPED_QUESTIONS)
    best = share * float(np.array(WEIGHTS)[as_good].mean()) + (1 - share) * WEIGHT
    return reranker.replace(weight=round(best, 3))
