"""The weight that a reranker deserves in a search: by judged questions, or by questions alone.

With judgements it is the mean of all weights whose nDCG@10 lies within one standard error of the best one's. Without
them, the first stage judges: its probabilities tell how often a hit is relevant, so that the slope

    b = Σ (z − mean z) (p − mean p) / Σ (p − mean p)²        z a hit's score in standard deviations, p its probability

estimates how far the reranker's scores of relevant hits lie above those of others, if its errors are not those of the
first stage. The weight is .22 b, 0 for one that knows nothing. Both are pulled towards the shipped weight by as many
questions as that counts for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from palmette.arrays import Floats
from palmette.config import check_kind
from palmette.errors import InputError
from palmette.index import Index
from palmette.learning.probability import FEWEST_QUESTIONS, check_judged, judged_by_votes
from palmette.ranking.second_stage import RERANK_SCORE, WEIGHT, Rerank, Reranker, as_reranker
from palmette.types import Hit

WEIGHTS = (*np.round(np.arange(0, 1, 0.05), 2).tolist(), 1.0, 1.25, 1.5, 2.0)
"""Candidate weights."""
SHIPPED_QUESTIONS = 10
"""Strength of the shipped weight, in questions."""
WEIGHT_OF_SEPARATION = 0.22
"""Weight per standard deviation between the scores of relevant hits and others; of simulated rerankers of AUROC .92,
.75 and .6 it gave .51, .25 and .08, and the best weights are .5, .25 and .05."""
DISCOUNTS = 1 / np.log2(np.arange(2, 12))
"""Discounts of nDCG@10."""


class _Judged(NamedTuple):
    """Hits of one question, best first."""

    logits: Floats
    scores: Floats
    """Standard deviations above the mean; 0 where not judged."""
    hits: Sequence[Hit]


def weigh_reranker(
    index: Index, rerank: Rerank, questions: Mapping[str, Mapping[str, int]] | Iterable[str] | None = None
) -> Reranker:
    """Return a reranker with the weight that it deserves on an index.

    Args:
        index: An index that is searched with its default options.
        rerank: The reranker, see :class:`palmette.ranking.second_stage.Reranker`.
        questions: Grades of documents by question and id (0: not relevant), from which the weight is learned. Or
            questions alone, such as those of a log: the first stage's probabilities then stand for judgements. ``None``
            for the votes that the index has kept.
    """
    reranker = as_reranker(rerank)
    if questions is None:
        questions = judged_by_votes(index)
    grades: Mapping[str, Mapping[str, int]] = {}
    if isinstance(questions, Mapping):
        check_judged(questions, index)
        grades = questions
    check_kind("questions", questions, Iterable, "grades by question and id, or a list of questions")
    asked = [check_text(question) for question in dict.fromkeys(questions) if str(question).strip()]
    found = _judge(index, reranker, asked)
    if isinstance(questions, Mapping):
        quality = [_quality(judged, grades[question]) for question, judged in found.items()]
        usable = [row for row in quality if row is not None]
    else:
        usable = list(found.values())
    if len(usable) < FEWEST_QUESTIONS:
        raise InputError(
            f"{len(usable)} questions have a hit to choose by and scores of {reranker.name}, and {FEWEST_QUESTIONS} "
            "are needed to weigh a reranker"
        )
    best = _best_weight(np.stack(usable)) if isinstance(questions, Mapping) else _weight_of(usable)
    share = len(usable) / (len(usable) + SHIPPED_QUESTIONS)
    return reranker.replace(weight=round(share * best + (1 - share) * WEIGHT, 3))


def check_text(question: Any) -> str:
    """Return a question; raise for what is no text."""
    check_kind("a question", question, str, "a str")
    return str(question)


def _judge(index: Index, reranker: Reranker, questions: Sequence[str]) -> dict[str, _Judged]:
    """Return log-odds of the first stage and scores of the reranker for the questions that it has judged."""
    found = {}
    results = index.search(list(questions), k=reranker.hits, rerank=reranker.replace(weight=0.0)) if questions else []
    for question, hits in zip(questions, results, strict=True):
        own = np.array([hit.evidence.get(RERANK_SCORE, np.nan) for hit in hits])
        if np.count_nonzero(~np.isnan(own)) < 2 or np.nanstd(own) < 1e-9:
            continue
        scores = np.nan_to_num((own - np.nanmean(own)) / np.nanstd(own))
        p = np.clip([hit.score for hit in hits], 1e-7, 1 - 1e-7)
        found[question] = _Judged(np.log(p / (1 - p)), scores, hits)
    return found


def _quality(judged: _Judged, grades: Mapping[str, int]) -> Floats | None:
    """Return nDCG@10 by weight; ``None`` where no hit is relevant, or all are."""
    gains = np.array([max(0, grades.get(hit.id, 0)) for hit in judged.hits], float)
    if not gains.any() or gains.all():
        return None
    ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)[: len(DISCOUNTS)]
    best, quality = sum(ideal * DISCOUNTS[: len(ideal)]), []
    for weight in WEIGHTS:
        order = np.argsort(-(judged.logits + weight * judged.scores), kind="stable").tolist()
        first = {judged.hits[row].id: gains[row] for row in reversed(order)}  # a document counts once
        ids = list(dict.fromkeys(judged.hits[row].id for row in order))
        quality.append(sum(first[id] * discount for id, discount in zip(ids, DISCOUNTS, strict=False)) / best)
    return np.array(quality)


def _best_weight(quality: Floats) -> float:
    """Return the mean of the weights that are about as good as the best one: nDCG@10 [Q, weights]."""
    best = int(quality.mean(axis=0).argmax())
    lost = quality[:, best : best + 1] - quality
    as_good = lost.mean(axis=0) <= np.sqrt(lost.var(axis=0) / len(lost))
    return float(np.array(WEIGHTS)[as_good].mean())


def _weight_of(found: Sequence[_Judged]) -> float:
    """Return the weight of a reranker by how its scores follow the probabilities of the first stage."""
    above = spread = 0.0
    for judged in found:
        open_hits = judged.scores != 0
        p = 1 / (1 + np.exp(-judged.logits[open_hits]))
        above += float(judged.scores[open_hits] @ (p - p.mean()))
        spread += float(np.square(p - p.mean()).sum())
    return float(np.clip(WEIGHT_OF_SEPARATION * above / max(spread, 1e-9), 0, WEIGHTS[-1]))
