"""Which of the ranked passages a search shows: the best of each document, equal ones once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from palmette.arrays import Keys, Rows, unit_rows
from palmette.config import check_choice
from palmette.errors import ConfigError, shown
from palmette.index.overview import vector_array
from palmette.index.results import QueryBatch, SearchResult
from palmette.search.plan import Candidates, View, stack_rows
from palmette.types import Hit

GroupBy = Literal["document"]
Distinct = bool | Literal["near"]
Copies = dict[int, list[int]]
"""Key of a passage that is shown → keys of those of the same text."""
PASSAGES = 3
"""Passages of a document that a grouped search shows."""
RANKED = 50
"""Passages that are ranked at least, to find enough documents or distinct passages among them."""
ALIKE = 0.9
"""Cosine from which on the texts of two passages are compared."""
NEAR = 0.8
"""Share of three words in a row that near-identical passages have in common."""


@dataclass(frozen=True)
class Shown:
    """Which of the ranked passages are shown."""

    group_by: GroupBy | None = None
    distinct: Distinct = False

    @classmethod
    def of(cls, group_by: Any, distinct: Any) -> Shown:
        """Check the options of a search."""
        if group_by is not None:
            check_choice("group_by", group_by, get_args(GroupBy))
        if not isinstance(distinct, bool) and distinct != "near":
            raise ConfigError(f"distinct must be True, False or 'near', got {shown(distinct)}")
        return cls(group_by, distinct)

    def __bool__(self) -> bool:
        return bool(self.group_by or self.distinct)

    def search(self, batch: QueryBatch, view: View, k: int, measure: Any) -> tuple[SearchResult, list[Copies]]:
        """Search until there are ``k`` documents, or distinct passages; copies are listed by the key that is shown.

        Of the documents that are found all passages are scored, so that a group has its best ones, wherever they rank.
        """
        most = max(RANKED, 4 * k)
        while True:
            result = batch.search(view, most, measure)
            chosen = [self._chosen(result, view, row, k) for row in range(len(result.found.keys))]
            if most >= len(view) or all(
                enough or (row >= 0).sum() < most for (_, _, enough), row in zip(chosen, result.found.keys, strict=True)
            ):
                break
            most *= 4
        rows = []
        for row, (columns, _, _) in enumerate(chosen):
            found = _columns(result.found, row, columns)
            if self.group_by and batch.calibration is not None and len(columns):
                found = _with_groups(batch, result, view, row, found)
            rows.append((found.keys[0], found.scores[0], {name: array[0] for name, array in found.evidence.items()}))
        return replace(result, found=stack_rows(rows, result.found)), [copies for _, copies, _ in chosen]

    def _chosen(self, result: SearchResult, view: View, row: int, k: int) -> tuple[Rows, Copies, bool]:
        """Return columns to show, best first, the copies of their passages, and whether there are ``k``."""
        keys = result.found.keys[row]
        columns, copies = np.flatnonzero(keys >= 0), Copies()
        if self.distinct and len(columns) > 1:
            columns, copies = _without_copies(result, view, keys, columns, near=self.distinct == "near")
        if not self.group_by:
            return columns[:k], copies, len(columns) >= k
        documents = view.document_keys(keys[columns])
        names, first = np.unique(documents, return_index=True)
        best = names[np.argsort(first)][:k]
        return columns[np.isin(documents, best)], copies, len(best) >= k


def _columns(found: Candidates, row: int, columns: Rows) -> Candidates:
    """Candidates of one query in some columns."""
    evidence = {name: array[row][columns][None] for name, array in found.evidence.items()}
    keys, scores = found.keys[row][columns][None], found.scores[row][columns][None]
    return replace(found, keys=keys, scores=scores, evidence=evidence)


def _with_groups(batch: QueryBatch, result: SearchResult, view: View, row: int, found: Candidates) -> Candidates:
    """Score all passages of the documents that were found, and keep the best of each."""
    documents = np.unique(view.document_keys(found.keys[0]))
    passages = view.keys_of(view.ids(documents.tolist()))
    keys = np.sort(np.concatenate([np.asarray(some, np.int64) for some in passages.values()] or [documents]))
    if len(keys) > len(documents):
        scoring = batch.model.scoring_options(batch.options)
        plan = batch.model.plan(batch.arrays, len(keys), scoring, view).one_query(row).among(keys)
        found = batch.model.execute(view, plan, len(keys), scoring).one_query(0)
        if batch.sums(result.evidence):
            scored = result.evidence.score(view, row, found.keys[0], found.scores[0])
            found = replace(scored, evidence={**found.evidence, **scored.evidence})
    found = _columns(found, 0, np.lexsort((found.keys[0], -found.scores[0])))
    return _columns(found, 0, _best_of_each(view.document_keys(found.keys[0])))


def _best_of_each(documents: Keys) -> Rows:
    """Return the first places of each document, in order."""
    seen: Counter[int] = Counter()
    places = []
    for place, document in enumerate(documents.tolist()):
        seen[document] += 1
        places += [place] if seen[document] <= PASSAGES else []
    return np.array(places, np.int64)


def _without_copies(result: SearchResult, view: View, keys: Keys, columns: Rows, *, near: bool) -> tuple[Rows, Copies]:
    """Return the columns of passages that equal none before them, and the keys of the copies of each."""
    spec = vector_array(result.batch.model)
    vectors = unit_rows(np.asarray(view.rows(spec.name, keys[columns].tolist()), np.float32))
    alike = np.triu(vectors @ vectors.T >= ALIKE, 1)
    paired = np.flatnonzero(alike.any(0) | alike.any(1))
    documents = view.documents(keys[columns[paired]].tolist())
    words = {place: document.content.split() for place, document in zip(paired.tolist(), documents, strict=True)}
    kept, copies = list[int](), Copies()
    for place in range(len(columns)):
        same = (one for one in kept if alike[one, place] and _same(words[one], words[place], near=near))
        if (original := next(same, None)) is None:
            kept.append(place)
        else:
            copies.setdefault(int(keys[columns[original]]), []).append(int(keys[columns[place]]))
    return columns[kept], copies


def _same(a: Sequence[str], b: Sequence[str], *, near: bool) -> bool:
    """Whether two texts have the same words, or, where ``near``, most of them in the same order."""
    if a == b or not near:
        return a == b
    one, other = ({tuple(words[at : at + 3]) for at in range(max(1, len(words) - 2))} for words in (a, b))
    return len(one & other) >= NEAR * len(one | other)


def fold(hits: Sequence[Hit], k: int) -> list[Hit]:
    """Put the further passages of each document under its best one."""
    groups: dict[str, list[Hit]] = {}
    for hit in hits:
        groups.setdefault(hit.id, []).append(hit)
    return [replace(first, others=tuple(others)) for first, *others in groups.values()][:k]
