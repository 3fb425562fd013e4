"""A collection to train on or to be measured by: documents, queries, and which answers which."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.config import check_range
from palmette.data.rows import Positives, RowLists, groups
from palmette.errors import DuplicateIdError, InputError, NotFoundError
from palmette.metrics import Judgements
from palmette.types import Document

__all__ = ["Qrels", "RetrievalData", "RowPairs", "Split"]

Rows = NDArray[np.int64]
Qrels = dict[str, dict[str, int]]
"""Query id → document id → grade; 1 or more is relevant, 0 is known not to be."""


class RowPairs(NamedTuple):
    """Queries and their answers, as parallel rows of ``query_texts`` and ``texts``."""

    queries: Rows
    documents: Rows


@dataclass(frozen=True)
class Split:
    """The judged queries of one split, and their judgements."""

    name: str
    queries: dict[str, str]
    qrels: Qrels


@dataclass(frozen=True)
class RetrievalData:
    """Documents, queries and judgements by split.

    Rows are positions: of a document in ``corpus``, of a query in ``queries``. Queries that were made from
    documents may be trained against what remains of their document; those remainders are further rows of
    :attr:`texts`, beyond the corpus, and no search ever returns them.

    Attributes:
        name: For logs and the model card.
        corpus: The documents that are searched.
        queries: Query id → text.
        qrels: Split → query id → document id → grade.
        labelled: ``False`` when the queries that train were made from the documents.
        remainders: Self-made query id → its document without it.
    """

    name: str
    corpus: Sequence[Document]
    queries: dict[str, str]
    qrels: dict[str, Qrels]
    labelled: bool = True
    remainders: dict[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.corpus:
            raise InputError(f"{self.name}: there are no documents; give at least one")
        if len(self.rows) != len(self.corpus):
            twice = next(d.key for row, d in enumerate(self.corpus) if self.rows[d.key] != row)
            raise DuplicateIdError(f"{self.name}: document id {twice!r} is there twice; ids must differ")
        for what, known, named in (
            ("queries", self.queries.keys(), [(s, q) for s, qrels in self.qrels.items() for q in qrels]),
            (
                "documents",
                self.rows.keys(),
                [(s, d) for s, q in self.qrels.items() for judged in q.values() for d in judged],
            ),
        ):
            if unknown := [(split, key) for split, key in named if key not in known]:
                split, key = unknown[0]
                raise InputError(
                    f"{self.name}: {len(unknown)} of {len(named)} judgements name {what} that are not there, "
                    f"such as {key!r} in {split!r}; add them or leave their judgements out"
                )

    def __repr__(self) -> str:
        splits = ", ".join(f"{name}: {len(qrels)}" for name, qrels in self.qrels.items())
        kind = "" if self.labelled else ", made from the documents"
        counts = f"{len(self.corpus)} documents, {len(self.queries)} queries"
        return f"RetrievalData({self.name!r}, {counts} ({splits}){kind})"

    @cached_property
    def rows(self) -> dict[str, int]:
        """Document id → row."""
        return {document.key: row for row, document in enumerate(self.corpus)}

    @cached_property
    def query_rows(self) -> dict[str, int]:
        """Query id → row."""
        return {query: row for row, query in enumerate(self.queries)}

    @cached_property
    def query_texts(self) -> list[str]:
        """All queries, by row."""
        return list(self.queries.values())

    @cached_property
    def texts(self) -> list[str]:
        """All texts to encode for training, by row: the corpus, then the remainders."""
        return [document.content for document in self.corpus] + list(self.remainders.values())

    @property
    def trainable(self) -> bool:
        """Whether there is anything to train on."""
        return bool(self.qrels.get("train"))

    @property
    def splits(self) -> list[str]:
        """The names of the splits."""
        return list(self.qrels)

    def split(self, name: str) -> Split:
        """The queries and judgements of one split."""
        if name not in self.qrels:
            have = ", ".join(map(repr, self.qrels)) or "none"
            raise NotFoundError(f"{self.name} has no {name!r} split; splits: {have}")
        qrels = self.qrels[name]
        return Split(name, {query: self.queries[query] for query in qrels}, qrels)

    def pairs(self, split: str = "train") -> RowPairs:
        """Every (query, relevant document) of a split, to train on."""
        found = [
            (self.query_rows[query], self._answer(query, doc))
            for query, doc in self._judged(split, relevant=True)
        ]
        queries, documents = np.asarray(found, np.int64).reshape(-1, 2).T
        return RowPairs(queries, documents)

    def judgements(self, split: str) -> tuple[Rows, Judgements]:
        """The query rows of a split, and their judgements over the corpus, for ``metrics.score_ranks``."""
        qrels = self.split(split).qrels
        flat = [
            (row, self.rows[doc], grade)
            for row, judged in enumerate(qrels.values())
            for doc, grade in judged.items()
        ]
        columns = np.asarray(flat, np.int64).reshape(-1, 3).T
        rows = np.asarray([self.query_rows[query] for query in qrels], np.int64)
        return rows, Judgements.of(len(rows), len(self.corpus), *columns)

    def positives_mask(self, query_rows: Rows, doc_rows: Rows) -> NDArray[np.bool_]:
        """Which documents of a batch are known to answer which of its queries: [B, B'].

        Known from any split, and across equal texts: a query asked under two ids has the answers of both.
        """
        return self._positives.mask(query_rows, doc_rows)

    @cached_property
    def _positives(self) -> Positives:
        pairs = [self.pairs(split) for split in self.qrels]
        queries = np.concatenate([pair.queries for pair in pairs]) if pairs else np.empty(0, np.int64)
        documents = np.concatenate([pair.documents for pair in pairs]) if pairs else np.empty(0, np.int64)
        source = groups(document.content for document in self.corpus)
        cut = [self.rows[next(iter(self._source[query]))] for query in self.remainders]
        return Positives(
            queries,
            documents,
            groups(self.query_texts),
            np.concatenate([source, source[np.asarray(cut, np.int64)]]),
        )

    @cached_property
    def negatives(self) -> RowLists:
        """Documents known not to answer a training query (grade 0, or given as negatives), by query row."""
        found = list(self._judged("train", relevant=False)) if "train" in self.qrels else []
        pairs = [(self.query_rows[query], self.rows[doc]) for query, doc in found]
        queries, documents = np.asarray(pairs, np.int64).reshape(-1, 2).T
        return RowLists.of(queries, documents, len(self.queries))

    @cached_property
    def _source(self) -> Qrels:
        return {query: judged for qrels in self.qrels.values() for query, judged in qrels.items()}

    @cached_property
    def _remainder_rows(self) -> dict[str, int]:
        return {query: len(self.corpus) + row for row, query in enumerate(self.remainders)}

    def _answer(self, query: str, doc: str) -> int:
        return self._remainder_rows.get(query, self.rows[doc])

    def _judged(self, split: str, *, relevant: bool) -> list[tuple[str, str]]:
        qrels = self.split(split).qrels
        return [
            (query, doc)
            for query, judged in qrels.items()
            for doc, grade in judged.items()
            if (grade > 0) is relevant
        ]

    def with_dev(self, fraction: float, seed: int = 0) -> RetrievalData:
        """Hold out a ``dev`` split of the training queries, unless there is one already.

        The queries with the smallest SHA-256 of (seed, id) go: the same on every machine, in every order.
        Queries made from documents go by document, so that no document is on both sides.
        """
        check_range("data", "dev_fraction", fraction, 0, 0.9)
        if "dev" in self.qrels or "train" not in self.qrels or fraction == 0:
            return self
        train = self.qrels["train"]
        unit = {query: query if self.labelled else next(iter(judged)) for query, judged in train.items()}
        units = sorted(set(unit.values()), key=lambda key: hashlib.sha256(f"{seed}:{key}".encode()).digest())
        held = set(units[: round(fraction * len(units)) or min(1, len(units) - 1)])
        dev = {query: judged for query, judged in train.items() if unit[query] in held}
        rest = {query: judged for query, judged in train.items() if unit[query] not in held}
        kept = {query: text for query, text in self.remainders.items() if query not in dev}
        return replace(self, qrels={**self.qrels, "train": rest, "dev": dev}, remainders=kept)

    def unused(self, query: str) -> str:
        """The id, or one like it, that no query has."""
        while query in self.queries:
            query += "+"
        return query

    def summary(self) -> dict[str, object]:
        """Counts, for logs, the model card and ``palmette inspect``."""
        splits = {
            split: {
                "queries": len(qrels),
                "pairs": sum(grade > 0 for judged in qrels.values() for grade in judged.values()),
            }
            for split, qrels in self.qrels.items()
        }
        return {"name": self.name, "documents": len(self.corpus), "labelled": self.labelled, "splits": splits}
