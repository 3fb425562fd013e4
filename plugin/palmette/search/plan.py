"""A search as data: a method writes a SearchPlan, storage executes it and returns Candidates.

Letters: Q queries, d numbers of a vector, F vectors of a document, n candidates, L numbered lists, β lists visited.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats as Floats
from palmette.arrays import Keys as Keys
from palmette.arrays import Ragged, Rows
from palmette.errors import REPAIR, CorruptIndexError, EncodingError, InputError, shown
from palmette.search.stored import StoredDocument
from palmette.types import Document, Passage

Metric = Literal["inner_product", "overlap"]
Facts = Mapping[str, NDArray[np.generic]]

READ_LIMIT: ContextVar[int | None] = ContextVar("read_limit", default=None)
"""Most characters of passages that are read together, where a service answers strangers."""
READ_TOGETHER = 16
"""Number of documents that are read at a time."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array stored for every document: its name, shape per document and dtype.

    ``uint16`` holds fractions in units of 2⁻¹⁵ (fixed point); other numbers stand for themselves. A ``ragged`` array
    has any number of rows per document, and ``shape`` is that of one row.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    ragged: bool = False
    searched: Metric | Literal["lists"] | None = field(default=None, compare=False)
    """How plans compare the array (``"lists"``: by list number); ``None`` if only rows of documents are read."""
    scales: str | None = field(default=None, compare=False)
    """Stored array of factors of its int8 vectors, if they are searched."""
    among: tuple[int, int] | None = field(default=None, compare=False)
    """Smallest and largest valid value of an array of list or node numbers, checked when an index is opened."""
    aligned: str | None = field(default=None, compare=False)
    """Ragged array with the same number of rows per document."""

    @property
    def layout(self) -> dict[str, Any]:
        """Persisted schema of an array: a storage records it, and compares it when an index is opened."""
        return {"name": self.name, "shape": self.shape, "dtype": self.dtype, "ragged": self.ragged}


@dataclass(frozen=True, slots=True)
class Score:
    """Similarity of query vectors to one stored array."""

    array: str
    queries: Floats
    """[Q, d]"""
    metric: Metric = "inner_product"
    """``inner_product`` is Σ q·x; ``overlap`` is Σ min(q, x): one minus total variation, for distributions."""
    fold: int = 1
    """Neighbouring stored columns summed before they are compared: a coarser level of a tree."""
    part_weights: Floats | None = None
    """[F] factors of several vectors per document, of which the best weighted one counts; 0 leaves a vector out."""
    scales: str | None = None
    """Stored array of the factors of int8 vectors: [F] with ``part_weights``, else one per document."""
    prefix: bool = False
    """Whether queries compare with as many leading numbers of a vector as they have: a narrow search reads no more."""

    def __post_init__(self) -> None:
        if self.metric not in get_args(Metric):
            raise InputError(f"unknown metric {self.metric!r}. Metrics: {', '.join(get_args(Metric))}")
        if self.queries.ndim != 2 or self.queries.dtype != np.float32:
            raise InputError(f"query vectors must be [Q, d] float32, got {self.queries.shape} {self.queries.dtype}")
        if (bad := ~np.isfinite(self.queries).all(axis=1)).any():
            raise EncodingError(f"query {int(bad.argmax())} holds NaN or infinity; check the encoder's output")
        if self.metric != "inner_product" and (self.prefix or self.scales is not None):
            raise InputError(f"prefix and scales go with inner products, not with {self.metric!r}")
        if self.prefix and self.fold != 1:
            raise InputError(f"a prefix of columns is compared as it is stored: leave fold={self.fold} out")
        weights = self.part_weights
        if weights is not None and not (weights.dtype == np.float32 and (weights >= 0).all() and weights.any()):
            raise InputError(
                f"part_weights must be float32, at least 0, and one of them above 0; got {weights.tolist()}"
            )


@dataclass(frozen=True, slots=True)
class Lists:
    """Numbered lists of documents; each query is compared with those in its chosen lists only."""

    array: str
    """Stored array with the list numbers of each document, each number once."""
    chosen: Keys
    """[Q, β] lists of each query, each once, padded with −1."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """One search: which query vectors compare with which arrays. Nothing is local, so any engine can execute it."""

    first: Score
    """Finds candidates."""
    lists: Lists | None = None
    """Restricts ``first`` (inner products only)."""
    rescore: Score | None = None
    """Ranks the ``fetch`` best candidates of ``first``."""
    fetch: int | None = None
    """Candidates to rescore; never fewer than ``k``."""
    share: float = 0.0
    """Weight of the first score in the final one."""
    group: int = 1
    """Consecutive rows of ``first`` per query; Candidates then have Q·group rows, for ``rank`` to merge."""
    only: Keys | None = None
    """Ascending keys: score exactly these documents."""
    context: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Further query arrays that ``rank`` reads, one row per query."""

    @property
    def arrays(self) -> list[str]:
        """Stored arrays that the plan compares."""
        scores = [score for score in (self.first, self.rescore) if score is not None]
        names = [name for score in scores for name in (score.array, score.scales)]
        names.append(None if self.lists is None else self.lists.array)
        return [name for name in dict.fromkeys(names) if name is not None]

    def among(self, keys: Keys) -> SearchPlan:
        """Plan that scores exactly these documents (ascending keys), whatever lists they are in."""
        return replace(self, only=keys, lists=None)

    def one_query(self, row: int) -> SearchPlan:
        """Plan of one query."""
        if len(self.first.queries) == self.group:
            return self
        rows = slice(row * self.group, (row + 1) * self.group)
        return replace(
            self,
            first=replace(self.first, queries=self.first.queries[rows]),
            rescore=self.rescore and replace(self.rescore, queries=self.rescore.queries[row : row + 1]),
            lists=self.lists and replace(self.lists, chosen=self.lists.chosen[rows]),
            context={name: array[row : row + 1] for name, array in self.context.items()},
        )


@dataclass(frozen=True)
class Candidates:
    """Documents per query, best first; equal scores are ordered by key, so that a search is repeatable."""

    keys: Keys
    """[Q, n], padded with −1."""
    scores: Floats
    """[Q, n], −∞ where padded."""
    visited: float = 0.0
    """Documents compared with each query, on average."""
    evidence: Facts = field(default_factory=dict)
    """Facts about each hit for its explanation (the layer that found it, …): arrays [Q, n] by name."""
    refined: float = 0.0
    """Documents compared number by number, per query; bounds rule the others out."""
    read: float = 0.0
    """Bytes read for that, per query."""
    approximate: bool = False
    """Whether the engine may have missed some of the best."""

    def one_query(self, row: int) -> Candidates:
        """Candidates of one query, without padding."""
        real = self.keys[row] >= 0
        evidence = {name: array[row][real][None] for name, array in self.evidence.items()}
        return replace(self, keys=self.keys[row][real][None], scores=self.scores[row][real][None], evidence=evidence)


def stack_rows(rows: Sequence[tuple[Keys, Floats, Facts]], like: Candidates) -> Candidates:
    """Stack keys, scores and evidence of one or more queries, with the effort of ``like``."""
    width, evidence = 0, dict[str, NDArray[Any]]()
    for keys_of_query, _, _ in rows:
        width = max(width, len(keys_of_query))
    keys = np.full((len(rows), width), -1, np.int64)
    scores = np.full((len(rows), width), -np.inf, np.float32)
    for row, (keys_of_query, scored, facts) in enumerate(rows):
        keys[row, : len(keys_of_query)], scores[row, : len(keys_of_query)] = keys_of_query, scored
        for name, array in facts.items():
            if name not in evidence:
                evidence[name] = np.zeros((len(rows), width, *array.shape[1:]), array.dtype)
            evidence[name][row, : len(keys_of_query)] = array
    return replace(like, keys=keys, scores=scores, evidence=evidence)


@dataclass(frozen=True)
class WordMatches:
    """Scores of some documents by the words of a query, and each pair of neighbouring words (``"a b"``)."""

    words: Sequence[str]
    scores: Floats
    """[n] 0 … 1."""
    keys: Keys
    """[n] the documents."""
    phrases: bool = False
    """Whether the query has quoted phrases; documents without them score 0."""
    holding: Sequence[int] = ()
    """Document frequency of each word or pair among ``documents``; empty if the engine does not count."""
    documents: int = 0
    rarity: float = math.inf
    """Weight of the query's words, in words that no document contains."""
    parts: Floats | None = None
    """[T] addition of each word or pair, if the score of one document is explained."""


class View(Protocol):
    """One consistent state of the documents that pass a filter; no write shows while it is open.

    Keys are of passages: a passage has one row in each array, and a document one or more passages, whose keys follow
    each other. What is said of documents below (candidates, words, rows) holds for passages, unless whole ones are
    named.
    """

    def __len__(self) -> int:
        """Number of passages of the documents that pass the filter."""

    def expect(self, plan: SearchPlan | None, k: int, texts: Sequence[str], arrays: Sequence[str]) -> None:
        """Prefetch hint: a remote storage can fetch in one request what a search is about to read.

        The search will read the ``k`` best of a plan and by the words of each text, and these arrays of all of them.
        """
        return

    def release(self) -> None:
        """Stop reading documents, while arrays stay readable: a view that outlasts writes then costs the storage less.

        :meth:`rows` and :meth:`ragged` may be called after it, and nothing else.
        """
        return

    def candidates(self, plan: SearchPlan, k: int) -> Candidates:
        """Find the ``k`` best documents of every row of the plan (all of them when fewer exist)."""

    def words(self, text: str, k: int, only: Keys | None = None) -> WordMatches:
        """Find the ``k`` best documents by BM25 shares (:mod:`palmette.lexical.bm25`), or score ``only`` these.

        Document frequencies count all living documents, behind a tenant's wall
        (:class:`palmette.store.filters.Within`) those of the tenant; other filters change no score. Equal scores are
        ordered by key. Documents without a quoted phrase of the text are not found, and score 0 among ``only``.
        """

    def word_parts(self, text: str, key: int) -> Floats:
        """Return each word's and pair's addition [T] to the score of a document that contains the quoted phrases."""

    def rows(self, array: str, keys: Sequence[int]) -> NDArray[np.generic]:
        """Rows of a stored array, in the order of ``keys``: [n, *shape]."""

    def ragged(self, array: str, keys: Sequence[int] | Keys) -> Ragged:
        """Rows of a ragged array, in the order of ``keys``: of n documents."""

    def note(self, name: str) -> str | None:
        """Return a note that a writer stored with the documents, ``None`` without one and behind a tenant's wall."""
        return None

    def list_sizes(self, array: str) -> Rows:
        """Number of documents in each list of a stored array of list numbers: [L]."""

    def stored(self, keys: Sequence[int]) -> list[StoredDocument]:
        """Whole documents that passages belong to, in the order of ``keys``."""

    def parts(self, keys: Sequence[int]) -> list[tuple[Document, Passage]]:
        """Passages as documents, each with its place; in the order of ``keys``."""
        owners = self.document_keys(keys).tolist()
        found: dict[int, tuple[Document, Passage]] = {}
        of_document: dict[int, list[int]] = {}
        for key, owner in zip(np.asarray(keys, np.int64).reshape(-1).tolist(), owners, strict=True):
            of_document.setdefault(owner, []).append(key)
        most, size = READ_LIMIT.get(), 0
        for owner, stored, others in self.scan(list(of_document)):
            size += others
            for key in dict.fromkeys(of_document[owner]):
                found[key] = part_of(stored, key - owner)
                size += len(found[key][0].content)
            if most is not None and size > most:
                raise InputError(f"these passages have more than {most:,} characters together: ask for fewer")
        return [found[key] for key in np.asarray(keys, np.int64).reshape(-1).tolist()]

    def scan(self, keys: Sequence[int]) -> Iterator[tuple[int, StoredDocument, int]]:
        """Read documents by the keys of their first passages, each when the one before it is done with.

        Yields key, document and the number of characters beside its text, where they are known.
        """
        return ((key, stored, 0) for key, stored in zip(keys, self.stored(keys), strict=True))

    def documents(self, keys: Sequence[int]) -> list[Document]:
        """Passages as documents, in the order of ``keys``: each has the id and the metadata of its document."""
        return [document for document, _ in self.parts(keys)]

    def document_keys(self, keys: Sequence[int] | Keys) -> Keys:
        """Return the key of the first passage of each passage's document, which stands for the document."""
        return np.asarray(keys, np.int64)

    def ids(self, keys: Sequence[int]) -> list[str]:
        """Ids of passages' documents in the order of ``keys``; storage need not read the documents."""
        return [document.key for document in self.documents(keys)]

    def key_of(self, id: str) -> int | None:
        """Key of the first passage of a document's current version; never reused."""
        return next(iter(self.keys_of([id]).get(id, ())), None)

    def keys_of(self, ids: Sequence[str]) -> dict[str, Sequence[int]]:
        """Keys of all passages of some documents, in order; ids that are not there are left out."""

    def count_documents(self) -> int:
        """Number of documents that have passages here."""
        return len(np.unique(self.document_keys(self.keys())))

    def ids_of_source(self, source: str) -> dict[str, str]:
        """Ids of the documents that a source keeps up to date, and their digests."""
        return {}

    def keys(self) -> Keys:
        """All keys, ascending."""

    def wall_keys(self) -> Keys | None:
        """Return the ascending keys of all documents of the view's tenant; ``None`` without a wall."""
        return None


def find_array(arrays: Mapping[str, ArraySpec], name: str, *, ragged: bool = False) -> ArraySpec:
    """Find a stored array by name; raises unless it has one row per document, or any number where ``ragged``."""
    if name not in arrays:
        raise InputError(f"this index stores no array {name!r} but {', '.join(arrays)}")
    if arrays[name].ragged != ragged:
        kind, method = ("one row", "rows") if ragged else ("any number of rows", "ragged")
        raise InputError(f"array {name!r} has {kind} per document: read it with view.{method}")
    return arrays[name]


def read_array(view: View, spec: ArraySpec, keys: Sequence[int]) -> Any:
    """Read a stored array of either kind, in the order of ``keys``."""
    return view.ragged(spec.name, keys) if spec.ragged else view.rows(spec.name, keys)


def rescore_rows(view: View, plan: SearchPlan, candidates: Candidates, k: int) -> Candidates:
    """Rank candidates by ``plan.rescore`` on rows that the view hands out, for storage that cannot do it itself.

    Documents of several vectors ([F, d]) score by their best weighted one; evidence ``part`` says which.
    """
    assert plan.rescore is not None
    scores, parts = score_rows(view, plan.rescore, candidates.keys)
    if plan.share:
        scores = np.where(candidates.keys >= 0, plan.share * candidates.scores + (1 - plan.share) * scores, -np.inf)
    evidence = candidates.evidence if parts is None else {"part": parts}
    return ranked_by(replace(candidates, evidence=evidence), scores.astype(np.float32), k)


def score_rows(view: View, score: Score, keys: Keys) -> tuple[NDArray[np.float64], Rows | None]:
    """Scores of documents [Q, n] for each query (−∞ for keys of −1), and the best of several vectors [Q, n]."""
    real = keys >= 0
    distinct, where = np.unique(keys[real], return_inverse=True)
    rows = view.rows(score.array, distinct.tolist())[..., : score.queries.shape[1]].astype(np.float64)
    vectors, factors = rows[where], np.ones(1)  # [n, d] or [n, F, d]
    if score.scales is not None:
        factors = view.rows(score.scales, distinct.tolist()).astype(np.float64)[where]  # [n] or [n, F]
    queries = np.repeat(score.queries.astype(np.float64), real.sum(axis=1), axis=0)
    scores, parts = np.full(keys.shape, -np.inf), None
    if score.part_weights is None:
        scores[real] = np.einsum("nd,nd->n", queries, vectors) * factors
    else:
        table = np.einsum("nd,nfd->nf", queries, vectors) * score.part_weights.astype(np.float64) * factors
        table[(table == 0) | (score.part_weights == 0)] = -np.inf  # vectors of zeros are missing parts
        scores[real] = np.where(np.isinf(table).all(axis=1), 0.0, table.max(axis=1))
        parts = np.zeros(keys.shape, np.int64)
        parts[real] = table.argmax(axis=1)
    return scores, parts


def ranked_by(candidates: Candidates, scores: Floats, k: int) -> Candidates:
    """Rank candidates by other scores [Q, n]."""
    order = np.lexsort((candidates.keys, -scores), axis=1)[:, :k]
    keys, ranked = np.take_along_axis(candidates.keys, order, 1), np.take_along_axis(scores, order, 1)
    evidence = {name: np.take_along_axis(array, order, 1) for name, array in candidates.evidence.items()}
    return replace(candidates, keys=keys, scores=ranked, evidence=evidence)


def part_of(stored: StoredDocument, number: int) -> tuple[Document, Passage]:
    """Return a passage as a document, and its place."""
    if not 0 <= number < len(stored.passages):
        raise CorruptIndexError(
            f"document {shown(stored.document.key)} is damaged: it has no place for its passage {number}; {REPAIR}"
        )
    return stored.part(number), stored.passages[number]


def by_documents(view: View, keys: Keys) -> Iterator[list[int]]:
    """Yield rising keys of passages in lists of few documents each: a document may have 8 MB, and is read whole."""
    owners = view.document_keys(keys)
    first = np.flatnonzero(owners[1:] != owners[:-1]) + 1
    for part in np.split(keys, first[READ_TOGETHER - 1 :: READ_TOGETHER]):
        if len(part):
            yield part.tolist()
