"""How good a ranking is: nDCG, recall, reciprocal rank and hit rate at k.

The measures are pure functions over ``gains`` [Q, K]: the grade of the document at each place of each
ranking, 0 where nothing is known of it; they give one number per query, [Q]. Gains are linear in the grade,
as in trec_eval; a grade of 1 or more is relevant; a negative one counts as 0. A query without any relevant
document cannot be scored: it is left out of the means, and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from palmette.errors import InputError

__all__ = ["Judgements", "hit", "mrr", "ndcg", "query_scores", "recall", "score_ranks", "score_run"]

KS = (1, 10, 100)

Gains = NDArray[np.float64]
Rows = NDArray[np.int64]
Qrels = Mapping[str, Mapping[str, int]]


def _dcg(gains: Gains, k: int) -> Gains:
    places = np.arange(2, gains.shape[1] + 2)[:k]
    discounted: Gains = gains[:, :k] / np.log2(places)
    return np.asarray(discounted.sum(axis=1), np.float64)


def ndcg(gains: Gains, ideal: Gains, k: int) -> Gains:
    """Discounted gain of the first ``k`` places over that of ``ideal``: all grades, best first."""
    best = _dcg(ideal, k)
    return np.divide(_dcg(gains, k), best, out=np.zeros_like(best), where=best > 0)


def recall(gains: Gains, relevant: NDArray[Any], k: int) -> Gains:
    """Share of the ``relevant`` [Q] documents that stand in the first ``k`` places."""
    share: Gains = (gains[:, :k] > 0).sum(axis=1) / np.maximum(relevant, 1)
    return share


def mrr(gains: Gains, k: int) -> Gains:
    """One over the place of the first relevant document, 0 when it is not among the first ``k``."""
    found = gains[:, :k] > 0
    return (
        np.where(found.any(axis=1), 1.0 / (1 + found.argmax(axis=1)), 0.0)
        if found.size
        else np.zeros(len(gains))
    )


def hit(gains: Gains, k: int) -> Gains:
    """1 when a relevant document stands in the first ``k`` places, else 0."""
    return np.asarray((gains[:, :k] > 0).any(axis=1), np.float64)


@dataclass(frozen=True)
class Judgements:
    """Grades by (query row, document row), sorted once so that whole result matrices are looked up at a time.

    Attributes:
        queries: How many queries there are; a ranking matrix has as many rows.
        documents: How many documents the rows may point to.
        keys: ``query * documents + document``, ascending. [J]
        grades: Their grades, negative ones as 0. [J]
    """

    queries: int
    documents: int
    keys: Rows
    grades: Gains

    @classmethod
    def of(
        cls, queries: int, documents: int, query_rows: ArrayLike, doc_rows: ArrayLike, grades: ArrayLike
    ) -> Judgements:
        """From parallel lists of judgements; a pair judged twice raises."""
        query, doc = np.asarray(query_rows, np.int64), np.asarray(doc_rows, np.int64)
        for name, rows, size in (("query", query, queries), ("document", doc, documents)):
            if outside := rows[(rows < 0) | (rows >= size)].tolist():
                raise InputError(f"judgements: {name} row {outside[0]} is outside 0..{size - 1}")
        keys = query * documents + doc
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        if (twice := np.flatnonzero(keys[1:] == keys[:-1])).size:
            q, d = divmod(int(keys[twice[0]]), documents)
            raise InputError(
                f"judgements: query row {q} and document row {d} are judged twice; keep one grade"
            )
        return cls(queries, documents, keys, np.maximum(np.asarray(grades, np.float64)[order], 0.0))

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
        """[Q] how many relevant documents each query has."""
        return np.bincount((self.keys // max(self.documents, 1))[self.grades > 0], minlength=self.queries)


def _check_ks(ks: Sequence[object]) -> None:
    if not ks or not all(isinstance(k, int) and not isinstance(k, bool) and k > 0 for k in ks):
        raise InputError(f"ks must name places of 1 or more, such as (1, 10, 100); got {tuple(ks)!r}")


def query_scores(rows: ArrayLike, judgements: Judgements, *, ks: Sequence[int] = KS) -> dict[str, Gains]:
    """Each measure at each k, by query [Q]; queries without a relevant document score 0 here."""
    _check_ks(ks)
    gains, ideal, relevant = judgements.gains(rows), judgements.ideal(max(ks)), judgements.relevant
    return (
        {f"ndcg@{k}": ndcg(gains, ideal, k) for k in ks}
        | {f"recall@{k}": recall(gains, relevant, k) for k in ks}
        | {f"mrr@{k}": mrr(gains, k) for k in ks}
        | {f"hit@{k}": hit(gains, k) for k in ks}
    )


def _mean(rows: ArrayLike, judgements: Judgements, ks: Sequence[int]) -> dict[str, float]:
    scored = judgements.relevant > 0
    if not scored.any():
        raise InputError(
            f"none of the {judgements.queries} queries has a relevant document (a grade of 1 or more)"
        )
    scores = {
        name: float(values[scored].mean()) for name, values in query_scores(rows, judgements, ks=ks).items()
    }
    return scores | {"queries": float(scored.sum()), "unjudged": float((~scored).sum())}


def score_ranks(rows: ArrayLike, judgements: Judgements, *, ks: Sequence[int] = KS) -> dict[str, float]:
    """Means over the queries, from a matrix [Q, K] of document rows, best first, padded with −1.

    Besides ``ndcg@k``, ``recall@k``, ``mrr@k`` and ``hit@k`` the result says how many ``queries`` were scored
    and how many were left out as ``unjudged``.
    """
    _check_ks(ks)
    ranked = np.asarray(rows)
    if ranked.ndim != 2 or len(ranked) != judgements.queries:
        raise InputError(
            f"ranks must be a matrix with {judgements.queries} rows, one per query; got {ranked.shape}"
        )
    if ranked.shape[1] < min(max(ks), judgements.documents):
        raise InputError(
            f"ranks are {ranked.shape[1]} places deep, but k={max(ks)} is asked for: search deeper"
        )
    return _mean(ranked, judgements, ks)


def score_run(run: Mapping[str, Sequence[str]], qrels: Qrels, *, ks: Sequence[int] = KS) -> dict[str, float]:
    """The same means from document ids: ``run`` gives each query's ranking, best first.

    Judged queries that the run lacks score 0; queries of the run that nobody judged count as ``unjudged``.
    """
    _check_ks(ks)
    queries = [*qrels, *(query for query in run if query not in qrels)]
    known = {
        doc: row for row, doc in enumerate(dict.fromkeys(doc for judged in qrels.values() for doc in judged))
    }
    flat = [
        (row, known[doc], grade) for row, judged in enumerate(qrels.values()) for doc, grade in judged.items()
    ]
    columns = np.asarray(flat, np.int64).reshape(-1, 3).T
    judgements = Judgements.of(len(queries), len(known), *columns)
    ranks = np.full((len(queries), max(ks)), -1, np.int64)
    for row, query in enumerate(queries):
        ranked = run.get(query, ())
        if len(set(ranked)) != len(ranked):
            twice = next(doc for place, doc in enumerate(ranked) if doc in ranked[:place])
            raise InputError(f"run: query {query!r} lists document {twice!r} twice")
        rows = [known.get(doc, -1) for doc in ranked[: max(ks)]]
        ranks[row, : len(rows)] = rows
    return _mean(ranks, judgements, ks)
