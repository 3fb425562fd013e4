"""Selection among the ranked passages of a search: the best passages of each document, or each text once.

Passages are ranked until there are enough documents or distinct texts among them. Example for k = 2, with passages
numbered within documents A to C, of which A2 and B1 have the same text:

    ranked                        A2  B1  A1  C3  A5  A4  B2
    distinct                      A2      A1                        B1 is one of the copies of A2
    group_by="document"           A2  B1  A1      A5      B2        the best documents are A and B: C is out
    three passages of each        A [A2 A1 A5]    B [B1 B2]         by their best passages, others behind it

A group has all passages of its document to choose from, those that ranked too low for the list included.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from palmette.arrays import Floats, Keys, Rows
from palmette.config import check_choice
from palmette.errors import ConfigError, shown
from palmette.index.results import FindScales, QueryBatch, SearchResult
from palmette.ranking.score import METHOD_SCORE, WORD_SHARE
from palmette.search.plan import Candidates, stack_rows
from palmette.store.protocols import View
from palmette.types import Hit

GroupBy = Literal["document"]
Distinct = bool | Literal["near"]
Duplicates = dict[int, list[int]]
"""Keys of the passages of equal text by the key of the one that is returned."""
PASSAGES_OF_A_DOCUMENT = 3
"""Largest number of passages per document in a grouped search."""
LEAST_RANKED = 50
"""Smallest number of passages to rank, so that enough documents or distinct passages are among them."""
SHARE_TOLERANCE = 1e-5
"""Largest difference of the shares of a query's words that two equal texts have."""
NEAR_OVERLAP = 0.8
"""Least share of word trigrams that near-identical passages have in common."""


class ChosenPassages(NamedTuple):
    """Candidates of one query that a search returns."""

    columns: Rows
    """Columns of the search result, best first."""
    copies: Duplicates
    enough: bool
    """Whether there are ``k`` documents, or ``k`` distinct passages."""


@dataclass(frozen=True)
class Selection:
    """Options that select among the ranked passages: one group per document, or each text once."""

    group_by: GroupBy | None = None
    distinct: Distinct = False

    @classmethod
    def of(cls, group_by: Any, distinct: Any) -> Selection:
        """Check the options of a search."""
        if group_by is not None:
            check_choice("group_by", group_by, get_args(GroupBy))
        if not isinstance(distinct, bool) and distinct != "near":
            raise ConfigError(f"distinct must be True, False or 'near', got {shown(distinct)}")
        return cls(group_by, distinct)

    def search(
        self, batch: QueryBatch, view: View, k: int, measure: FindScales
    ) -> tuple[SearchResult, list[Duplicates]]:
        """Rank more and more passages until there are ``k`` documents, or ``k`` distinct passages.

        Returns the selected passages, and the copies of the passages of each query. In a grouped search, all passages
        of a document are scored, wherever they rank, so that its group has the best of them.
        """
        # 1. rank more until every query has enough, or nothing is left
        ranked = max(LEAST_RANKED, 4 * k)
        while True:
            result = batch.search(view, ranked, measure)
            rows = range(len(result.candidates.keys))
            chosen = [self._choose(result, view, row, k) for row in rows]
            exhausted = (result.candidates.keys >= 0).sum(axis=1) < ranked
            if ranked >= len(view) or all(chosen[row].enough or exhausted[row] for row in rows):
                break
            ranked *= 4
        # 2. keep what was chosen for each query; of a group, the best passages of the whole document
        selected = []
        for row, passages in enumerate(chosen):
            candidates = _columns(result.candidates, row, passages.columns)
            if self.group_by and batch.calibration is not None and len(passages.columns):
                candidates = _with_groups(result, view, row, candidates)
            evidence = {name: array[0] for name, array in candidates.evidence.items()}
            selected.append((candidates.keys[0], candidates.scores[0], evidence))
        stacked = stack_rows(selected, result.candidates)
        return replace(result, candidates=stacked), [passages.copies for passages in chosen]

    def _choose(self, result: SearchResult, view: View, row: int, k: int) -> ChosenPassages:
        """Choose among the passages that were ranked for one query."""
        # 1. each text once
        keys = result.candidates.keys[row]
        columns, copies = np.flatnonzero(keys >= 0), Duplicates()
        if self.distinct and len(columns) > 1:
            shares = result.candidates.evidence.get(WORD_SHARE)
            of_columns = None if shares is None else shares[row, columns]
            kept, copies = _without_duplicates(view, keys[columns], of_columns, near=self.distinct == "near")
            columns = columns[kept]
        if not self.group_by:
            return ChosenPassages(columns[:k], copies, len(columns) >= k)
        # 2. the passages of the k documents that come first
        owners = view.document_keys(keys[columns])
        documents, first = np.unique(owners, return_index=True)
        best = documents[np.argsort(first)][:k]
        return ChosenPassages(columns[np.isin(owners, best)], copies, len(best) >= k)


def _columns(candidates: Candidates, row: int, columns: Rows) -> Candidates:
    """Candidates of one query in some columns."""
    evidence = {name: array[row][columns][None] for name, array in candidates.evidence.items()}
    keys, scores = candidates.keys[row][columns][None], candidates.scores[row][columns][None]
    return replace(candidates, keys=keys, scores=scores, evidence=evidence)


def _with_groups(result: SearchResult, view: View, row: int, candidates: Candidates) -> Candidates:
    """Score all passages of the documents among one query's candidates, and keep the best of each document."""
    # 1. all passages of these documents
    documents = np.unique(view.document_keys(candidates.keys[0]))
    keys_of = view.keys_of(view.ids(documents.tolist()))
    passages = [np.asarray(keys_of_document, np.int64) for keys_of_document in keys_of.values()]
    keys = np.sort(np.concatenate(passages or [documents]))
    # 2. their scores, as the search scored its candidates
    if len(keys) > len(documents):
        candidates = result.batch.method_scores(view, row, keys)
        if METHOD_SCORE in result.candidates.evidence:  # a score is a sum of evidence
            scored = result.evidence.score(view, row, candidates.keys[0], candidates.scores[0])
            candidates = replace(scored, evidence={**candidates.evidence, **scored.evidence})
    # 3. best first, and the first three of each document
    candidates = _columns(candidates, 0, np.lexsort((candidates.keys[0], -candidates.scores[0])))
    return _columns(candidates, 0, _first_of_each(view.document_keys(candidates.keys[0])))


def _first_of_each(documents: Keys) -> Rows:
    """Positions of the first ``PASSAGES_OF_A_DOCUMENT`` entries of each document, ascending."""
    counts: Counter[int] = Counter()
    positions = []
    for position, document in enumerate(documents.tolist()):
        counts[document] += 1
        if counts[document] <= PASSAGES_OF_A_DOCUMENT:
            positions.append(position)
    return np.array(positions, np.int64)


def _without_duplicates(view: View, keys: Keys, shares: Floats | None, *, near: bool) -> tuple[Rows, Duplicates]:
    """Return the places in ``keys`` of passages that equal no better one, and the keys of the copies of each.

    Texts are compared, never vectors, which title and headings move apart. Case and blanks aside, equal texts
    have equal shares of the query's words [n]: only passages whose share another one has are read. Near-identical ones
    may have any.
    """
    # 1. passages whose text another may have
    read = np.arange(len(keys))
    if shares is not None and not near:
        order = np.argsort(shares)
        equal = np.diff(shares[order]) <= SHARE_TOLERANCE
        read = np.sort(order[np.append(False, equal) | np.append(equal, False)])
    # 2. the place of the best passage of the same text, for each
    texts = [document.content.casefold().split() for document in view.documents(keys[read].tolist())]
    first: dict[tuple[str, ...], int] = {}
    places = _first_near(texts) if near else [first.setdefault(tuple(words), at) for at, words in enumerate(texts)]
    same_as = read[places]
    copies = Duplicates()
    for place, original in zip(read.tolist(), same_as.tolist(), strict=True):
        if place != original:
            copies.setdefault(int(keys[original]), []).append(int(keys[place]))
    return np.setdiff1d(np.arange(len(keys)), read[read != same_as]), copies


def _first_near(texts: Sequence[Sequence[str]]) -> list[int]:
    """Return for each text the place of the first one with which it shares most word trigrams, or its own.

    Two sets of which a share t of all elements is common have one in common among the first (1 - t) n + 1 of each in
    sorted order, so that few pairs are compared: of 100 trigrams and t = .9, the first eleven.
    """
    places, sets = list[int](), list[set[int]]()
    originals: dict[
        int, list[int]
    ] = {}  # by trigram: texts that repeat none before them, and have it among their first
    for place, words in enumerate(texts):
        # every three words in a row; all words of a shorter text
        trigrams = {hash(tuple(words[start : start + 3])) for start in range(max(1, len(words) - 2))}
        sets.append(trigrams)
        least = sorted(trigrams)[: len(trigrams) - math.ceil(NEAR_OVERLAP * len(trigrams) - 1e-9) + 1]
        similar = sorted({original for trigram in least for original in originals.get(trigram, ())})
        common = ((original, len(trigrams & sets[original])) for original in similar)
        near = (o for o, n in common if n >= NEAR_OVERLAP * (len(sets[o]) + len(trigrams) - n))
        places.append(next(near, place))
        if places[-1] == place:
            for trigram in least:
                originals.setdefault(trigram, []).append(place)
    return places


def fold(hits: Sequence[Hit], k: int) -> list[Hit]:
    """Attach the further passages of each document to its best hit, and return the ``k`` best documents."""
    groups: dict[str, list[Hit]] = {}
    for hit in hits:
        groups.setdefault(hit.id, []).append(hit)
    return [replace(first, others=tuple(others)) for first, *others in groups.values()][:k]
