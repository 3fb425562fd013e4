"""BM25 as a share from 0 to 1, comparable between queries, and MaxScore to find the best documents.

    score(document) = Σ weight(term) · count / (count + norm(document)) / reach(query)

A term is a word (weight: its IDF) or a pair of neighbouring words (``PAIR`` times its IDF); ``norm`` grows with the
document's length. ``reach`` is ``REACH`` times the IDF of all words of the query, or the sum of the best document if
that is more, so that no score exceeds 1.

MaxScore reads the terms in the order of the most that each can add. Example for the two best documents of "owl hunts at
night", with at most .5 for "owl", .3 for "hunts" and .2 for "night":

    owl     its documents become candidates; the second best has .45 by now
    hunts   documents without "owl" can reach .3 + .2 = .5 > .45: those with "hunts" become candidates too
    night   documents with "night" alone reach .2 < .45: it is looked up in the candidates only
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Keys, Mask, Rows, best
from palmette.lexical.analyser import Analyser, Word, WordKind, pair_terms
from palmette.lexical.kernels import (
    DocumentNumbers,
    add_hits,
    counts_in,
    hits_among,
    kth_best,
    merge_postings,
    renumber_hits,
)
from palmette.lexical.postings import COUNT_BITS, MAX_COUNT, Hits, Postings, PostingsBuilder
from palmette.search.plan import WordMatches

K1 = 1.2
"""BM25's k₁: saturation of a term's count."""
B = 0.6
"""BM25's b: effect of a document's length."""
PAIR = 0.4
"""Factor of a pair's IDF."""
REACH = 1.6 / (K1 + 1)
"""Share of the IDF of a query's words, function words included, that makes a score of 1."""
SLACK = 1e-5
"""Bound of the differences between float32 sums of shares in different orders."""
_QUERIES = 1024  # queries whose postings are cached, since one search reads them several times
_COPIED = 4  # cached copies of hits per document in a tenant's scope
_MOST_TERMS_FOR_MAXSCORE = 128  # number of terms above which all postings are read, without MaxScore
_WORDS = 1 << 16  # words whose statistics are cached
_NARROW_FILTER = 16  # a filter that leaves less than 1/16 of the documents is searched document by document

LONGEST = 1 << 14
"""Characters of a query whose words are searched."""
MOST_WORDS = 1 << 10
"""Words of a query that are searched, and twice as many parts of compounds and of scripts without spaces."""
_PHRASE = re.compile(  # a phrase in double quotes, of any shape
    r"""(?<!\S)["“„«]([^"“”„«»\n]+)["“”»](?!\w)"""
)


class QueryTerms(NamedTuple):
    """The distinct words of a query in order, then its pairs of neighbouring words."""

    words: list[str]
    terms: list[int]
    singles: int
    """Number of words among the terms."""
    skipped: list[int]
    """Terms of function words, which are not searched, but count in the query's reach."""
    required: frozenset[int]
    """Terms of the phrases in quotes; a match contains all of them."""


def searched_part(text: str) -> str:
    """Return the beginning of a query whose words are searched: the time of a search grows with their number."""
    text = text[:LONGEST]
    parts = text.split(None, MOST_WORDS)
    return text if len(parts) <= MOST_WORDS else text[: -len(parts[-1])]


@lru_cache(16)
def query_terms(analyser: Analyser, text: str) -> QueryTerms:
    """Split a query into words and pairs; function words count only where it has no others.

    Of a long query the first words count (:func:`searched_part`), as an encoder reads the beginning of a long text.

    A phrase in double quotes must match: the document contains each of its words, and each pair of its neighbours as
    neighbours, in this order. Function words may stand between them or lack; a phrase of nothing else needs each of
    them anywhere. A sentence that quotes something, with a question mark or
    function words outside the quotes, requires nothing: such phrases are names more often than conditions.
    """
    text = searched_part(text)
    words = analyser.words(text)[: 2 * MOST_WORDS]
    # 1. the words that are searched, each once; function words only if there are no others
    singles: dict[str, int] = {}
    functions: dict[str, int] = {}
    for word in words:
        (functions if word.kind == WordKind.FUNCTION else singles)[word.text] = word.term
    if not singles:
        singles, functions = functions, {}
    skipped = sorted(set(functions.values()).difference(singles.values()))
    # 2. the terms of quoted phrases, unless a sentence stands around the quotes
    required: set[int] = set()
    if phrases := _PHRASE.findall(text):
        outside = _PHRASE.sub(" ", text)
        if "?" in outside or any(word.kind == WordKind.FUNCTION for word in analyser.words(outside)):
            phrases = []
    for phrase in phrases:
        phrase_words = analyser.words(phrase)
        needed = [word for word in phrase_words if word.kind in (WordKind.WORD, WordKind.PIECE)] or phrase_words
        required.update([word.term for word in needed], _pairs(phrase_words).values())
    # 3. the pairs of neighbouring words follow the words
    known = singles | _pairs(words)
    return QueryTerms(list(known), list(known.values()), len(singles), skipped, frozenset(required))


def _pairs(words: Sequence[Word]) -> dict[str, int]:
    """Return the terms of the pairs of neighbouring words, by the text of both, among words of that kind."""
    texts, terms = list[str](), list[int]()
    for word in words:
        if word.kind == WordKind.WORD:
            texts.append(word.text)
            terms.append(word.term)
    numbers = np.array(terms, np.uint64)
    return dict(zip(map(" ".join, pairwise(texts)), pair_terms(numbers[:-1], numbers[1:]).tolist(), strict=True))


def weights(
    query: QueryTerms, document_frequencies: Sequence[float], documents: int
) -> tuple[NDArray[np.float64], float]:
    """Return the weight of each term [T], and the reach of the query.

    ``document_frequencies`` are those of the terms, then of the skipped function words, among ``documents``.
    """
    frequencies, pairs = np.asarray(document_frequencies, np.float64), slice(query.singles, len(query.terms))
    idf = np.log1p((documents - frequencies + 0.5) / (frequencies + 0.5))
    reach = REACH * float(idf.sum() - idf[pairs].sum())
    idf[pairs] *= PAIR
    return idf[: len(query.terms)], reach


def norms(lengths: NDArray[Any], mean: float) -> Floats:
    """Return BM25's length norm k₁ (1 − b + b · length / mean) of documents [N]."""
    return np.asarray(K1 * (1 - B + B * lengths.astype(np.float64) / mean), np.float32)


def shares(counts: NDArray[np.integer], norms: Floats, weight: np.float32 | Floats) -> Floats:
    """Return weight · count / (count + norm) of a term in n documents, bit for bit as the compiled loops do."""
    float_counts = counts.astype(np.float32)
    share: Floats = weight * (float_counts / (float_counts + norms))
    return share


def matches_of(
    query: QueryTerms, keys: Keys, scores: Floats, document_frequencies: Sequence[float], documents: int
) -> WordMatches:
    """Wrap scores of documents with the document frequencies and the rarity of the query's terms."""
    _, reach = weights(query, document_frequencies, documents)
    rarity = reach / (REACH * float(np.log1p((documents + 0.5) / 0.5)))
    frequencies = list(map(round, document_frequencies[: len(query.terms)]))
    return WordMatches(query.words, scores, keys, bool(query.required), frequencies, documents, rarity)


class PostingList(NamedTuple):
    """Postings of a term in one segment, its weight, and the most that it adds to a document's score."""

    hits: Hits
    weight: np.float32
    most: float


PostingLists = list[list[PostingList]]
"""Postings of a query's terms, one list per source."""


class WeighedQuery(NamedTuple):
    """Postings of a query's terms with final weights."""

    lists: PostingLists
    document_frequencies: list[int]
    """Document frequencies of the terms, then of the skipped function words."""


def candidates(
    lists: list[PostingList], norms: Floats, k: int, floor: float, mask: Mask, among: DocumentNumbers | None
) -> DocumentNumbers:
    """Find documents (rising) that include the ``k`` best with a score of at least ``floor``, by MaxScore.

    An empty ``mask`` allows all documents; ``among``, unless ``None``, lists the only ones to consider. The sums here
    are added in another order than scores are defined, so they only select: the caller computes the scores.
    """
    # 1. the terms in the order of the most that each can add
    waiting = sorted(lists, key=attrgetter("most"), reverse=True)
    rest = sum(map(attrgetter("most"), waiting))  # the most that the terms still waiting can add together
    documents = np.empty(0, np.int32) if among is None else among
    sums = np.zeros(len(documents), np.float32)
    for postings in waiting:
        if not len(postings.hits):
            continue
        # 2. a document needs `least` by now to reach the floor with all that waits
        unseen = among is None and rest + SLACK >= floor  # documents without the terms so far can still reach the floor
        rest -= postings.most
        least = np.float32(floor - rest - SLACK)
        # 3. add the term's shares, to new documents too or to the candidates alone, and drop who has less
        if unseen:
            documents, sums = merge_postings(documents, sums, postings.hits, norms, mask, postings.weight, least)
        else:
            can_reach = sums + postings.most >= least
            documents, sums = (documents, sums) if can_reach.all() else (documents[can_reach], sums[can_reach])
            sums = sums + shares(counts_in(documents, postings.hits), norms[documents], postings.weight)
            can_reach = sums >= least
            documents, sums = documents[can_reach], sums[can_reach]
        # 4. the k-th best sum so far is a floor for all
        if len(documents) >= k:
            floor = max(floor, float(kth_best(sums, k)))
    return documents


class PostingsOfSome:
    """Postings restricted to some documents (rising rows), which are renumbered from 0."""

    def __init__(self, postings: Postings, rows: Rows) -> None:
        self.postings, self.lengths = postings, postings.lengths[rows]
        self._rows, self._places = rows.astype(np.int32), np.empty(0, np.int32)
        if len(rows) * _NARROW_FILTER > len(postings.lengths):  # for many documents, map each hit of a term
            self._places = np.full(len(postings.lengths), -1, np.int32)
            self._places[rows] = np.arange(len(rows), dtype=np.int32)

    def find(self, term: int) -> Hits:
        """Return a term's hits in these documents."""
        hits = self.postings.find(term)
        if len(self._places):
            return renumber_hits(hits, self._places)
        return hits_among(self._rows, hits)


class WordSource(NamedTuple):
    """Documents with rising keys and their postings; ``alive`` lists the rows not deleted, ``None`` for all."""

    keys: Keys
    postings: Postings | PostingsOfSome
    alive: Rows | None = None


class WordSearcher:
    """BM25 over several sources; document frequencies and lengths are those of living documents."""

    def __init__(self, sources: Sequence[WordSource]) -> None:
        self.sources = sources
        self._queries: dict[tuple[int, ...], WeighedQuery] = {}
        self._copied = 0  # hits that remembered queries hold copies of
        self._words: dict[tuple[int, int], tuple[int, float]] = {}
        """Statistics of terms by source and term (:meth:`_statistics`)."""
        self._living = [source.alive for source in sources]
        self._alive = [np.empty(0, bool) if s.alive is None else _mask(s, s.alive) for s in sources]
        living = [s.postings.lengths if s.alive is None else s.postings.lengths[s.alive] for s in sources]
        self.documents = sum(map(len, living))
        total = sum(int(lengths.sum(dtype=np.int64)) for lengths in living)
        self.mean = max(1.0, total / max(1, self.documents))
        """Mean number of words per document."""
        self._norms = [norms(source.postings.lengths, self.mean) for source in sources]

    def __len__(self) -> int:
        return self.documents

    def rows(self, keys: Keys) -> list[Rows | None]:
        """Convert rising keys to rows of each source; ``None`` for all rows of a source."""
        rows: list[Rows | None] = []
        for source in self.sources:
            low, high = np.searchsorted(keys, (source.keys[0], source.keys[-1] + 1))
            whole = high - low == len(source.keys)
            rows.append(None if whole else np.searchsorted(source.keys, keys[low:high]))
        return rows

    def _statistics(self, place: int, term: int, hits: Hits) -> tuple[int, float]:
        """Return a term's document frequency in a source, and its highest count / (count + norm)."""
        known = self._words.get((place, term))
        if known is None:
            alive, rows = self._alive[place], hits >> COUNT_BITS
            frequency = int(alive[rows].sum()) if len(alive) else len(hits)
            impacts = shares(hits & MAX_COUNT, self._norms[place][rows], np.float32(1))
            known = frequency, float(impacts.max(initial=0))
            if isinstance(self.sources[place].postings, Postings):  # not cached for tenants, of which there may be many
                if len(self._words) >= _WORDS:
                    self._words.clear()
                self._words[place, term] = known
        return known

    def _weigh(self, query: QueryTerms) -> WeighedQuery:
        """Look up the postings of a query's terms, with weights divided by the query's reach; cached."""
        key = (query.singles, len(query.terms), *query.terms, *query.skipped)
        if (known := self._queries.get(key)) is not None:
            return known
        # 1. the postings of each term in each source, the most that it can add there, and its document frequency in all
        terms = (*query.terms, *query.skipped)
        document_frequencies, hits_of_sources = [0] * len(terms), list[list[tuple[Hits, float]]]()
        for place, source in enumerate(self.sources):
            hits_of_sources.append([])
            for at, term in enumerate(terms):
                hits = source.postings.find(term)
                count, impact = self._statistics(place, term, hits)
                document_frequencies[at] += count
                hits_of_sources[place].append((hits, impact))
        # 2. weights that add up to 1; skipped function words have none, and come last
        weight, reach = weights(query, document_frequencies, self.documents)
        total = max(float(weight.sum()), 1e-12)
        scaled = np.asarray(weight / total, np.float32)
        lists: PostingLists = []
        for terms_hits in hits_of_sources:
            lists.append([])
            for (hits, impact), w in zip(terms_hits, scaled, strict=False):
                lists[-1].append(PostingList(hits, w, float(w) * impact))
        # 3. weights that make the reach a score of 1, or the best document's sum if that is more
        _, scores = self._best(lists, self._living, 1, reach / total)
        factor = 1 / max(reach / total, *scores.tolist(), 1e-12)
        copied = 0
        for source, of_source in zip(self.sources, lists, strict=True):
            for at, (hits, w, most) in enumerate(of_source):
                of_source[at] = PostingList(hits, np.float32(float(w) * factor), most * factor)
                copied += len(hits) if isinstance(source.postings, PostingsOfSome) else 0
        # 4. remember them, up to a number of queries and of hits that are copies
        if len(self._queries) >= _QUERIES or self._copied + copied > _COPIED * self.documents:
            self._queries.clear()
            self._copied = 0
        self._copied += copied
        self._queries[key] = WeighedQuery(lists, document_frequencies)
        return self._queries[key]

    def best(self, query: QueryTerms, within: Sequence[Rows | None], k: int) -> tuple[Keys, Floats]:
        """Find the ``k`` best documents that share a word, with their scores.

        ``within`` lists the rows of each source that count (``None`` for all). Equal scores are ordered by key.
        """
        if query.required:
            within = self.matching(query, within)
        return self._best(self._weigh(query).lists, within, k, 0.0)

    def matching(self, query: QueryTerms, within: Sequence[Rows | None]) -> list[Rows]:
        """Find the rows of each source, of those ``within``, that contain the quoted phrases of a query."""
        matching = []
        for source, rows in zip(self.sources, within, strict=True):
            first, *others = sorted((source.postings.find(term) for term in query.required), key=len)
            documents = (first >> COUNT_BITS).astype(np.int32)
            for hits in others:
                documents = documents[counts_in(documents, hits) > 0]
            matching.append(documents.astype(np.int64) if rows is None else np.intersect1d(documents, rows, True))
        return matching

    def _best(self, every: PostingLists, within: Sequence[Rows | None], k: int, floor: float) -> tuple[Keys, Floats]:
        """Find the ``k`` best documents with a score of at least ``floor``."""
        keys, scores = np.empty(0, np.int64), np.empty(0, np.float32)
        for place, (source, lists, rows) in enumerate(zip(self.sources, every, within, strict=True)):
            # 1. rows of this source that include its k best, and their scores
            documents: NDArray[np.integer]
            if len(lists) > _MOST_TERMS_FOR_MAXSCORE:
                sums = self._all_scores(place, lists)
                documents = np.flatnonzero(sums >= floor) if rows is None else rows[sums[rows] >= floor]
                added = sums[documents]
            else:
                mask, among = np.empty(0, bool), None
                if rows is not None and rows is source.alive:
                    mask = self._alive[place]
                elif rows is not None and len(rows) * _NARROW_FILTER <= len(source.keys):
                    among = rows.astype(np.int32)
                elif rows is not None:
                    mask = _mask(source, rows)
                documents = candidates(lists, self._norms[place], k, floor, mask, among)
                added = self._scores(place, lists, documents)
            # 2. the best of these and of the sources before
            matched = np.flatnonzero((added >= floor) & (added > 0))
            keys = np.concatenate([keys, source.keys[documents[matched]]])
            scores = np.concatenate([scores, added[matched]])
            order = best(scores, k)  # equal scores stay in the order of keys, which rise over all sources
            keys, scores = keys[order], scores[order]
            if len(keys) == k:
                floor = max(floor, float(scores[-1]))
        return keys, scores

    def _all_scores(self, place: int, lists: Sequence[PostingList]) -> Floats:
        """Score all documents of a source [N], reading every posting."""
        sums = np.zeros(len(self._norms[place]), np.float32)
        for postings in lists:
            add_hits(sums, postings.hits, self._norms[place], postings.weight)
        return sums

    def _scores(self, place: int, lists: Sequence[PostingList], rows: NDArray[np.integer]) -> Floats:
        """Score documents (rising rows) [n], added in the order of the terms."""
        if len(lists) > _MOST_TERMS_FOR_MAXSCORE:
            chosen: Floats = self._all_scores(place, lists)[rows]
            return chosen
        documents, norm = rows.astype(np.int32, copy=False), self._norms[place][rows]
        sums = np.zeros(len(documents), np.float32)
        for postings in lists:
            if len(postings.hits):
                sums += shares(counts_in(documents, postings.hits), norm, postings.weight)
        return sums

    def scores(self, query: QueryTerms, keys: Keys) -> Floats:
        """Score living documents in any order [n]; documents without the quoted phrases get 0."""
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
        """Return each term's addition [T] to the score of a document that contains the quoted phrases."""
        place = next(at for at, source in enumerate(self.sources) if key <= source.keys[-1])
        row = np.searchsorted(self.sources[place].keys, [key]).astype(np.int32)
        norm, parts = self._norms[place][row], np.zeros(len(query.terms), np.float32)
        for column, postings in enumerate(self._weigh(query).lists[place]):
            parts[column] = shares(counts_in(row, postings.hits), norm, postings.weight)[0]
        return parts

    def matches(self, query: QueryTerms, keys: Keys, scores: Floats) -> WordMatches:
        """Wrap scores of documents with the document frequencies and the rarity of the query's terms."""
        return matches_of(query, keys, scores, self._weigh(query).document_frequencies, self.documents)


def _mask(source: WordSource, rows: Rows) -> Mask:
    mask = np.zeros(len(source.keys), bool)
    mask[rows] = True
    return mask


class WordCollection:
    """BM25 on documents in memory; IDF is computed on these documents only.

    For reranking, that orders documents nearly as well as the whole collection's statistics.
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
