"""The weight that a reranker deserves in a search, learned from judged questions.

It is the mean of all weights whose nDCG@10 lies within one standard error of the best one's, pulled towards the shipped
weight by as much as ten questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from palmette.arrays import Floats
from palmette.errors import InputError
from palmette.index import Index
from palmette.learning.probability import FEWEST_QUESTIONS, check_judged, judged_by_votes
from palmette.ranking.second_stage import RERANK_SCORE, WEIGHT, Rerank, Reranker, as_reranker

WEIGHTS = (*np.round(np.arange(0, 1, 0.05), 2).tolist(), 1.0, 1.25, 1.5, 2.0)
"""Candidate weights."""
SHIPPED_QUESTIONS = 10
"""Strength of the shipped weight, in questions."""
DISCOUNTS = 1 / np.log2(np.arange(2, 12))
"""Discounts of nDCG@10."""


def weigh_reranker(index: Index, rerank: Rerank, judged: Mapping[str, Mapping[str, int]] | None = None) -> Reranker:
    """Return a reranker with the weight that it deserves on an index.

    Args:
        index: An index that is searched with its default options.
        rerank: The reranker, see :class:`palmette.ranking.second_stage.Reranker`.
        judged: Grades of documents by question and id (0: not relevant). ``None`` takes the votes that the index has
            kept.
    """
    reranker = as_reranker(rerank)
    if judged is None:
        judged = judged_by_votes(index)
    else:
        check_judged(judged, index)
    quality = list[Floats]()
    questions = [question for question, grades in judged.items() if question.strip() and grades]
    trial = reranker.replace(weight=0.0)
    results = index.search(questions, k=reranker.hits, rerank=trial) if questions else []
    for question, hits in zip(questions, results, strict=True):
        own = np.array([hit.evidence.get(RERANK_SCORE, np.nan) for hit in hits])
        scored = ~np.isnan(own)
        if not scored.any() or own[scored].std() < 1e-9:
            continue
        z = np.nan_to_num((own - own[scored].mean()) / own[scored].std())
        p = np.clip([hit.score for hit in hits], 1e-7, 1 - 1e-7)
        logits = np.log(p / (1 - p))
        if (by_weight := _quality([hit.id for hit in hits], logits, z, judged[question])) is not None:
            quality.append(by_weight)
    if len(quality) < FEWEST_QUESTIONS:
        raise InputError(
            f"{len(quality)} questions have relevant hits beside others and scores of {reranker.name}, and "
            f"{FEWEST_QUESTIONS} are needed to weigh a reranker"
        )
    share = len(quality) / (len(quality) + SHIPPED_QUESTIONS)
    best = share * _best_weight(np.stack(quality)) + (1 - share) * WEIGHT
    return reranker.replace(weight=round(best, 3))


def _quality(ids: Sequence[str], logits: Floats, z: Floats, grades: Mapping[str, int]) -> Floats | None:
    """Return nDCG@10 by weight; ``None`` where no hit is relevant, or all are."""
    gains = {id: max(0, grades.get(id, 0)) for id in ids}
    if not any(gains.values()) or all(gains.values()):
        return None
    ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)[: len(DISCOUNTS)]
    best, quality = sum(ideal * DISCOUNTS[: len(ideal)]), []
    for weight in WEIGHTS:
        order = np.argsort(-(logits + weight * z), kind="stable").tolist()
        ranked = dict.fromkeys(ids[row] for row in order)  # a document counts once, by its best passage
        quality.append(sum(gains[id] * discount for id, discount in zip(ranked, DISCOUNTS, strict=False)) / best)
    return np.array(quality)


def _best_weight(quality: Floats) -> float:
    """Return the mean of the weights that are about as good as the best one: nDCG@10 [Q, weights]."""
    best = int(quality.mean(axis=0).argmax())
    lost = quality[:, best : best + 1] - quality
    as_good = lost.mean(axis=0) <= np.sqrt(lost.var(axis=0) / len(lost))
    return float(np.array(WEIGHTS)[as_good].mean())
