"""One search of an index: encoded queries, candidates, hits and their explanations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette import telemetry
from palmette.arrays import Floats, Mask, Rows, unit_rows
from palmette.errors import ConfigError, InputError, NotFoundError, shown
from palmette.lexical.analyser import analyser_of, check_query
from palmette.model import Model, Queries
from palmette.ranking import reasons
from palmette.ranking.arrays import SPANS
from palmette.ranking.boost import NO_BOOSTS, Boosts, parse_boost
from palmette.ranking.score import (
    BEST,
    BEST_AT,
    BOOST,
    CHANCE,
    OWN,
    SHARE,
    SPAN,
    Calibration,
    Evidence,
    Lexical,
    Units,
    probability,
)
from palmette.search.plan import Candidates, View, read_array
from palmette.store.backend import Backend
from palmette.store.filters import Filter
from palmette.types import Document, Explanation, Highlights, Hit, cite

FilterLike = Mapping[str, Any] | Filter | None
Embeddings = NDArray[np.floating[Any]]
Texts = str | tuple[str, ...]
"""A query; or several texts that are one query together, the mean of what a model makes of each."""
Query = Texts | Embeddings
QueryList = Sequence[Texts] | Embeddings
Boost = Mapping[str, Any] | Boosts | None
Measure = Callable[[Any, View], Units]
"""Gives the units of search options on an index."""
RAW = (OWN, BEST, SHARE, CHANCE, BOOST)
"""Evidence that a hit shows as it is."""


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
    boosts: Boosts = NO_BOOSTS
    """Log-odds by metadata."""

    def search(self, view: View, k: int, measure: Measure) -> SearchResult:
        """Find the ``k`` best documents of a view."""
        model, k = self.model, min(k, max(1, len(view)))
        plan = model.plan(self.arrays, k, self.options, view)
        evidence = self.evidence(measure, view)
        if not self.sums(evidence):
            return SearchResult(self, evidence, model.execute(view, plan, k, self.options))  # the method alone
        execute = partial(model.execute, view, options=self.options)
        return SearchResult(self, evidence, evidence.rank(execute, view, plan, k))

    def sums(self, evidence: Evidence) -> bool:
        """Whether scores are sums of evidence; else the method ranks alone."""
        counted = self.vectors is not None or evidence.texts or self.boosts
        return self.calibration is not None and bool(counted)

    def evidence(self, measure: Measure, view: View) -> Evidence:
        """What counts, and how much."""
        mix = self.calibration or Calibration(words=0.0)
        units = measure(self.options, view)
        if self.vectors is None:
            units = units.model_copy(update={"sentence": None})
        return Evidence(mix, units, self.texts if mix.words else (), self.vectors, self.boosts)


def read_queries(
    model: Model, given: QueryList, options: Mapping[str, Any], lexical: Lexical, sentences: bool, boost: Any = None
) -> QueryBatch:
    """Check queries and options, then encode; ``sentences`` says whether those of documents count."""
    chosen, boosts = model.search_options(options), parse_boost(boost)
    mix = model.calibration(chosen, lexical)
    if boosts and mix is None:
        raise ConfigError(
            f"boost adds to a score, but these {model.method} options do not rank by score alone: leave one of both out"
        )
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        raise InputError(
            f"queries are a list of str or an array of embeddings, got {type(given).__name__} {shown(given)}"
        )
    texts, sizes, several = list[str](), list[int](), False
    for one in () if isinstance(given, np.ndarray) else given:
        several |= isinstance(one, tuple)
        sizes.append(_add_texts(one if isinstance(one, tuple) else (one,), texts))
    if (several or not texts) and lexical not in ("auto", 0):
        raise ConfigError(f"lexical={lexical!r} needs the words of a query: search with its text, or lexical=0")
    read: Any
    if isinstance(given, np.ndarray):
        read = model.encoder.map(_check_embeddings(given, model.encoder.dimension), "query")
        model.require_embeddings()
    else:
        read = model.query_input(texts)
    with telemetry.encoding(model.encoder.name, len(texts)):
        arrays = model.encode_queries(read, chosen)
    vectors = model.sentence_queries(arrays, read) if sentences and mix is not None else None
    if several:
        arrays = {name: _means(array, sizes) for name, array in arrays.items()}
        vectors = None if vectors is None else unit_rows(_means(vectors, sizes))
    return QueryBatch(model, arrays, chosen, mix, () if several else texts, vectors, boosts)


def _add_texts(query: tuple[str, ...], texts: list[str]) -> int:
    """Check and add the texts of one query, and count them."""
    if not query:
        raise InputError("a query of several texts has none: give it at least one")
    for text in query:
        if not isinstance(text, str):
            raise InputError(f"a query must be a str, got {type(text).__name__}: {shown(text)}")
        if not text.strip():
            raise InputError("the query is empty: give it at least one word")
        check_query(text)
    texts += query
    return len(query)


def _means(array: NDArray[Any], sizes: Sequence[int]) -> NDArray[Any]:
    parts = np.split(array, np.cumsum(sizes)[:-1])
    return np.stack([part.mean(axis=0) for part in parts]).astype(array.dtype)


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
        self,
        view: View,
        backend: Backend,
        threshold: float | None,
        explained: bool,
        copies: Sequence[Mapping[int, Sequence[int]]] = (),
    ) -> list[list[Hit]]:
        """Read the documents, each once, and wrap them; ``copies``: keys of equal texts by the key that is shown."""
        found, scores = self.found, probability(self.logits)
        keep = found.keys >= 0  # [Q, k]
        if threshold is not None:
            keep &= scores >= threshold
        wanted = np.unique(found.keys[keep]).tolist()
        with telemetry.span("read"):
            parts = dict(zip(wanted, view.parts(wanted), strict=True))
        results: list[list[Hit]] = []
        for row, kept in enumerate(keep):
            columns = np.flatnonzero(kept)
            spans = self.spans(view, row, columns)
            hits = []
            for column, span in zip(columns.tolist(), spans, strict=True):
                document, place = parts[int(found.keys[row, column])]
                explain = partial(self.explain_later, backend, row, column, document.id)
                if explained:
                    explanation = self.explain(view, backend, row, column)
                    explain = partial(lambda made: made, explanation)
                evidence = {}
                for name in RAW:
                    if name in found.evidence and not np.isnan(value := found.evidence[name][row, column]):
                        evidence[name] = float(value)
                evidence = evidence or {OWN: float(found.scores[row, column])}
                words = partial(self.word_spans, backend, row, document)
                hit = Hit(document, float(scores[row, column]), explain, evidence, span, words, place)
                if copies and (same := copies[row].get(int(found.keys[row, column]))):
                    hit = replace(hit, copies=tuple(cite(*part) for part in view.parts(same)))
                hits.append(hit)
            results.append(hits)
        return results

    def spans(self, view: View, row: int, columns: Rows) -> list[tuple[int, int] | None]:
        """Places of the best sentences of hits in their documents' content."""
        if self.batch.vectors is None or BEST_AT not in self.found.evidence or not len(columns):
            return [None] * len(columns)
        places, found = self.found.evidence[BEST_AT][row, columns].tolist(), list[tuple[int, int] | None]()
        held = view.ragged(SPANS, self.found.keys[row, columns])
        for first, place in zip(held.starts[:-1].tolist(), places, strict=True):
            begin, end = held.values[first + place].tolist() if place >= 0 else (0, 0)
            found.append((begin, end) if place >= 0 else None)
        return found

    def word_spans(self, backend: Backend, row: int, document: Document) -> list[tuple[int, int]]:
        """Places of the query's words in a document's content."""
        if not self.evidence.texts:
            return []
        return analyser_of(backend.language).matches(self.batch.texts[row], document.content)

    def best_passages(self, view: View) -> Mask:
        """[Q, n] whether a passage is the best of its document."""
        keys = self.found.keys
        held = keys >= 0
        owners, best = np.full(keys.shape, -1, np.int64), np.zeros(keys.shape, np.bool_)
        owners[held] = view.document_keys(keys[held])
        for row, documents in enumerate(owners):
            best[row, np.unique(documents, return_index=True)[1]] = True
        return best & held

    def ranking(self, view: View, counted: Mask, k: int) -> Ranking:
        """Ids and scores of the ``k`` best documents, by the passages that count [Q, n]."""
        found, chances = self.found, probability(self.logits)
        wanted = np.unique(found.keys[counted]).tolist()
        named = dict(zip(wanted, view.ids(wanted), strict=True))
        kept = [np.flatnonzero(row)[:k] for row in counted]
        ids = [[named[key] for key in keys[some].tolist()] for keys, some in zip(found.keys, kept, strict=True)]
        scores = [row[some].tolist() for row, some in zip(chances, kept, strict=True)]
        return Ranking(ids, scores, found.visited / max(1, len(view)))

    def explain(self, view: View, backend: Backend, row: int, column: int) -> Explanation:
        """Explain a hit's score from the document's arrays and words."""
        batch, key = self.batch, int(self.found.keys[row, column])
        query = {name: array[row : row + 1] for name, array in batch.arrays.items()}
        arrays = {spec.name: read_array(view, spec, [key]) for spec in batch.model.arrays()}
        facts: dict[str, Any] = {name: array[row, column] for name, array in self.found.evidence.items()}
        facts["document"] = view.documents([key])[0]
        matched, spelled = None, dict[str, str]()
        if batch.texts:
            matched = view.words(batch.texts[row], 0, only=np.array([key]))
            none = np.zeros(len(matched.words), np.float32)
            parts = view.word_parts(batch.texts[row], key) if matched.scores[0] else none
            facts["words"] = {word: part > 0 for word, part in zip(matched.words, parts.tolist(), strict=True)}
            # rarity may have changed since the search: parts add up to the share that was found
            factor = float(facts.get(SHARE, 1.0)) / max(float(matched.scores[0]), 1e-12)
            matched = replace(matched, parts=parts * np.float32(factor))
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
            if int(self.found.keys[row, column]) not in view.keys_of([id]).get(id, ()):
                raise NotFoundError(f"document {shown(id)} was changed or deleted since this search: search again")
            return self.explain(view, backend, row, column)
