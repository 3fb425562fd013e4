"""One search of an index, and the explanations of what it found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from palmette.errors import ConfigError, InputError, NotFoundError
from palmette.index.checks import Embeddings, Texts, check_count, check_embeddings, check_queries
from palmette.index.hybrid import Hybrid, hybrid_search
from palmette.index.results import Ranking
from palmette.lexical.explanation import mixed
from palmette.lexical.mix import Lexical, Mix, check_lexical
from palmette.model import Model, Queries
from palmette.search.probe import Found, Shared
from palmette.store.backend import Backend, WordView
from palmette.store.filters import Filter, parse_filter
from palmette.types import Explanation, Hit

__all__ = ["Asked", "FilterLike", "Query", "Searched", "explain", "searched"]

FilterLike = Mapping[str, Any] | Filter | None
Query = Texts | Embeddings
Asked = Sequence[Texts] | Embeddings
"""Several queries."""


@dataclass(frozen=True)
class _Question:
    """What is asked, ready to be searched for: its ``texts`` where there are any, a ``mix`` where words count."""

    model: Model
    queries: Queries
    options: Any
    mix: Mix | None = None
    texts: Sequence[str] = ()

    @classmethod
    def of(cls, model: Model, asked: Asked, options: Mapping[str, Any], lexical: Lexical) -> _Question:
        """Check everything, then encode."""
        weight, chosen = check_lexical(lexical), model.search_options(options)
        if isinstance(asked, np.ndarray):
            _check_wordless(weight)
            vectors = check_embeddings(asked, model.encoder.dimension)
            model.require_embeddings()
            return cls(model, model.encode_queries(vectors, chosen), chosen)
        if _several(asked):
            _check_wordless(weight)
            return cls(model, _means(model, asked, chosen), chosen)
        texts, mix = check_queries(asked), model.lexical_weight(chosen, weight)
        return cls(model, model.encode_queries(texts, chosen), chosen, mix, texts)

    def search(self, view: WordView, k: int) -> Hybrid:
        """The ``k`` best documents of a view."""
        if self.mix is None:
            return Hybrid(self.model.search(view, self.queries, k, self.options), ())
        return hybrid_search(self.model, view, self.texts, self.queries, k, self.options, self.mix)

    def of_row(self, row: int) -> Queries:
        """The arrays of one query."""
        return {name: array[row : row + 1] for name, array in self.queries.items()}


def _check_wordless(weight: Lexical) -> None:
    """Raise where words are asked for, and there are none or those of several texts."""
    if weight not in ("auto", 0):
        raise ConfigError(
            f"lexical={weight!r} needs the words of a query: search with its text, or lexical=0"
        )


def _several(asked: object) -> bool:
    """Whether some of the queries are several texts each."""
    return isinstance(asked, Sequence) and any(isinstance(one, tuple) for one in asked)


def _means(model: Model, asked: Sequence[Texts], options: Any) -> Queries:
    """What a model makes of several texts that are one query: the mean of what it makes of each."""
    groups = [one if isinstance(one, tuple) else (one,) for one in asked]
    if () in groups:
        raise InputError("a query of several texts has none: give it at least one")
    made = model.encode_queries(check_queries([text for group in groups for text in group]), options)
    starts = np.cumsum([0, *map(len, groups)])
    bounds = list(pairwise(starts.tolist()))
    return {
        name: np.stack([array[start:end].mean(axis=0) for start, end in bounds]).astype(array.dtype)
        for name, array in made.items()
    }


@dataclass(frozen=True)
class Searched:
    """What a search found, in the view it was made in."""

    question: _Question
    backend: Backend
    view: WordView
    result: Hybrid

    @property
    def found(self) -> Found:
        """Keys and scores."""
        return self.result.found

    def hits(self, threshold: float | None, explained: bool) -> list[list[Hit]]:
        """Look the documents up, each once, and wrap them."""
        keep = self.found.keys >= 0  # [Q, k]
        if threshold is not None:
            keep &= self.found.scores >= threshold
        wanted = np.unique(self.found.keys[keep]).tolist()
        documents = dict(zip(wanted, self.view.documents(wanted), strict=True))

        def hit(row: int, column: int, query: Queries) -> Hit:
            key, score = int(self.found.keys[row, column]), float(self.found.scores[row, column])
            evidence = {name: array[row, column] for name, array in self.found.evidence.items()}
            words = None
            if self.question.mix is not None:
                whole = self.result.words[row]
                words = Shared(whole.words, whole.parts[column : column + 1])
            text = self.question.texts[row] if self.question.texts else None
            why = _Why(self.question, query, key, documents[key].key, evidence, words, text)
            if explained:
                explanation = why.explain(self.view, self.backend)
                return Hit(documents[key], score, lambda: explanation)
            return Hit(documents[key], score, partial(why.explain_later, self.backend))

        results = []
        for row, kept in enumerate(keep):
            one = self.question.of_row(row)
            results.append([hit(row, column, one) for column in np.flatnonzero(kept).tolist()])
        return results

    def ranking(self) -> Ranking:
        """Ids and scores only."""
        wanted = np.unique(self.found.keys[self.found.keys >= 0]).tolist()
        named = dict(zip(wanted, self.view.ids(wanted), strict=True))
        ids = [[named[key] for key in row if key >= 0] for row in self.found.keys.tolist()]
        scores = [row[: len(kept)] for row, kept in zip(self.found.scores.tolist(), ids, strict=True)]
        return Ranking(ids, scores, self.found.compared / max(1, len(self.view)))


@contextmanager
def searched(
    model: Model,
    backend: Backend,
    asked: Asked,
    k: int,
    filter: FilterLike,
    options: Mapping[str, Any],
    lexical: Lexical,
) -> Iterator[Searched]:
    """Check, encode, open a view, search it; the view stays open inside."""
    k = check_count("k", k)
    question = _Question.of(model, asked, options, lexical)
    with backend.read(parse_filter(filter)) as view:
        yield Searched(question, backend, view, question.search(view, min(k, max(1, len(view)))))


def explain(
    model: Model,
    backend: Backend,
    asked: Query,
    id: str,
    options: Mapping[str, Any],
    lexical: Lexical,
) -> Explanation:
    """Why a document scores what it does for one query."""
    given = [asked] if isinstance(asked, str | tuple) else np.atleast_2d(asked)[:1]
    question = _Question.of(model, given, options, lexical)
    with backend.read() as view:
        key = view.key_of(id)
        if key is None:
            raise NotFoundError(f"there is no document {id!r} in this index")
        words = None if question.mix is None else view.shared(question.texts[0], [key])
        text = question.texts[0] if question.texts else None
        return _Why(question, question.queries, key, id, {}, words, text).explain(view, backend)


@dataclass(frozen=True)
class _Why:
    """Everything an explanation needs, kept with a hit until it is asked for."""

    question: _Question
    query: Queries
    key: int
    id: str
    evidence: Mapping[str, Any]
    words: Shared | None
    text: str | None

    def explain(self, view: WordView, backend: Backend) -> Explanation:
        model, options = self.question.model, self.question.options
        stored = set(backend.arrays)  # an index made by an earlier version may lack some
        arrays = {spec.name: view.array(spec.name, [self.key]) for spec in model.arrays() if spec in stored}
        evidence: dict[str, Any] = {**self.evidence, "document": view.documents([self.key])[0]}
        if self.text is not None:
            shared = view.shared(self.text, [self.key])
            evidence["words"] = dict(zip(shared.words, (shared.parts[0] > 0).tolist(), strict=True))
        own = model.explain(self.query, arrays, options, evidence)
        if self.words is None or self.question.mix is None:
            return own
        return mixed(own, self.words.words, self.words.parts[0].tolist(), self.question.mix)

    def explain_later(self, backend: Backend) -> Explanation:
        """Of a hit of an earlier search, if its document is still the one that was found."""
        with backend.read() as view:
            if view.key_of(self.id) != self.key:
                raise NotFoundError(
                    f"document {self.id!r} was changed or deleted since this search: search again"
                )
            return self.explain(view, backend)
