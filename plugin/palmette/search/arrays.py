"""A view over arrays in memory, without an index: for reranking a handful of documents."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from palmette.search.block import Block
from palmette.search.bridge import execute
from palmette.search.engine import top_k
from palmette.search.exact import ExactEngine
from palmette.search.kernels import searchable
from palmette.search.listing import ListedPart, Listing
from palmette.search.lists import nearest_listed
from palmette.search.parts import PartRows, best_parted, rescored
from palmette.search.plan import Candidates, SearchPlan
from palmette.search.probe import Found, Keys, Parts, Probe
from palmette.types import Document

__all__ = ["ArrayView"]


class ArrayView:
    """Answers probes over given arrays; the key of a document is its row."""

    def __init__(self, arrays: Mapping[str, NDArray[np.generic]], documents: Sequence[Document] = ()) -> None:
        self.arrays = arrays
        self.given = documents
        self._keys: Keys = np.arange(len(next(iter(arrays.values()))), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._keys)

    def within(self, keys: Keys) -> Self:
        """The same arrays, of these rows alone (rising)."""
        narrowed = copy.copy(self)
        narrowed._keys = keys
        return narrowed

    def nearest(self, probe: Probe, k: int) -> Found:
        """The ``k`` best rows of every query."""
        if probe.lists is not None:
            block = Block(searchable(self.arrays[probe.array]), np.arange(len(self.arrays[probe.array])))
            listing = Listing(self.arrays[probe.lists.array])
            narrowed = None if len(self) == len(block.keys) else self._keys
            return nearest_listed([ListedPart(block, listing, narrowed)], probe.queries, probe.lists, k)
        data = searchable(self.arrays[probe.array], probe.fold)  # [N, d]
        rows = None if len(self) == len(data) else self._keys
        return top_k(
            [(Block(data, np.arange(len(data))), rows)], probe.queries, probe.metric, k, ExactEngine()
        )

    def nearest_part(self, parts: Parts, k: int) -> Found:
        """The ``k`` best rows of every query by their best part."""
        piece = self._piece(parts)
        return self.rescored(best_parted([piece._replace(rows=self._keys)], parts, k).keys, parts, k)

    def rescored(self, keys: Keys, parts: Parts, k: int) -> Found:
        """Some rows of every query [Q, n], ranked by their best part."""
        at = np.flatnonzero(keys >= 0)
        return rescored([(self._piece(parts)._replace(rows=keys.reshape(-1)[at]), at)], keys, parts, k)

    def _piece(self, parts: Parts) -> PartRows:
        data = self.arrays[parts.array]
        scales = np.empty((len(data), 0), np.float32) if parts.scales is None else self.arrays[parts.scales]
        return PartRows(np.arange(len(data)), data, np.asarray(scales, np.float32), None)

    def sizes(self, name: str) -> NDArray[np.int64]:
        """How many rows each list holds."""
        return Listing(self.arrays[name]).sizes(self._keys)

    def documents(self, keys: Sequence[int]) -> list[Document]:
        """The documents of these rows."""
        return [self.given[key] for key in keys]

    def ids(self, keys: Sequence[int]) -> list[str]:
        """The ids of these rows."""
        return [self.given[key].key for key in keys]

    def rows(self, array: str, keys: Sequence[int]) -> NDArray[np.generic]:
        """Rows of an array."""
        return self.array(array, keys)

    def list_sizes(self, array: str) -> NDArray[np.int64]:
        """Number of rows in each list."""
        return self.sizes(array)

    def candidates(self, plan: SearchPlan, k: int) -> Candidates:
        """The ``k`` best rows for every row of a plan."""
        return execute(self, plan, k)

    def array(self, name: str, keys: Sequence[int]) -> NDArray[np.generic]:
        """Rows of an array."""
        rows: NDArray[np.generic] = self.arrays[name][np.asarray(keys, np.int64)]
        return rows

    def key_of(self, id: str) -> int | None:
        """The row of a document."""
        return next((row for row in self._keys.tolist() if self.given[row].key == id), None)

    def keys(self) -> Keys:
        """All rows, rising."""
        return self._keys.copy()
