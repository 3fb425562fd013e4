"""What engines are and what they search."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from numpy.typing import NDArray

from palmette.search import kernels
from palmette.search.kernels import Rows
from palmette.search.probe import Floats, Keys, Metric

__all__ = ["Block", "Engine", "Hits", "Proposals"]

_T = TypeVar("_T")


class Block:
    """Rows to search with their keys (rising), and what engines keep beside them.

    Attributes:
        data: [N, d] float32, or ``uint16`` fractions (see :mod:`palmette.search.fixed`).
        asked: How many queries came by: what is built for speed must first be worth it.
    """

    def __init__(self, data: NDArray[Any], keys: Keys) -> None:
        self.data, self.keys, self.asked = data.view(), keys, 0
        self.data.flags.writeable = False
        self._kept: dict[object, Any] = {}
        self._lock = threading.RLock()

    def keep(self, name: object, build: Callable[[], _T]) -> _T:
        """What ``build`` returned the first time: norms, or an engine's own index of this block."""
        with self._lock:
            if name not in self._kept:
                self._kept[name] = build()
            value: _T = self._kept[name]
            return value

    def scale(self, metric: Metric) -> float:
        """The largest norm of a row, which bounds rounding errors."""
        return self.keep(("scale", metric), lambda: kernels.largest_norm(self.data, metric))


class Proposals(NamedTuple):
    """(query number, row number), one pair per proposed row, and the work it took."""

    of: Rows
    rows: Rows
    compared: int
    """Rows compared in full, over all queries."""
    read: int
    """Bytes read for them, and for what spared the others."""


class Hits(NamedTuple):
    """An engine's own neighbours, best first: rows and scores [Q, k], and the work; row −1 where it found fewer."""

    rows: Rows
    scores: Floats
    compared: int


class Engine(Protocol):
    """Proposes, for each query, rows that surely include the block's ``k`` best under exact scores.

    One that is ``approximate`` proposes at least ``k`` (all there are, if fewer), and may miss some of the best.
    """

    approximate: bool

    def propose(self, block: Block, rows: Rows | None, queries: Floats, metric: Metric, k: int) -> Proposals:
        """Search ``rows`` (rising; ``None`` for all of them)."""
        ...

    def hits(self, block: Block, rows: Rows | None, queries: Floats, metric: Metric, k: int) -> Hits | None:
        """What one that is ``approximate`` finds at first; ``None`` where only :meth:`propose` will do."""
        ...
