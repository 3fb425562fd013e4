"""Quality of rankings (nDCG, recall, reciprocal rank, hit rate) and of short answers.

Rankings are scored over ``gains`` [Q, K]: the grade of the document at each place, 0 where nothing is known of it.
Gains are linear in the grade, as in trec_eval; a grade of 1 or more is relevant; a negative one counts as 0. A query
without any relevant document cannot be scored: it is left out of the means, and counted.

Answers are compared after SQuAD's normalisation with every accepted one, and the best counts. A question that no
document answers has no accepted answers; the empty answer is right for it, and any other one is wrong.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from palmette.arrays import Rows
from palmette.errors import InputError

KS = (1, 10, 100)

Gains = NDArray[np.float64]
QrelsLike = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Judgements:
    """Grades by (query row, document row), sorted once so that whole result matrices are looked up at a time."""

    queries: int  # rows of a ranking matrix
    documents: int  # documents that rows may point to
    keys: Rows  # [J] query * documents + document, ascending
    grades: Gains  # [J] their grades, negative ones as 0

    @classmethod
    def of(
        cls, queries: int, documents: int, query_rows: ArrayLike, doc_rows: ArrayLike, grades: ArrayLike
    ) -> Judgements:
        """Judgements from parallel lists, each pair once."""
        keys = np.asarray(query_rows, np.int64) * documents + np.asarray(doc_rows, np.int64)
        order = np.argsort(keys, kind="stable")
        return cls(queries, documents, keys[order], np.maximum(np.asarray(grades, np.float64)[order], 0.0))

    @classmethod
    def of_queries(cls, judged: Sequence[Mapping[str, int]], rows: Mapping[str, int], documents: int) -> Judgements:
        """Judgements from each query's grades by document id, and the documents' rows."""
        flat = [(row, rows[doc], grade) for row, grades in enumerate(judged) for doc, grade in grades.items()]
        return cls.of(len(judged), documents, *np.asarray(flat, np.int64).reshape(-1, 3).T)

    def gains(self, rows: ArrayLike) -> Gains:
        """[Q, K] grades of a ranking matrix of document rows; a row below 0 is an empty place."""
        ranked = np.asarray(rows, np.int64)
        if not len(self.keys):
            return np.zeros(ranked.shape)
        keys = np.arange(len(ranked), dtype=np.int64)[:, None] * self.documents + ranked
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where((ranked >= 0) & (self.keys[at] == keys), self.grades[at], 0.0)

    def ideal(self, k: int) -> Gains:
        """[Q, k] the best grades of each query, best first, 0 where there are fewer."""
        query = self.keys // max(self.documents, 1)
        order = np.lexsort((-self.grades, query))
        query = query[order]
        place = np.arange(len(query)) - np.searchsorted(query, query)
        keep = place < k
        best = np.zeros((self.queries, k))
        best[query[keep], place[keep]] = self.grades[order][keep]
        return best

    @property
    def relevant(self) -> NDArray[np.int64]:
        """[Q] number of relevant documents of each query."""
        return np.bincount((self.keys // max(self.documents, 1))[self.grades > 0], minlength=self.queries)


def ndcg(gains: Gains, ideal: Gains) -> Gains:
    """Return nDCG [Q] from the grades of each ranking and the best ones possible, both [Q, ≤ k] and best first."""
    dcg, ideal_dcg = ((part / np.log2(np.arange(2, part.shape[1] + 2))).sum(axis=1) for part in (gains, ideal))
    scores: Gains = np.divide(dcg, ideal_dcg, out=np.zeros_like(ideal_dcg), where=ideal_dcg > 0)
    return scores


def query_scores(rows: ArrayLike, judgements: Judgements, *, ks: Sequence[int] = KS) -> dict[str, Gains]:
    """Each measure at each k, by query [Q]; queries without a relevant document score 0 here."""
    gains, ideal = judgements.gains(rows), judgements.ideal(max(ks))  # [Q, K], [Q, max k]
    relevant = np.maximum(judgements.relevant, 1)
    place = np.arange(1, gains.shape[1] + 1)
    scores: dict[str, Gains] = {}
    for k in ks:
        top, best = gains[:, :k], ideal[:, :k]
        scores[f"ndcg@{k}"] = ndcg(top, best)
        scores[f"recall@{k}"] = np.count_nonzero(top > 0, axis=1) / relevant
        scores[f"mrr@{k}"] = ((top > 0) / place[: top.shape[1]]).max(axis=1, initial=0.0)
        scores[f"hit@{k}"] = np.asarray((top > 0).any(axis=1), np.float64)
    return scores


def score_ranks(rows: ArrayLike, judgements: Judgements, *, ks: Sequence[int] = KS) -> dict[str, float]:
    """Means over the queries, from a matrix [Q, K] of document rows, best first, padded with −1.

    Besides ``ndcg@k``, ``recall@k``, ``mrr@k`` and ``hit@k`` the result counts the ``queries`` that were scored and
    those left out as ``unjudged``.
    """
    scored = judgements.relevant > 0
    if not scored.any():
        raise InputError(f"none of the {judgements.queries} queries has a relevant document (a grade of 1 or more)")
    scores = query_scores(rows, judgements, ks=ks)
    means = {name: float(values[scored].mean()) for name, values in scores.items()}
    return means | {"queries": float(scored.sum()), "unjudged": float((~scored).sum())}


def score_run(run: Mapping[str, Sequence[str]], qrels: QrelsLike, *, ks: Sequence[int] = KS) -> dict[str, float]:
    """Means over the queries from document ids: ``run`` gives each query's ranking, best first.

    Judged queries that the run lacks score 0; queries of the run that nobody judged count as ``unjudged``.
    """
    queries = [*qrels, *(query for query in run if query not in qrels)]
    judged, ranked_ids = [qrels.get(query, {}) for query in queries], [run.get(query, ()) for query in queries]
    return score_ranks(*judged_rows(ranked_ids, judged, max(ks)), ks=ks)


def judged_rows(
    ranked_ids: Sequence[Sequence[str]], judged: Sequence[Mapping[str, int]], k: int
) -> tuple[Rows, Judgements]:
    """Rows of the judged documents in each query's ranking of ids [Q, k], −1 for others, and the judgements."""
    known = {doc: row for row, doc in enumerate(dict.fromkeys(doc for grades in judged for doc in grades))}
    ranks = np.full((len(judged), k), -1, np.int64)
    for row, ids in enumerate(ranked_ids):
        ranks[row, : min(k, len(ids))] = [known.get(doc, -1) for doc in ids[:k]]
    return ranks, Judgements.of_queries(judged, known, len(known))


_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation and English articles, words parted by one space.

    >>> normalise("The  U.S. Army's")
    'us armys'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, accepted: Iterable[str]) -> float:
    """1.0 if the answer is one of the accepted ones after normalisation, else 0.0."""
    return float(normalise(answer) in _references(accepted))


def f1(answer: str, accepted: Iterable[str]) -> float:
    """Harmonic mean of the precision and recall of words, the best over the accepted answers.

    >>> round(f1("in Paris, France", ["Paris", "Rome"]), 2)
    0.5
    """
    answer_words, best = normalise(answer).split(), 0.0
    for reference in map(str.split, _references(accepted)):
        common = sum((Counter(answer_words) & Counter(reference)).values())
        empty = not answer_words or not reference
        best = max(
            best, float(answer_words == reference) if empty else 2 * common / (len(answer_words) + len(reference))
        )
    return best


def holds_answer(text: str, answers: Iterable[str]) -> bool:
    """Any of the answers occurs in the text, as whole words after normalisation.

    >>> holds_answer("It was in the U.S. then.", ["us"]), holds_answer("Just then.", ["us"])
    (True, False)
    """
    padded = f" {normalise(text)} "
    return any(words and f" {words} " in padded for words in map(normalise, answers))


def _references(accepted: Iterable[str]) -> list[str]:
    """Normalised answers; without any, or where nothing is left of them, the empty answer."""
    return [text for text in map(normalise, accepted) if text] or [""]
