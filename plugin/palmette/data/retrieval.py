"""Documents, queries and judgements to train on or to measure with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Ragged, Rows
from palmette.config import check_kind, check_range
from palmette.data.metrics import Judgements
from palmette.errors import DuplicateIdError, InputError, NotFoundError
from palmette.types import Document

Qrels = dict[str, dict[str, int]]
"""Query id → document id → grade; 1 or more is relevant, 0 is known not to be."""


class RowLists(Ragged):
    """A list of rows for each of N rows."""

    __getitem__ = Ragged.row

    @classmethod
    def of(cls, keys: Rows, values: Rows, size: int) -> RowLists:
        """Gather ``values`` by ``keys`` (parallel, keys below ``size``)."""
        order = np.lexsort((values, keys))
        return cls(values[order], np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=size))]))

    def flat(self, rows: Rows) -> tuple[Rows, Rows]:
        """Place in ``rows`` and value of every entry of their lists, as parallel arrays."""
        return np.repeat(np.arange(len(rows)), self.counts(rows)), self.take(rows).values

    def sample(self, rows: Rows, count: int, random: np.random.Generator) -> Rows:
        """[B, count] draws with replacement from each row's list; −1 where the list is empty."""
        if not len(self.values):
            return np.full((len(rows), count), -1, np.int64)
        sizes = self.counts(rows)[:, None]
        drawn = self.starts[rows][:, None] + random.integers(0, np.maximum(sizes, 1), (len(rows), count))
        return np.where(sizes > 0, self.values[np.minimum(drawn, len(self.values) - 1)], -1)


class RowPairs(NamedTuple):
    """Rows of ``query_texts`` and of ``texts`` that belong together, as parallel arrays."""

    queries: Rows
    documents: Rows


@dataclass(frozen=True)
class Split:
    """Judged queries of one split, and their judgements."""

    name: str
    queries: dict[str, str]
    qrels: Qrels


@dataclass(frozen=True)
class RetrievalData:
    """Documents, queries and judgements by split.

    A row is a position: of a document in ``corpus``, of a query in ``queries``.
    """

    name: str
    corpus: Sequence[Document]
    queries: dict[str, str] = field(default_factory=dict)
    qrels: dict[str, Qrels] = field(default_factory=dict)  # by split

    def __post_init__(self) -> None:
        check_kind("the corpus", self.corpus, Sequence, "a list of documents")
        for document in self.corpus:
            check_kind("a document of the corpus", document, Document, "a palmette.Document")
        for name in ("queries", "qrels"):
            check_kind(name, getattr(self, name), Mapping, "a mapping")
        for judged in self.qrels.values():
            check_kind("a split", judged, Mapping, "a mapping of query id → document id → grade")
            for grades in judged.values():
                check_kind("judgements", grades, Mapping, "a mapping of document id → grade")
        if not self.corpus:
            raise InputError(f"{self.name}: there are no documents; give at least one")
        if len(self.rows) != len(self.corpus):
            twice = next(d.key for row, d in enumerate(self.corpus) if self.rows[d.key] != row)
            raise DuplicateIdError(f"{self.name}: document id {twice!r} is there twice; ids must differ")
        queries = [(split, query) for split, qrels in self.qrels.items() for query in qrels]
        documents = [(split, doc) for split, query in queries for doc in self.qrels[split][query]]
        for what, known, named in (("queries", self.queries, queries), ("documents", self.rows, documents)):
            if unknown := [(split, key) for split, key in named if key not in known]:
                split, key = unknown[0]
                raise InputError(
                    f"{self.name}: {len(unknown)} of {len(named)} judgements name {what} that are not there, "
                    f"such as {key!r} in {split!r}; add them or leave their judgements out"
                )

    @property
    def labelled(self) -> bool:
        """False for documents alone."""
        return bool(self.qrels)

    @property
    def trainable(self) -> bool:
        """Judgements of a train split exist."""
        return bool(self.qrels.get("train"))

    def __repr__(self) -> str:
        splits = ", ".join(f"{name}: {len(qrels)}" for name, qrels in self.qrels.items())
        queries = f"{len(self.queries)} queries ({splits})" if self.queries else "no queries"
        return f"RetrievalData({self.name!r}, {len(self.corpus)} documents, {queries})"

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
        """Queries by row."""
        return list(self.queries.values())

    @cached_property
    def texts(self) -> list[str]:
        """Contents of the documents, by row."""
        return [document.content for document in self.corpus]

    def split(self, name: str) -> Split:
        """Queries and judgements of one split."""
        if name not in self.qrels:
            have = ", ".join(map(repr, self.qrels)) or "none"
            raise NotFoundError(f"{self.name} has no {name!r} split; splits: {have}")
        qrels = self.qrels[name]
        return Split(name, {query: self.queries[query] for query in qrels}, qrels)

    def pairs(self, split: str = "train") -> RowPairs:
        """Every (query, relevant document) of a split, to train on; none of documents alone."""
        return self._row_pairs([split] if self.labelled else (), relevant=True)

    def _row_pairs(self, splits: Iterable[str], *, relevant: bool) -> RowPairs:
        flat = [
            (self.query_rows[query], self.rows[doc])
            for split in splits
            for query, judged in self.split(split).qrels.items()
            for doc, grade in judged.items()
            if (grade > 0) is relevant
        ]
        return RowPairs(*np.asarray(flat, np.int64).reshape(-1, 2).T)

    def judgements(self, split: str) -> tuple[Rows, Judgements]:
        """Query rows of a split and their judgements over the corpus, for ``metrics.score_ranks``."""
        qrels = self.split(split).qrels
        rows = np.asarray([self.query_rows[query] for query in qrels], np.int64)
        return rows, Judgements.of_queries(list(qrels.values()), self.rows, len(self.corpus))

    def positives_mask(self, query_rows: Rows, doc_rows: Rows) -> NDArray[np.bool_]:
        """[B, B'] True where a document of a batch is known to answer a query.

        Known from any split, and across equal texts: a query under two ids has the answers of both. A batch costs its
        queries' known answers, looked up among its distinct documents, never B² searches.
        """
        query_groups, doc_groups, answers = self._known_answers
        if not len(query_rows) or not len(doc_rows):
            return np.zeros((len(query_rows), len(doc_rows)), bool)
        documents, inverse = np.unique(doc_groups[doc_rows], return_inverse=True)  # [U], [B']
        owner, answer = answers.flat(query_groups[query_rows])
        at = np.minimum(np.searchsorted(documents, answer), len(documents) - 1)
        known = np.zeros((len(query_rows), len(documents)), bool)  # [B, U]
        hits = documents[at] == answer
        known[owner[hits], at[hits]] = True
        return known[:, inverse]

    @cached_property
    def negatives(self) -> RowLists:
        """Documents known not to answer a training query (grade 0, or given as negatives), by query row."""
        pairs = self._row_pairs(["train"] if "train" in self.qrels else (), relevant=False)
        return RowLists.of(*pairs, len(self.queries))

    @cached_property
    def _known_answers(self) -> tuple[Rows, Rows, RowLists]:
        """Group of each query's text, group of each text, and the groups of texts that answer each group of queries."""
        pairs = self._row_pairs(self.qrels, relevant=True)
        query_groups, doc_groups = _groups(self.query_texts), _groups(self.texts)
        size = int(query_groups.max(initial=-1)) + 1
        answers = RowLists.of(query_groups[pairs.queries], doc_groups[pairs.documents], size)
        return query_groups, doc_groups, answers

    def with_dev(self, fraction: float, seed: int = 0) -> RetrievalData:
        """Hold out a ``dev`` split of the training queries, unless there is one already.

        The queries with the smallest SHA-256 of (seed, id) go: the same on every machine, in every order.
        """
        check_range("data", "dev_fraction", fraction, 0, 0.9)
        if "dev" in self.qrels or "train" not in self.qrels or fraction == 0:
            return self
        train = self.qrels["train"]
        order = sorted(train, key=lambda query: hashlib.sha256(f"{seed}:{query}".encode()).digest())
        dev_queries = set(order[: round(fraction * len(order)) or min(1, len(order) - 1)])
        dev = {query: judged for query, judged in train.items() if query in dev_queries}
        rest = {query: judged for query, judged in train.items() if query not in dev_queries}
        return replace(self, qrels={**self.qrels, "train": rest, "dev": dev})


def _groups(texts: Iterable[str]) -> Rows:
    """[N] a number per text, equal for texts that differ only in case or in blanks at the ends."""
    numbers: dict[str, int] = {}
    return np.asarray([numbers.setdefault(text.strip().casefold(), len(numbers)) for text in texts], np.int64)
