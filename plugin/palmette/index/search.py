"""One search of an index, and the explanations of its hits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.errors import ConfigError, InputError, NotFoundError
from palmette.index.folder import check_count
from palmette.lexical.weight import Lexical, LexicalWeight, check_lexical, explain_words
from palmette.model import Model, Queries
from palmette.search.combine import add_words
from palmette.search.plan import Candidates, View, WordMatches
from palmette.store.backend import Backend
from palmette.store.filters import Filter, parse_filter
from palmette.types import Explanation, Hit

FilterLike = Mapping[str, Any] | Filter | None
Embeddings = NDArray[np.floating[Any]]
Texts = str | tuple[str, ...]
"""A query; or several texts that are one query together, the mean of what a model makes of each."""
Query = Texts | Embeddings
QueryList = Sequence[Texts] | Embeddings


@dataclass(frozen=True)
class Ranking:
    """Ids and scores per query, best first, and the share of the documents that a query was compared with."""

    ids: list[list[str]]
    scores: list[list[float]]
    visited: float


@dataclass(frozen=True)
class QueryBatch:
    """Encoded queries with validated options."""

    model: Model
    arrays: Queries
    options: Any
    weight: LexicalWeight | None = None
    """Weight of words; ``None`` where they do not count."""
    texts: Sequence[str] = ()
    """One per query, where each has one."""


def read_queries(model: Model, given: QueryList, options: Mapping[str, Any], lexical: Lexical) -> QueryBatch:
    """Check queries and options, then encode."""
    lexical, chosen = check_lexical(lexical), model.search_options(options)
    if not isinstance(given, Sequence | np.ndarray):
        raise InputError(
            f"a query is a str, a list of str or an array of embeddings, got {type(given).__name__}"
        )
    single = not isinstance(given, np.ndarray) and not any(isinstance(one, tuple) for one in given)
    if not single and lexical not in ("auto", 0):
        raise ConfigError(
            f"lexical={lexical!r} needs the words of a query: search with its text, or lexical=0"
        )
    if isinstance(given, np.ndarray):
        vectors = _check_embeddings(given, model.encoder.dimension)
        model.require_embeddings()
        return QueryBatch(model, model.encode_queries(vectors, chosen), chosen)
    if single:
        texts = _check_texts(given)
        weight = model.lexical_weight(chosen, lexical)
        return QueryBatch(model, model.encode_queries(texts, chosen), chosen, weight, texts)
    groups = [one if isinstance(one, tuple) else (one,) for one in given]
    if () in groups:
        raise InputError("a query of several texts has none: give it at least one")
    every = model.encode_queries(_check_texts([text for group in groups for text in group]), chosen)
    bounds = list(pairwise(np.cumsum([0, *map(len, groups)]).tolist()))
    means = {
        name: np.stack([array[start:end].mean(axis=0) for start, end in bounds]).astype(array.dtype)
        for name, array in every.items()
    }
    return QueryBatch(model, means, chosen)


def _check_texts(given: Sequence[Any]) -> Sequence[str]:
    for text in given:
        if not isinstance(text, str):
            raise InputError(f"a query must be a str, got {type(text).__name__}: {text!r:.80}")
        if not text.strip():
            raise InputError("the query is empty: give it at least one word")
    return given


def _check_embeddings(given: Embeddings, width: int) -> NDArray[np.float32]:
    if given.dtype.kind not in "fiu":
        raise InputError(
            f"query embeddings must be numbers, got an array of {given.dtype}; give texts as a list of str"
        )
    vectors = np.atleast_2d(np.asarray(given, np.float32))
    if vectors.ndim != 2 or vectors.shape[1] != width or not len(vectors) or not np.isfinite(vectors).all():
        raise InputError(f"query embeddings must be finite and [Q, {width}], got {np.shape(given)}")
    return vectors


@dataclass(frozen=True)
class SearchResult:
    """Candidates of a search, in the view that it searched."""

    batch: QueryBatch
    backend: Backend
    view: View
    found: Candidates
    words: Sequence[WordMatches]
    """Per query, where words count."""

    def to_hits(self, threshold: float | None, explained: bool) -> list[list[Hit]]:
        """Read the documents, each once, and wrap them."""
        keep = self.found.keys >= 0  # [Q, k]
        if threshold is not None:
            keep &= self.found.scores >= threshold
        wanted = np.unique(self.found.keys[keep]).tolist()
        documents = dict(zip(wanted, self.view.documents(wanted), strict=True))
        results: list[list[Hit]] = []
        for row, kept in enumerate(keep):
            query, hits = {name: array[row : row + 1] for name, array in self.batch.arrays.items()}, []
            for column in np.flatnonzero(kept).tolist():
                key, score = int(self.found.keys[row, column]), float(self.found.scores[row, column])
                evidence = {name: array[row, column] for name, array in self.found.evidence.items()}
                words = None
                if self.words:
                    matches = self.words[row]
                    words = WordMatches(matches.words, matches.parts[column : column + 1])
                text = self.batch.texts[row] if self.batch.texts else None
                context = HitContext(self.batch, query, key, documents[key].key, evidence, words, text)
                explain = partial(context.explain_later, self.backend)
                if explained:
                    explanation = context.explain(self.view, self.backend)
                    explain = partial(_identity, explanation)
                hits.append(Hit(documents[key], score, explain))
            results.append(hits)
        return results

    def ranking(self) -> Ranking:
        """Ids and scores only."""
        wanted = np.unique(self.found.keys[self.found.keys >= 0]).tolist()
        named = dict(zip(wanted, self.view.ids(wanted), strict=True))
        ids = [[named[key] for key in row if key >= 0] for row in self.found.keys.tolist()]
        scores = [row[: len(kept)] for row, kept in zip(self.found.scores.tolist(), ids, strict=True)]
        return Ranking(ids, scores, self.found.visited / max(1, len(self.view)))


def _identity(explanation: Explanation) -> Explanation:
    return explanation


@contextmanager
def search(
    model: Model,
    backend: Backend,
    queries: QueryList,
    k: int,
    filter: FilterLike,
    options: Mapping[str, Any],
    lexical: Lexical,
) -> Iterator[SearchResult]:
    """Check, encode, open a view and search it; the view stays open inside the ``with`` block."""
    k = check_count("k", k)
    batch = read_queries(model, queries, options, lexical)
    with backend.read(parse_filter(filter)) as view:
        k = min(k, max(1, len(view)))
        plan = model.plan(batch.arrays, k, batch.options, view)

        def run(plan: Any, k: int) -> Candidates:
            return model.execute(view, plan, k, batch.options)

        if batch.weight is None:
            yield SearchResult(batch, backend, view, run(plan, k), ())
        else:
            found, words = add_words(run, view, plan, batch.texts, batch.weight, k)
            yield SearchResult(batch, backend, view, found, words)


def explain(
    model: Model, backend: Backend, query: Query, id: str, options: Mapping[str, Any], lexical: Lexical
) -> Explanation:
    """Explain a document's score for one query."""
    given = [query] if isinstance(query, str | tuple) else np.atleast_2d(query)[:1]
    batch = read_queries(model, given, options, lexical)
    with backend.read() as view:
        key = view.key_of(id)
        if key is None:
            raise NotFoundError(f"there is no document {id!r} in this index")
        words = None
        if batch.weight is not None:
            words = view.words(batch.texts[0], 0, only=np.array([key]))
        return HitContext(
            batch, batch.arrays, key, id, {}, words, batch.texts[0] if batch.texts else None
        ).explain(view, backend)


@dataclass(frozen=True)
class HitContext:
    """Facts for the explanation of a hit, kept until it is asked for."""

    batch: QueryBatch
    query: Queries
    key: int
    id: str
    evidence: Mapping[str, Any]
    words: WordMatches | None
    text: str | None

    def explain(self, view: View, backend: Backend) -> Explanation:
        """Explain the score from the document's arrays and words."""
        model, weight = self.batch.model, self.batch.weight
        stored = set(backend.arrays)  # an index of an earlier version may lack some
        arrays = {spec.name: view.rows(spec.name, [self.key]) for spec in model.arrays() if spec in stored}
        evidence: dict[str, Any] = {**self.evidence, "document": view.documents([self.key])[0]}
        if self.text is not None:
            shared = view.words(self.text, 0, only=np.array([self.key]))
            evidence["words"] = dict(zip(shared.words, (shared.parts[0] > 0).tolist(), strict=True))
        own = model.explain(self.query, arrays, self.batch.options, evidence)
        if self.words is None or weight is None:
            return own
        return explain_words(own, self.words.words, self.words.parts[0].tolist(), weight)

    def explain_later(self, backend: Backend) -> Explanation:
        """Explain a hit of an earlier search, if its document is still the one that was found."""
        with backend.read() as view:
            if view.key_of(self.id) != self.key:
                raise NotFoundError(
                    f"document {self.id!r} was changed or deleted since this search: search again"
                )
            return self.explain(view, backend)
