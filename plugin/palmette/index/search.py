"""One search of an index, and the explanations of its hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.errors import ConfigError, InputError, NotFoundError
from palmette.lexical.weight import Lexical, LexicalWeight, explain_words
from palmette.model import Model, Queries
from palmette.search.combine import add_words
from palmette.search.plan import Candidates, View, WordMatches
from palmette.store.backend import Backend
from palmette.store.filters import Filter
from palmette.types import Explanation, Hit

FilterLike = Mapping[str, Any] | Filter | None
Embeddings = NDArray[np.floating[Any]]
Texts = str | tuple[str, ...]
"""A query; or several texts that are one query together, the mean of what a model makes of each."""
Query = Texts | Embeddings
QueryList = Sequence[Texts] | Embeddings


def check_count(name: str, value: object) -> int:
    """Check a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


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

    def search(self, view: View, k: int) -> SearchResult:
        """Find the ``k`` best documents of a view."""
        model, k = self.model, min(k, max(1, len(view)))
        plan = model.plan(self.arrays, k, self.options, view)
        if self.weight is None:
            return SearchResult(self, model.execute(view, plan, k, self.options), ())
        execute = partial(model.execute, view, options=self.options)
        return SearchResult(self, *add_words(execute, view, plan, self.texts, self.weight, k))


def read_queries(model: Model, given: QueryList, options: Mapping[str, Any], lexical: Lexical) -> QueryBatch:
    """Check queries and options, then encode."""
    chosen = model.search_options(options)
    weight = model.lexical_weight(chosen, lexical)
    if not isinstance(given, Sequence | np.ndarray):
        raise InputError(
            f"a query is a str, a list of str or an array of embeddings, got {type(given).__name__}"
        )
    single = not isinstance(given, np.ndarray) and tuple not in map(type, given)
    if not single and lexical not in ("auto", 0):
        raise ConfigError(
            f"lexical={lexical!r} needs the words of a query: search with its text, or lexical=0"
        )
    if isinstance(given, np.ndarray):
        vectors = model.encoder.map(_check_embeddings(given, model.encoder.dimension), "query")
        model.require_embeddings()
        return QueryBatch(model, model.encode_queries(vectors, chosen), chosen)
    texts: list[str] = []
    for one in given:
        if isinstance(one, tuple) and not one:
            raise InputError("a query of several texts has none: give it at least one")
        texts += one if isinstance(one, tuple) else (one,)
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"a query must be a str, got {type(text).__name__}: {text!r:.80}")
        if not text.strip():
            raise InputError("the query is empty: give it at least one word")
    arrays = model.encode_queries(texts, chosen)
    if single:
        return QueryBatch(model, arrays, chosen, weight, texts)
    sizes = [len(one) if isinstance(one, tuple) else 1 for one in given]
    bounds = list(pairwise(np.cumsum([0, *sizes]).tolist()))
    means = {
        name: np.stack([array[start:end].mean(axis=0) for start, end in bounds]).astype(array.dtype)
        for name, array in arrays.items()
    }
    return QueryBatch(model, means, chosen)


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
    """Candidates of a search."""

    batch: QueryBatch
    found: Candidates
    words: Sequence[WordMatches]
    """Per query, where words count."""

    def to_hits(
        self, view: View, backend: Backend, threshold: float | None, explained: bool
    ) -> list[list[Hit]]:
        """Read the documents, each once, and wrap them."""
        found = self.found
        keep = found.keys >= 0  # [Q, k]
        if threshold is not None:
            keep &= found.scores >= threshold
        wanted = np.unique(found.keys[keep]).tolist()
        documents = dict(zip(wanted, view.documents(wanted), strict=True))
        results: list[list[Hit]] = []
        for row, kept in enumerate(keep):
            hits = []
            for column in np.flatnonzero(kept).tolist():
                document = documents[int(found.keys[row, column])]
                explain = partial(self.explain_later, backend, row, column, document.id)
                if explained:
                    explanation = self.explain(view, backend, row, column)
                    explain = partial(lambda made: made, explanation)
                hits.append(Hit(document, float(found.scores[row, column]), explain))
            results.append(hits)
        return results

    def ranking(self, view: View) -> Ranking:
        """Ids and scores only."""
        found = self.found
        wanted = np.unique(found.keys[found.keys >= 0]).tolist()
        named = dict(zip(wanted, view.ids(wanted), strict=True))
        ids = [[named[key] for key in row if key >= 0] for row in found.keys.tolist()]
        scores = [row[: len(kept)] for row, kept in zip(found.scores.tolist(), ids, strict=True)]
        return Ranking(ids, scores, found.visited / max(1, len(view)))

    def explain(self, view: View, backend: Backend, row: int, column: int) -> Explanation:
        """Explain a hit's score from the document's arrays and words."""
        batch, key = self.batch, int(self.found.keys[row, column])
        query = {name: array[row : row + 1] for name, array in batch.arrays.items()}
        stored = backend.arrays  # an index of an earlier version may lack some
        arrays = {spec.name: view.rows(spec.name, [key]) for spec in batch.model.arrays() if spec in stored}
        evidence: dict[str, Any] = {name: array[row, column] for name, array in self.found.evidence.items()}
        evidence["document"] = view.documents([key])[0]
        if batch.texts:
            shared = view.words(batch.texts[row], 0, only=np.array([key]))
            evidence["words"] = dict(zip(shared.words, (shared.parts[0] > 0).tolist(), strict=True))
        own = batch.model.explain(query, arrays, batch.options, evidence)
        if batch.weight is None:
            return own
        words = self.words[row]
        return explain_words(own, words.words, words.parts[column].tolist(), batch.weight)

    def explain_later(self, backend: Backend, row: int, column: int, id: str) -> Explanation:
        """Explain a hit of an earlier search, if its document is still the one that was found."""
        with backend.read() as view:
            if view.key_of(id) != self.found.keys[row, column]:
                raise NotFoundError(f"document {id!r} was changed or deleted since this search: search again")
            return self.explain(view, backend, row, column)


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
        keys = np.array([key])
        words = () if batch.weight is None else [view.words(batch.texts[0], 0, only=keys)]
        found = Candidates(keys[None], np.zeros((1, 1), np.float32))
        return SearchResult(batch, found, words).explain(view, backend, 0, 0)
