"""One search of an index, and the explanations of what it found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from palmette.errors import NotFoundError
from palmette.index.checks import Embeddings, check_count, check_embeddings, check_queries
from palmette.index.results import Ranking
from palmette.model import Model, Queries
from palmette.search.probe import Found
from palmette.store.backend import Backend, View
from palmette.store.filters import Filter, parse_filter
from palmette.types import Explanation, Hit

__all__ = ["FilterLike", "Searched", "explain", "searched"]

FilterLike = Mapping[str, Any] | Filter | None


@dataclass(frozen=True)
class Searched:
    """What a search found, in the view it was made in."""

    model: Model
    backend: Backend
    view: View
    found: Found
    queries: Queries
    options: Any

    def hits(self, threshold: float | None, explained: bool) -> list[list[Hit]]:
        """Look the documents up, each once, and wrap them."""
        keep = self.found.keys >= 0  # [Q, k]
        if threshold is not None:
            keep &= self.found.scores >= threshold
        wanted = np.unique(self.found.keys[keep]).tolist()
        documents = dict(zip(wanted, self.view.documents(wanted), strict=True))

        def hit(row: int, column: int, query: Queries) -> Hit:
            key, score = int(self.found.keys[row, column]), float(self.found.scores[row, column])
            why = _Why(
                self.model,
                key,
                documents[key].key,
                query,
                self.options,
                {name: array[row, column] for name, array in self.found.evidence.items()},
            )
            if explained:
                explanation = why.explain(self.view)
                return Hit(documents[key], score, lambda: explanation)
            return Hit(documents[key], score, partial(why.explain_later, self.backend))

        results = []
        for row, kept in enumerate(keep):
            one = {name: array[row : row + 1] for name, array in self.queries.items()}
            results.append([hit(row, column, one) for column in np.flatnonzero(kept).tolist()])
        return results

    def ranking(self) -> Ranking:
        """Ids and scores only."""
        wanted = np.unique(self.found.keys[self.found.keys >= 0]).tolist()
        named = dict(zip(wanted, self.view.ids(wanted), strict=True))
        ids = [[named[key] for key in row if key >= 0] for row in self.found.keys.tolist()]
        scores = [row[: len(kept)] for row, kept in zip(self.found.scores.tolist(), ids, strict=True)]
        return Ranking(ids, scores, self.found.compared / max(1, len(self.view)))


def _encode(model: Model, asked: Sequence[str] | Embeddings, options: Any) -> Queries:
    if isinstance(asked, np.ndarray):
        return model.encode_embeddings(check_embeddings(asked, model.encoder.dimension))
    return model.encode_queries(check_queries(asked), options)


@contextmanager
def searched(
    model: Model,
    backend: Backend,
    asked: Sequence[str] | Embeddings,
    k: int,
    filter: FilterLike,
    options: Mapping[str, Any],
) -> Iterator[Searched]:
    """Check, encode, open a view, search it; the view stays open inside."""
    k = check_count("k", k)
    chosen = model.options(options)
    queries = _encode(model, asked, chosen)
    with backend.read(parse_filter(filter)) as view:
        found = model.search(view, queries, min(k, max(1, len(view))), chosen)
        yield Searched(model, backend, view, found, queries, chosen)


def explain(
    model: Model, backend: Backend, asked: str | Embeddings, id: str, options: Mapping[str, Any]
) -> Explanation:
    """Why a document scores what it does for one query."""
    chosen = model.options(options)
    queries = _encode(model, [asked] if isinstance(asked, str) else np.atleast_2d(asked)[:1], chosen)
    with backend.read() as view:
        key = view.key_of(id)
        if key is None:
            raise NotFoundError(f"there is no document {id!r} in this index")
        return _Why(model, key, id, queries, chosen, {}).explain(view)


@dataclass(frozen=True)
class _Why:
    """Everything an explanation needs, kept with a hit until it is asked for."""

    model: Model
    key: int
    id: str
    query: Queries
    options: Any
    evidence: Mapping[str, Any]

    def explain(self, view: View) -> Explanation:
        arrays = {spec.name: view.array(spec.name, [self.key]) for spec in self.model.arrays()}
        return self.model.explain(self.query, arrays, self.options, self.evidence)

    def explain_later(self, backend: Backend) -> Explanation:
        """Of a hit of an earlier search, if its document is still the one that was found."""
        with backend.read() as view:
            if view.key_of(self.id) != self.key:
                raise NotFoundError(
                    f"document {self.id!r} was changed or deleted since this search: search again"
                )
            return self.explain(view)
