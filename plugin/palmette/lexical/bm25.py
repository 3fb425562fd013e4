"""BM25 as a share: how much of what a query can reach a document answers, 0 … 1.

A word, or a pair of neighbouring words, weighs its IDF, a pair ``PAIR`` times that; a document that contains it
``count`` times answers ``count / (count + norm)`` of the weight, where ``norm`` grows with its length. A query can
reach ``REACH`` of the weight of its words, known or not; where the best document answers more than that, its sum takes
the place of the reach. Divided by it, scores of different queries can be compared.

MaxScore finds the best documents, word by word in the order of the most that a word can add. While a document with none
of the words so far could still be among the best, the next word's documents become candidates; then the remaining words
are looked up for the candidates only, and those that can no longer reach the best are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Keys, Mask, Rows, best
from palmette.lexical.analyser import Analyser
from palmette.lexical.kernels import (
    Counts,
    Documents,
    add_hits,
    counts_in,
    hits_among,
    kth_best,
    max_impact,
    merge_postings,
    renumber_hits,
)
from palmette.lexical.postings import COUNT_BITS, Hits, Postings, PostingsBuilder
from palmette.lexical.query import QueryTerms, query_terms
from palmette.search.plan import WordMatches

K1, B = 1.2, 0.6  # how soon repetition stops counting, how much length matters
PAIR = 0.4  # weight of a pair's IDF beside a word's
REACH = 1.6 / (K1 + 1)  # part of its words' weight, function words included, that a query can reach
SLACK = 1e-5  # more than float32 sums of shares can differ by in another order of addition
_QUERIES = 1024  # queries whose postings are remembered: one query asks several times
_COPIED = 4  # hits per document of a wall that remembered queries may hold copies of
_MANY = 128  # terms from which on every posting is read once, instead of looking up candidates term by term
_WORDS = 1 << 16  # words whose statistics are remembered
_FEW = 16  # a filter that leaves one document in so many is searched document by document


def weights(query: QueryTerms, holding: Sequence[float], documents: int) -> tuple[NDArray[np.float64], float]:
    """[T] weight of each term, and what the query can reach.

    ``holding`` of ``documents`` contain each term, then each skipped one.
    """
    held, pairs = np.asarray(holding, np.float64), slice(query.singles, len(query.terms))
    idf = np.log1p((documents - held + 0.5) / (held + 0.5))
    reach = REACH * float(idf.sum() - idf[pairs].sum())
    idf[pairs] *= PAIR
    return idf[: len(query.terms)], reach


def norms(lengths: NDArray[Any], mean: float) -> Floats:
    """[N] what a word's count is measured against in documents of these lengths."""
    return np.asarray(K1 * (1 - B + B * lengths.astype(np.float64) / mean), np.float32)


def shares(counts: Counts, norms: Floats, weight: np.float32) -> Floats:
    """[n] what one word adds to documents that contain it ``counts`` times, bit for bit as the loops compute it."""
    many = counts.astype(np.float32)
    share: Floats = weight * (many / (many + norms))
    return share


def matches_of(query: QueryTerms, keys: Keys, scores: Floats, holding: Sequence[float], documents: int) -> WordMatches:
    """Wrap the scores of documents, with how rare the terms are."""
    _, reach = weights(query, holding, documents)
    rarity = reach / (REACH * float(np.log1p((documents + 0.5) / 0.5)))
    held = [round(count) for count in holding[: len(query.terms)]]
    return WordMatches(query.words, scores, keys, bool(query.required), held, documents, rarity)


class PostingList(NamedTuple):
    """The postings of a query's term in one segment, its weight, and the most it adds to a document."""

    hits: Hits
    weight: np.float32
    most: float

    def scaled(self, factor: float) -> PostingList:
        """Multiply what the term adds."""
        return PostingList(self.hits, np.float32(float(self.weight) * factor), self.most * factor)


Lists = list[list[PostingList]]
"""Postings of a query's terms, per source."""


class WeighedQuery(NamedTuple):
    """A query's terms in some sources."""

    lists: Lists
    holding: list[int]
    """Documents that contain each term, then each skipped one."""


def candidates(
    lists: list[PostingList], norms: Floats, k: int, floor: float, mask: Mask, among: Documents | None
) -> Documents:
    """Documents (rising) that include the ``k`` best of those that score ``floor`` or more.

    They lie in the ``mask`` (an empty one hides none), and in ``among`` where that is given. The order of addition
    differs from the score's definition: scores are for the caller to add.
    """
    waiting = sorted((one for one in lists if len(one.hits)), key=lambda one: -one.most)
    rest = sum(one.most for one in waiting)
    held = np.empty(0, np.int32) if among is None else among
    sums = np.zeros(len(held), np.float32)
    for one in waiting:
        unseen = among is None and rest + SLACK >= floor  # a document without any of the words so far may do
        rest -= one.most
        least = np.float32(floor - rest - SLACK)
        if unseen:
            held, sums = merge_postings(held, sums, one.hits, norms, mask, one.weight, least)
        else:
            able = sums + one.most >= least
            held, sums = (held, sums) if able.all() else (held[able], sums[able])
            sums = sums + shares(counts_in(held, one.hits), norms[held], one.weight)
            able = sums >= least
            held, sums = held[able], sums[able]
        if len(held) >= k:
            floor = max(floor, float(kth_best(sums, k)))
    return held


class PostingsOfSome:
    """The postings of some documents (rising rows) of others; their rows are counted from 0."""

    def __init__(self, postings: Postings, rows: Rows) -> None:
        self.postings, self.lengths = postings, postings.lengths[rows]
        self._rows, self._places = rows.astype(np.int32), np.empty(0, np.int32)
        if len(rows) * _FEW > len(postings.lengths):  # many: look up the documents of a term rather than these
            self._places = np.full(len(postings.lengths), -1, np.int32)
            self._places[rows] = np.arange(len(rows), dtype=np.int32)

    def find(self, term: int) -> Hits:
        """Return a term's hits among these documents."""
        hits = self.postings.find(term)
        if len(self._places):
            return renumber_hits(hits, self._places)
        return hits_among(self._rows, hits)


class WordSource(NamedTuple):
    """A set of documents with rising keys and their postings; ``alive`` lists the rows that count, if not all."""

    keys: Keys
    postings: Postings | PostingsOfSome
    alive: Rows | None = None


class WordSearcher:
    """BM25 over several sources; its statistics are those of the documents that are alive."""

    def __init__(self, sources: Sequence[WordSource]) -> None:
        self.sources = sources
        self._queries: dict[tuple[int, ...], WeighedQuery] = {}
        self._copied = 0  # hits that remembered queries hold copies of
        self._words: dict[tuple[int, int], tuple[int, float]] = {}
        self._alive = [np.empty(0, bool) if s.alive is None else _mask(s, s.alive) for s in sources]
        living = [s.postings.lengths if s.alive is None else s.postings.lengths[s.alive] for s in sources]
        self.documents = sum(map(len, living))
        total = sum(int(lengths.sum(dtype=np.int64)) for lengths in living)
        self.mean = max(1.0, total / max(1, self.documents))
        """Words per document."""
        self._norms = [norms(source.postings.lengths, self.mean) for source in sources]

    def __len__(self) -> int:
        return self.documents

    def rows(self, keys: Keys) -> list[Rows | None]:
        """Find the rows of some documents (rising keys, all in the sources); ``None`` for all of a source's rows."""
        found: list[Rows | None] = []
        for source in self.sources:
            low, high = np.searchsorted(keys, (source.keys[0], source.keys[-1] + 1))
            whole = high - low == len(source.keys)
            found.append(None if whole else np.searchsorted(source.keys, keys[low:high]))
        return found

    def _statistics(self, place: int, term: int, hits: Hits) -> tuple[int, float]:
        """Count the living documents of a term in a source, and the most it makes of its weight in any."""
        known = self._words.get((place, term))
        if known is None:
            alive = self._alive[place]
            holding = int(alive[hits >> COUNT_BITS].sum()) if len(alive) else len(hits)
            known = holding, float(max_impact(hits, self._norms[place]))
            if isinstance(self.sources[place].postings, Postings):  # others would add up over many walls
                if len(self._words) >= _WORDS:
                    self._words.clear()
                self._words[place, term] = known
        return known

    def _weigh(self, query: QueryTerms) -> WeighedQuery:
        """Find the postings of a query's terms, per source, with weights that make the best document's share 1."""
        key = (query.singles, len(query.terms), *query.terms, *query.skipped)
        known = self._queries.get(key)
        if known is None:
            known = self._weigh_anew(query)
            lists = zip(self.sources, known.lists, strict=True)
            copied = sum(len(one.hits) for s, some in lists if isinstance(s.postings, PostingsOfSome) for one in some)
            if len(self._queries) >= _QUERIES or self._copied + copied > _COPIED * self.documents:
                self._queries.clear()
                self._copied = 0
            self._copied += copied
            self._queries[key] = known
        return known

    def _weigh_anew(self, query: QueryTerms) -> WeighedQuery:
        terms = (*query.terms, *query.skipped)
        holding, every = [0] * len(terms), list[list[tuple[Hits, float]]]()
        for place, source in enumerate(self.sources):
            every.append([])
            for at, term in enumerate(terms):
                hits = source.postings.find(term)
                count, impact = self._statistics(place, term, hits)
                holding[at] += count
                every[place].append((hits, impact))
        weight, reach = weights(query, holding, self.documents)
        total = max(float(weight.sum()), 1e-12)
        scaled = np.asarray(weight / total, np.float32)
        lists = [
            [PostingList(hits, one, float(one) * impact) for (hits, impact), one in zip(some, scaled, strict=False)]
            for some in every
        ]
        _, scores = self._best(lists, [source.alive for source in self.sources], 1, reach / total)
        factor = 1 / max(reach / total, *scores.tolist(), 1e-12)
        return WeighedQuery([[one.scaled(factor) for one in some] for some in lists], holding)

    def best(self, query: QueryTerms, within: Sequence[Rows | None], k: int) -> tuple[Keys, Floats]:
        """Find the ``k`` best documents that share a word, with their scores.

        ``within`` lists the rows of each source that count (``None`` for all). Equal scores are ordered by key.
        """
        if query.required:
            within = self.matching(query, within)
        return self._best(self._weigh(query).lists, within, k, 0.0)

    def matching(self, query: QueryTerms, within: Sequence[Rows | None]) -> list[Rows]:
        """List the rows of each source, of those ``within``, that contain the phrases of a query."""
        found = []
        for source, rows in zip(self.sources, within, strict=True):
            first, *others = sorted((source.postings.find(term) for term in query.required), key=len)
            held = (first >> COUNT_BITS).astype(np.int32)
            for hits in others:
                held = held[counts_in(held, hits) > 0]
            found.append(held.astype(np.int64) if rows is None else np.intersect1d(held, rows, True))
        return found

    def _best(self, every: Lists, within: Sequence[Rows | None], k: int, floor: float) -> tuple[Keys, Floats]:
        """Find the ``k`` best documents of those that score ``floor`` or more."""
        keys, scores = np.empty(0, np.int64), np.empty(0, np.float32)
        for place, (source, lists, rows) in enumerate(zip(self.sources, every, within, strict=True)):
            found, added = self._candidates(place, lists, rows, k, floor)
            matched = np.flatnonzero((added >= floor) & (added > 0))
            keys = np.concatenate([keys, source.keys[found[matched]]])
            scores = np.concatenate([scores, added[matched]])
            order = best(scores, k)  # equal scores stay in the order of keys, which rise over all sources
            keys, scores = keys[order], scores[order]
            if len(keys) == k:
                floor = max(floor, float(scores[-1]))
        return keys, scores

    def _candidates(
        self, place: int, lists: list[PostingList], rows: Rows | None, k: int, floor: float
    ) -> tuple[NDArray[np.integer], Floats]:
        """Rows of a source, of those given, that include the ``k`` best of ``floor`` or more, with their scores."""
        source, mask = self.sources[place], np.empty(0, bool)
        among: NDArray[np.int32] | None = None
        if len(lists) > _MANY:
            sums = self._all_scores(place, lists)
            chosen = np.flatnonzero(sums >= floor) if rows is None else rows[sums[rows] >= floor]
            return chosen, sums[chosen]
        if rows is not None:
            if rows is source.alive:
                mask = self._alive[place]
            elif len(rows) * _FEW <= len(source.keys):
                among = rows.astype(np.int32)
            else:
                mask = _mask(source, rows)
        held = candidates(lists, self._norms[place], k, floor, mask, among)
        return held, self._scores(place, lists, held)

    def _all_scores(self, place: int, lists: Sequence[PostingList]) -> Floats:
        """[N] scores of all documents of a source: each posting is read once, however many terms there are."""
        sums = np.zeros(len(self._norms[place]), np.float32)
        for one in lists:
            add_hits(sums, one.hits, self._norms[place], one.weight)
        return sums

    def _scores(self, place: int, lists: Sequence[PostingList], rows: NDArray[np.integer]) -> Floats:
        """[n] scores of some documents (rising rows), added in the terms' order."""
        if len(lists) > _MANY:
            chosen: Floats = self._all_scores(place, lists)[rows]
            return chosen
        held, norm = rows.astype(np.int32, copy=False), self._norms[place][rows]
        sums = np.zeros(len(held), np.float32)
        for one in lists:
            if len(one.hits):
                sums += shares(counts_in(held, one.hits), norm, one.weight)
        return sums

    def scores(self, query: QueryTerms, keys: Keys) -> Floats:
        """[n] scores of documents (any order, all alive); 0 for those without the query's phrases."""
        order = np.argsort(keys, kind="stable")
        scores = np.zeros(len(keys), np.float32)
        start, rising = 0, keys[order]
        for place, (source, lists) in enumerate(zip(self.sources, self._weigh(query).lists, strict=True)):
            stop = int(np.searchsorted(rising, source.keys[-1], side="right"))
            if stop > start:
                rows = np.searchsorted(source.keys, rising[start:stop])
                added = self._scores(place, lists, rows)
                for term in query.required:
                    added[counts_in(rows.astype(np.int32), source.postings.find(term)) == 0] = 0
                scores[order[start:stop]] = added
            start = stop
        return scores

    def parts(self, query: QueryTerms, key: int) -> Floats:
        """[T] what each term adds to the score of a document that has the query's phrases."""
        place = next(at for at, source in enumerate(self.sources) if key <= source.keys[-1])
        row = np.searchsorted(self.sources[place].keys, [key]).astype(np.int32)
        norm, parts = self._norms[place][row], np.zeros(len(query.terms), np.float32)
        for column, one in enumerate(self._weigh(query).lists[place]):
            parts[column] = shares(counts_in(row, one.hits), norm, one.weight)[0]
        return parts

    def matches(self, query: QueryTerms, keys: Keys, scores: Floats) -> WordMatches:
        """Wrap the scores of documents, with how rare the terms are."""
        return matches_of(query, keys, scores, self._weigh(query).holding, self.documents)


def _mask(source: WordSource, rows: Rows) -> Mask:
    mask = np.zeros(len(source.keys), bool)
    mask[rows] = True
    return mask


class WordCollection:
    """Some documents in memory that queries are scored on; a word is rare when few of them contain it.

    That orders the documents of a first search nearly as well as the whole collection's statistics do.
    """

    def __init__(self, analyser: Analyser, texts: Sequence[str]) -> None:
        builder = PostingsBuilder(analyser)
        builder.add(texts)
        self.analyser, self.keys = analyser, np.arange(len(texts))
        self._searcher = WordSearcher([WordSource(self.keys, builder.collected())])

    def matches(self, query: str) -> WordMatches:
        """Score every document by the words of a query."""
        terms = query_terms(self.analyser, query)
        return self._searcher.matches(terms, self.keys, self._searcher.scores(terms, self.keys))
