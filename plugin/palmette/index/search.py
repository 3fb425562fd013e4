"""One search of an index, and the explanations of its hits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette import reasons
from palmette.arrays import Floats, Rows, unit_rows
from palmette.errors import ConfigError, InputError, NotFoundError, shown
from palmette.evidence import (
    BEST,
    BEST_AT,
    CHANCE,
    OWN,
    SHARE,
    SPAN,
    SPANS,
    Calibration,
    Evidence,
    Lexical,
    Units,
    probability,
)
from palmette.lexical.analyser import analyser_of
from palmette.model import Model, Queries
from palmette.search.plan import Candidates, View, read_array
from palmette.store.backend import Backend
from palmette.store.filters import Filter
from palmette.types import Document, Explanation, Highlights, Hit

FilterLike = Mapping[str, Any] | Filter | None
Embeddings = NDArray[np.floating[Any]]
Texts = str | tuple[str, ...]
"""A query; or several texts that are one query together, the mean of what a model makes of each."""
Query = Texts | Embeddings
QueryList = Sequence[Texts] | Embeddings
Measure = Callable[[Calibration, Any, View], Units]
"""Gives the units of a calibration and search options on an index."""
RAW = (OWN, BEST, SHARE, CHANCE)
"""Evidence that a hit shows as it is."""


def check_count(name: str, value: object) -> int:
    """Check a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {shown(value)}")
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
    calibration: Calibration | None
    """Coefficients of evidence; ``None`` where these options do not rank by score alone."""
    texts: Sequence[str] = ()
    """One per query, where each has one."""
    vectors: Floats | None = None
    """[Q, d] what sentences are compared with, where they count."""

    def search(self, view: View, k: int, measure: Measure) -> SearchResult:
        """Find the ``k`` best documents of a view."""
        model, k = self.model, min(k, max(1, len(view)))
        plan = model.plan(self.arrays, k, self.options, view)
        evidence = self.evidence(measure, view)
        if self.calibration is None or (self.vectors is None and not evidence.texts):  # the method alone
            return SearchResult(self, evidence, model.execute(view, plan, k, self.options))
        execute = partial(model.execute, view, options=self.options)
        return SearchResult(self, evidence, evidence.rank(execute, view, plan, k))

    def evidence(self, measure: Measure, view: View) -> Evidence:
        """What counts, and how much."""
        mix = self.calibration or Calibration(words=0.0)
        units = measure(mix, self.options, view)
        if self.vectors is None:
            units = units.replace(sentence=None)
        return Evidence(mix, units, self.texts if mix.words else (), self.vectors)


def read_queries(
    model: Model, given: QueryList, options: Mapping[str, Any], lexical: Lexical, sentences: bool
) -> QueryBatch:
    """Check queries and options, then encode; ``sentences`` says whether those of documents count."""
    chosen = model.search_options(options)
    mix = model.calibration(chosen, lexical)
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        raise InputError(
            f"queries are a list of str or an array of embeddings, got {type(given).__name__} {shown(given)}"
        )
    single = not isinstance(given, np.ndarray) and tuple not in map(type, given)
    if not single and lexical not in ("auto", 0):
        raise ConfigError(
            f"lexical={lexical!r} needs the words of a query: search with its text, or lexical=0"
        )
    read: Any
    if isinstance(given, np.ndarray):
        read = model.encoder.map(_check_embeddings(given, model.encoder.dimension), "query")
        model.require_embeddings()
        bounds, texts = None, list[str]()
    else:
        texts, bounds = _check_texts(given)
        read = model.query_input(texts)
    arrays = model.encode_queries(read, chosen)
    vectors = model.sentence_queries(arrays, read) if sentences and mix is not None else None
    if single:
        return QueryBatch(model, arrays, chosen, mix, texts, vectors)
    if bounds is not None:
        arrays = {name: _means(array, bounds) for name, array in arrays.items()}
        vectors = None if vectors is None else unit_rows(_means(vectors, bounds))
    return QueryBatch(model, arrays, chosen, mix, (), vectors)


def _check_texts(given: Sequence[Texts]) -> tuple[list[str], list[tuple[int, int]]]:
    """Check the texts of all queries; with the places of each query's first text and of the next one's."""
    texts: list[str] = []
    for one in given:
        if isinstance(one, tuple) and not one:
            raise InputError("a query of several texts has none: give it at least one")
        texts += one if isinstance(one, tuple) else (one,)
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"a query must be a str, got {type(text).__name__}: {shown(text)}")
        if not text.strip():
            raise InputError("the query is empty: give it at least one word")
    sizes = [len(one) if isinstance(one, tuple) else 1 for one in given]
    return texts, list(pairwise(np.cumsum([0, *sizes]).tolist()))


def _means(array: NDArray[Any], bounds: Sequence[tuple[int, int]]) -> NDArray[Any]:
    return np.stack([array[start:end].mean(axis=0) for start, end in bounds]).astype(array.dtype)


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
    evidence: Evidence
    found: Candidates
    """Scores are log-odds where evidence is summed, else the method's own."""

    @property
    def logits(self) -> NDArray[Any]:
        """[Q, k] log-odds; −∞ where padded."""
        if self.batch.calibration is not None and OWN in self.found.evidence:
            return self.found.scores
        lost = self.found.keys < 0
        own = np.where(lost, 0, self.found.scores)
        logits = self.evidence.logit(self.evidence.units.own.units(own))
        return np.where(lost, -np.inf, logits)

    def to_hits(
        self, view: View, backend: Backend, threshold: float | None, explained: bool
    ) -> list[list[Hit]]:
        """Read the documents, each once, and wrap them."""
        found, scores = self.found, probability(self.logits)
        keep = found.keys >= 0  # [Q, k]
        if threshold is not None:
            keep &= scores >= threshold
        wanted = np.unique(found.keys[keep]).tolist()
        documents = dict(zip(wanted, view.documents(wanted), strict=True))
        results: list[list[Hit]] = []
        for row, kept in enumerate(keep):
            columns = np.flatnonzero(kept)
            spans = self.spans(view, row, columns)
            hits = []
            for column, span in zip(columns.tolist(), spans, strict=True):
                document = documents[int(found.keys[row, column])]
                explain = partial(self.explain_later, backend, row, column, document.id)
                if explained:
                    explanation = self.explain(view, backend, row, column)
                    explain = partial(lambda made: made, explanation)
                parts = {
                    name: float(array[row, column])
                    for name, array in found.evidence.items()
                    if name in RAW and array[row, column] == array[row, column]
                }
                parts = parts or {OWN: float(found.scores[row, column])}
                words = partial(self.word_spans, backend, row, document)
                hits.append(Hit(document, float(scores[row, column]), explain, parts, span, words))
            results.append(hits)
        return results

    def spans(self, view: View, row: int, columns: Rows) -> list[tuple[int, int] | None]:
        """Places of the best sentences of hits in their documents' content."""
        if self.batch.vectors is None or BEST_AT not in self.found.evidence or not len(columns):
            return [None] * len(columns)
        places = self.found.evidence[BEST_AT][row, columns]
        held = view.ragged(SPANS, self.found.keys[row, columns].tolist())
        found = (held.row(at)[place] if place >= 0 else None for at, place in enumerate(places.tolist()))
        return [None if one is None else (int(one[0]), int(one[1])) for one in found]

    def word_spans(self, backend: Backend, row: int, document: Document) -> list[tuple[int, int]]:
        """Places of the query's words in a document's content."""
        if not self.evidence.texts:
            return []
        return analyser_of(backend.language).matches(self.batch.texts[row], document.content)

    def ranking(self, view: View) -> Ranking:
        """Ids and scores only."""
        found, chances = self.found, probability(self.logits)
        wanted = np.unique(found.keys[found.keys >= 0]).tolist()
        named = dict(zip(wanted, view.ids(wanted), strict=True))
        ids = [[named[key] for key in row if key >= 0] for row in found.keys.tolist()]
        scores = [row[: len(kept)] for row, kept in zip(chances.tolist(), ids, strict=True)]
        return Ranking(ids, scores, found.visited / max(1, len(view)))

    def explain(self, view: View, backend: Backend, row: int, column: int) -> Explanation:
        """Explain a hit's score from the document's arrays and words."""
        batch, key = self.batch, int(self.found.keys[row, column])
        query = {name: array[row : row + 1] for name, array in batch.arrays.items()}
        stored = backend.arrays  # an index of an earlier version may lack some
        arrays = {s.name: read_array(view, s, [key]) for s in batch.model.arrays() if s in stored}
        facts: dict[str, Any] = {name: array[row, column] for name, array in self.found.evidence.items()}
        facts["document"] = view.documents([key])[0]
        matched, spelled = None, dict[str, str]()
        if batch.texts:
            matched = view.words(batch.texts[row], 0, only=np.array([key]))
            facts["words"] = {w: s > 0 for w, s in zip(matched.words, matched.parts[0].tolist(), strict=True)}
            # rarity may have changed since the search: parts add up to the share that was found
            factor = float(facts.get(SHARE, 1.0)) / max(float(matched.scores[0]), 1e-12)
            matched = replace(matched, parts=matched.parts * np.float32(factor))
        own = batch.model.explain(query, arrays, batch.options, facts)
        facts = {OWN: self.found.scores[row, column], BEST: np.nan, CHANCE: 0.0} | facts
        facts[SPAN] = self.spans(view, row, np.array([column]))[0]
        if self.evidence.texts:
            spelled = reasons.spell(analyser_of(backend.language), batch.texts[row])
        told = reasons.explain(
            self.evidence, own, facts["document"], facts, matched if self.evidence.texts else None, spelled
        )
        places = Highlights(facts[SPAN], self.word_spans(backend, row, facts["document"]))
        return replace(told, detail={**told.detail, "highlights": places.to_dict()})

    def explain_later(self, backend: Backend, row: int, column: int, id: str) -> Explanation:
        """Explain a hit of an earlier search, if its document is still the one that was found."""
        with backend.read() as view:
            if view.key_of(id) != self.found.keys[row, column]:
                raise NotFoundError(
                    f"document {shown(id)} was changed or deleted since this search: search again"
                )
            return self.explain(view, backend, row, column)


def explain(batch: QueryBatch, backend: Backend, id: str, measure: Measure) -> Explanation:
    """Explain a document's score for the first query of a batch."""
    with backend.read() as view:
        key = view.key_of(id)
        if key is None:
            raise NotFoundError(f"there is no document {shown(id)} in this index")
        keys, model = np.array([key]), batch.model
        plan = model.plan(batch.arrays, 1, batch.options, view).one_query(0).among(keys)
        found = model.execute(view, plan, 1, batch.options).one_query(0)
        evidence = batch.evidence(measure, view)
        if batch.calibration is not None and found.keys.size:
            found = evidence.score(view, 0, found.keys[0], found.scores[0])
        if not found.keys.size:
            found = Candidates(keys[None], np.zeros((1, 1), np.float32))
        return SearchResult(batch, evidence, found).explain(view, backend, 0, 0)
