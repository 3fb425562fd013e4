"""Selection among the ranked passages of a search: the best passages of each document, or each text once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from palmette.arrays import Keys, Rows, unit_rows
from palmette.config import check_choice
from palmette.errors import ConfigError, shown
from palmette.index.overview import vector_array
from palmette.index.results import FindScales, QueryBatch, SearchResult
from palmette.search.plan import Candidates, stack_rows
from palmette.store.protocols import View
from palmette.types import Hit

GroupBy = Literal["document"]
Distinct = bool | Literal["near"]
Duplicates = dict[int, list[int]]
"""Keys of the passages of equal text by the key of the one that is returned."""
PASSAGES = 3
"""Largest number of passages per document in a grouped search."""
RANKED = 50
"""Smallest number of passages to rank, so that enough documents or distinct passages are among them."""
CANDIDATE_COSINE = 0.9
"""Least cosine of two passages whose texts are compared."""
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
        ranked = max(RANKED, 4 * k)
        while True:
            result = batch.search(view, ranked, measure)
            rows = range(len(result.candidates.keys))
            chosen = [self._choose(result, view, row, k) for row in rows]
            exhausted = (result.candidates.keys >= 0).sum(axis=1) < ranked
            if ranked >= len(view) or all(chosen[row].enough or exhausted[row] for row in rows):
                break
            ranked *= 4
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
        keys = result.candidates.keys[row]
        columns, copies = np.flatnonzero(keys >= 0), Duplicates()
        if self.distinct and len(columns) > 1:
            columns, copies = _without_duplicates(result, view, keys, columns, near=self.distinct == "near")
        if not self.group_by:
            return ChosenPassages(columns[:k], copies, len(columns) >= k)
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
    batch = result.batch
    documents = np.unique(view.document_keys(candidates.keys[0]))
    keys_of = view.keys_of(view.ids(documents.tolist()))
    passages = [np.asarray(keys_of_document, np.int64) for keys_of_document in keys_of.values()]
    keys = np.sort(np.concatenate(passages or [documents]))
    if len(keys) > len(documents):
        scoring = batch.model.scoring_options(batch.options)
        plan = batch.model.plan(batch.arrays, len(keys), scoring, view).one_query(row).among(keys)
        candidates = batch.model.execute(view, plan, len(keys), scoring).one_query(0)
        if batch.sums(result.evidence):
            scored = result.evidence.score(view, row, candidates.keys[0], candidates.scores[0])
            candidates = replace(scored, evidence={**candidates.evidence, **scored.evidence})
    candidates = _columns(candidates, 0, np.lexsort((candidates.keys[0], -candidates.scores[0])))
    return _columns(candidates, 0, _first_of_each(view.document_keys(candidates.keys[0])))


def _first_of_each(documents: Keys) -> Rows:
    """Positions of the first ``PASSAGES`` entries of each document, ascending."""
    counts: Counter[int] = Counter()
    positions = []
    for position, document in enumerate(documents.tolist()):
        counts[document] += 1
        if counts[document] <= PASSAGES:
            positions.append(position)
    return np.array(positions, np.int64)


def _without_duplicates(
    result: SearchResult, view: View, keys: Keys, columns: Rows, *, near: bool
) -> tuple[Rows, Duplicates]:
    """Return the columns of passages that equal no better one, and the keys of the copies of each.

    Only passages whose vectors are close have their texts read and compared.
    """
    spec = vector_array(result.batch.model)
    vectors = unit_rows(np.asarray(view.rows(spec.name, keys[columns].tolist()), np.float32))
    close = np.triu(vectors @ vectors.T >= CANDIDATE_COSINE, 1)  # [better passage, worse passage]
    compared = np.flatnonzero(close.any(0) | close.any(1))
    documents = view.documents(keys[columns[compared]].tolist())
    words = {rank: document.content.split() for rank, document in zip(compared.tolist(), documents, strict=True)}
    originals, copies = list[int](), Duplicates()
    for rank in range(len(columns)):
        equal = (better for better in originals if close[better, rank] and _same(words[better], words[rank], near=near))
        original = next(equal, None)
        if original is None:
            originals.append(rank)
        else:
            copies.setdefault(int(keys[columns[original]]), []).append(int(keys[columns[rank]]))
    return columns[originals], copies


def _same(words: Sequence[str], others: Sequence[str], *, near: bool) -> bool:
    """Return True if two texts have the same words or, where ``near``, most of their trigrams in common."""
    if words == others or not near:
        return words == others
    trigrams, other_trigrams = _trigrams(words), _trigrams(others)
    return len(trigrams & other_trigrams) >= NEAR_OVERLAP * len(trigrams | other_trigrams)


def _trigrams(words: Sequence[str]) -> set[tuple[str, ...]]:
    """Every three words in a row; all words of a shorter text."""
    return {tuple(words[start : start + 3]) for start in range(max(1, len(words) - 2))}


def fold(hits: Sequence[Hit], k: int) -> list[Hit]:
    """Attach the further passages of each document to its best hit, and return the ``k`` best documents."""
    groups: dict[str, list[Hit]] = {}
    for hit in hits:
        groups.setdefault(hit.id, []).append(hit)
    return [replace(first, others=tuple(others)) for first, *others in groups.values()][:k]
