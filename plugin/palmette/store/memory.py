"""Executing a SearchPlan over rows of arrays, and a View of arrays in memory, for reranking and calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Keys, Ragged, Rows
from palmette.errors import InputError
from palmette.search.flat import Block, ExactEngine, Memo, PartBlock, as_block, rescore_parts, top_by_part, top_k
from palmette.search.lists import ListBlock, ListOrder, top_k_in_lists
from palmette.search.plan import Candidates, Score, SearchPlan, WordMatches
from palmette.store.protocols import StoredDocument, View
from palmette.types import Document


class ArraySegment(Memo):
    """Documents whose arrays lie together, by ascending key, with what searches derive from them."""

    def __init__(self, keys: Keys, arrays: Mapping[str, Any]) -> None:
        super().__init__()
        self.keys, self.arrays = keys, arrays
        self._first, self._stop = (int(keys[0]), int(keys[-1]) + 1) if len(keys) else (0, 0)
        self._dense = self._stop - self._first == len(keys)

    def rows(self, keys: Keys) -> Rows:
        """Row numbers of those keys that lie here (``keys`` rises)."""
        low, high = np.searchsorted(keys, (self._first, self._stop))
        own = keys[low:high]
        if self._dense:
            return own - self._first
        rows = np.searchsorted(self.keys, own)
        return rows[self.keys[rows] == own] if len(rows) else rows

    def block(self, score: Score) -> Block:
        """Stored array of a score as the kernels need it, with its columns summed."""
        return self.memo((score.array, score.fold), lambda: as_block(self.arrays[score.array], self.keys, score.fold))

    def part_block(self, score: Score) -> PartBlock:
        """Stored array of several vectors per document, with their factors."""
        scales = None if score.scales is None else self.arrays[score.scales]
        return PartBlock(self.keys, self.arrays[score.array], scales)

    def list_order(self, name: str) -> ListOrder:
        """Inverted lists of a stored array of list numbers: the rows of each list."""
        return self.memo(name, lambda: ListOrder(self.arrays[name]))


def execute(
    plan: SearchPlan, k: int, segments: Sequence[tuple[ArraySegment, Rows | None]], engine: ExactEngine
) -> Candidates:
    """Find the ``k`` best documents of every row of a plan: [Q, min(k, number of rows)].

    ``segments`` of ascending keys come with the rows to search (ascending; ``None`` for all): ``plan.only`` is applied
    already.
    """
    first, second, lists, total = plan.first, plan.rescore, plan.lists, 0
    for segment, rows in segments:
        total += len(segment.keys) if rows is None else len(rows)
    depth = max(1, min(k if second is None else max(k, plan.fetch or k), total))
    # 1. Query vectors and factors fit the shape of the stored arrays.
    for score in filter(None, (first, second) if segments else ()):
        arrays, width = segments[0][0].arrays, score.queries.shape[1]
        shape = arrays[score.array].shape[1:]
        expected = (width * score.fold,) if score.part_weights is None else (len(score.part_weights), width)
        if shape != expected:
            raise InputError(
                f"array {score.array!r} holds {shape} numbers per document; queries of {width} numbers do not fit: "
                f"they compare with {expected}"
            )
        if score.scales is not None and arrays[score.scales].shape[1:] != shape[:-1]:
            raise InputError(f"array {score.scales!r} holds no number for each of the {shape[0]} vectors of a document")
    # 2. Candidates by the best of several vectors, within lists, or by one vector.
    if first.part_weights is not None:
        candidates = top_by_part([(segment.part_block(first), rows) for segment, rows in segments], first, depth)
    elif lists is not None:
        listed = [ListBlock(s.block(first), s.list_order(lists.array), rows) for s, rows in segments]
        candidates = top_k_in_lists(listed, first.queries, lists.chosen, depth)
    else:
        blocks = list[tuple[Block, Rows | None]]()
        for segment, rows in segments:
            blocks.append((segment.block(first), rows))
        candidates = top_k(blocks, first.queries, first.metric, depth, engine)
    if second is None:
        return candidates
    parts = [segment.part_block(second) for segment, _ in segments]
    return rescore_parts(parts, second, candidates, k, plan.share)


class ArrayView(View):
    """View of arrays in memory; a document's key is its row."""

    def __init__(self, arrays: Mapping[str, Any], documents: Sequence[Document] = ()) -> None:
        self.arrays, self.given = arrays, documents
        self._keys: Keys = np.arange(len(next(iter(arrays.values()))), dtype=np.int64)
        self._segment = ArraySegment(self._keys, arrays)

    def __len__(self) -> int:
        return len(self._keys)

    def candidates(self, plan: SearchPlan, k: int) -> Candidates:
        """Find the ``k`` best rows for every row of the plan."""
        return execute(plan, k, [(self._segment, plan.only)], ExactEngine())

    def words(self, text: str, k: int, only: Keys | None = None) -> WordMatches:
        """Raise: arrays have no words."""
        raise InputError("arrays in memory have no words: build an index to search by words")

    def word_parts(self, text: str, key: int) -> Floats:
        """Raise: arrays have no words."""
        raise InputError("arrays in memory have no words: build an index to search by words")

    def rows(self, array: str, keys: Sequence[int]) -> NDArray[np.generic]:
        """Rows of an array: [n, *shape]."""
        rows: NDArray[np.generic] = self.arrays[array][np.asarray(keys, np.int64)]
        return rows

    def ragged(self, array: str, keys: Sequence[int] | Keys) -> Ragged:
        """Rows of a ragged array, of n documents."""
        rows: Ragged = self.arrays[array].take(np.asarray(keys, np.int64))
        return rows

    def list_sizes(self, array: str) -> Rows:
        """Number of rows in each list: [L]."""
        return self._segment.list_order(array).all_sizes

    def stored(self, keys: Sequence[int]) -> list[StoredDocument]:
        """Documents of these rows, one passage each."""
        return [StoredDocument.whole(self.given[key]) for key in keys]

    def keys_of(self, ids: Sequence[str]) -> dict[str, Sequence[int]]:
        """Rows of some documents."""
        rows = {document.key: [row] for row, document in enumerate(self.given)}
        return {id: rows[id] for id in ids if id in rows}

    def keys(self) -> Keys:
        """All rows, ascending."""
        return self._keys.copy()
