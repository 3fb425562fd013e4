"""Searching column by column: what each row surely lacks of a query, heaviest columns first.

Σ min(q, x) = Σ q − Σ (q − x)⁺, and every term of the last sum counts, so a few columns bound a score from above.
Those where the query is heavy say most: of a soft tree's columns about a third, at one byte a number, leaves some
percent of the rows to be compared in full; of a sharp tree's, a few do. Values are rounded up: the bound holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.search.block import Proposals
from palmette.search.fixed import ONE
from palmette.search.kernels import Rows
from palmette.search.probe import Floats
from palmette.search.threads import get_threads, run_in_threads

__all__ = ["Columns"]

_TILE = 8192  # rows whose partial sums stay in the L1 cache
_ROOM = 4  # tiles of results kept before they are looked through
_HIGHEST = 255 * 256  # parts: fractions of almost two
_CHUNK_COST, _ROW_COST, _BYTE_COST = 40.0, 0.05, 5e-5  # µs to narrow a tile further, or to compare a row instead


@dataclass(frozen=True)
class Columns:
    """A block's numbers by column, a byte each: ``code · step`` is the least such number not below the value.

    Attributes:
        data: The rows themselves, [N, C] ``uint16`` in parts or float32.
        codes: [tiles, C, rows per tile].
        steps: [C], in parts of 2⁻¹⁵.
    """

    data: NDArray[Any]
    codes: NDArray[np.uint8]
    steps: NDArray[np.uint16]

    @classmethod
    def build(cls, data: NDArray[Any]) -> Columns | None:
        """From rows of fractions; ``None`` where they are none (negative, or about two and more)."""
        from palmette.search import loops

        scale = np.float32(1 if data.dtype == np.uint16 else ONE)
        low, high = loops.ranges(data)
        highest = np.ceil(high * scale).astype(np.float64)  # [C]
        if low < 0 or highest.max() > _HIGHEST:
            return None
        steps = np.maximum(1, np.ceil(highest / 255)).astype(np.uint16)
        tiles = -(-len(data) // _TILE)
        size = -(-len(data) // (tiles * 64)) * 64
        tiles = -(-len(data) // size)
        codes = np.empty((tiles, data.shape[1], size), np.uint8)

        def fill(tile: int) -> None:
            loops.encode(data[tile * size : (tile + 1) * size], scale, steps, codes[tile])

        run_in_threads([partial(fill, tile) for tile in range(tiles)])
        return cls(data, codes, steps)

    def search(self, rows: Rows | None, queries: NDArray[Any], margin: Floats, k: int) -> Proposals:
        """Rows whose score is at most ``margin`` [Q] under the k-th best: queries [Q, C] of the data's type."""
        asking, tiles = _Asking.of(queries, margin), len(self.codes)
        edges = np.linspace(0, tiles, min(get_threads(), tiles) + 1).astype(int).tolist()
        spans = zip(edges, edges[1:], strict=False)
        found = run_in_threads([partial(self._search, rows, asking, k, first, last) for first, last in spans])
        of, proposed = (np.concatenate(parts) for parts in zip(*(f[:2] for f in found), strict=True))
        return Proposals(of, proposed, sum(f.compared for f in found), sum(f.read for f in found))

    def _search(self, rows: Rows | None, asking: _Asking, k: int, first: int, last: int) -> Proposals:
        """One thread's tiles."""
        from palmette.search import loops

        size, count = self.codes.shape[2], len(asking.queries)
        heaps = np.full((count, k), -np.inf)
        room = _ROOM * size + k
        out = (np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room))
        place, work, pieces = np.array([first, 0]), np.zeros(2, np.int64), []
        while place[0] < last:
            filled = loops.search(
                (self.codes, self.steps, self.data),
                (np.empty(0, np.int64) if rows is None else rows, rows is None),
                (asking.queries, asking.order, asking.parts, asking.most, asking.margin),
                asking.unit,
                _CHUNK_COST / (_ROW_COST + _BYTE_COST * self.data[0].nbytes),
                place,
                last,
                heaps,
                out,
                work,
            )
            of, scores = out[0][:filled], out[2][:filled]
            stays = scores >= heaps[of, 0] - asking.margin[of]
            pieces.append((of[stays], out[1][:filled][stays], scores[stays]))
        of, proposed, scores = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        stays = scores >= heaps[of, 0] - asking.margin[of]
        return Proposals(of[stays], proposed[stays], int(work[0]), int(work[1]))


class _Asking(NamedTuple):
    """Queries as the loop wants them (Q queries, C columns)."""

    queries: NDArray[Any]
    """[Q, C] in the data's numbers."""
    order: NDArray[np.int32]
    """[Q, C] columns, heaviest first."""
    parts: NDArray[np.uint16]
    """[Q, C] the query in that order, in whole parts, rounded down."""
    most: NDArray[np.float64]
    """[Q] Σ q in parts: what a row that lacks nothing scores."""
    margin: NDArray[np.float64]
    """[Q] how far apart two scores may be that are really equal."""
    unit: float
    """What 1 in the data's numbers stands for."""

    @classmethod
    def of(cls, queries: NDArray[Any], margin: Floats) -> _Asking:
        fixed = queries.dtype == np.uint16
        parts = queries if fixed else np.floor(queries * np.float32(ONE)).astype(np.uint16)
        order = np.argsort(-parts.astype(np.int32), axis=1, kind="stable").astype(np.int32)
        most = queries.sum(axis=1, dtype=np.float64) * (1 if fixed else ONE) + (0 if fixed else 1e-3)
        heavy = np.take_along_axis(parts, order, axis=1)
        return cls(queries, order, heavy, most, margin.astype(np.float64), 1 / ONE if fixed else 1.0)
