"""Rows in numbered lists, and the bytes that are read on where a list is visited."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.errors import InputError
from palmette.search.block import Block
from palmette.search.fixed import ONE
from palmette.search.kernels import Rows
from palmette.search.probe import Floats

__all__ = ["Codes", "ListedPart", "Listing", "added", "unit_of"]

Allowed = NDArray[np.bool_]


class Codes(NamedTuple):
    """Rows told roughly, a byte for each number: a quarter of what there is to read, and a bound on what that loses.

    Attributes:
        codes: [n·l, d] int8.
        steps: [n·l] what a 1 in them stands for.
        errors: [n·l] how far a product with a unit vector can be off, rounding included.
    """

    codes: NDArray[np.int8]
    steps: Floats
    errors: Floats

    @classmethod
    def of(cls, data: NDArray[Any], rows: NDArray[np.int32]) -> Codes:
        """Of some rows, in their order."""
        from palmette.search import list_loops

        n = len(rows)
        made = cls(np.empty((n, data.shape[1]), np.int8), np.empty(n, np.float32), np.empty(n, np.float32))
        list_loops.encode(data, unit_of(data), rows, *made)
        return made


def unit_of(data: NDArray[Any]) -> np.float32:
    """What a stored 1 stands for."""
    return np.float32(1 / ONE if data.dtype == np.uint16 else 1)


class Listing:
    """Which rows lie in which lists (n rows, l lists each, L lists).

    Attributes:
        lists: [n, l] list numbers, each once in a row.
        rows: [n·l] rows in the order of their lists.
        starts: [L + 1] where each list begins among them.
    """

    def __init__(self, lists: NDArray[Any]) -> None:
        if lists.ndim != 2 or lists.dtype.kind not in "iu":
            raise InputError(
                f"lists must be whole numbers, [n, l], got {lists.shape} of {lists.dtype}: store them as int32"
            )
        self.lists = lists
        flat = np.asarray(lists, np.int64).ravel()
        self.rows = (np.argsort(flat, kind="stable") // lists.shape[1]).astype(np.int32)
        self.starts = np.concatenate([[0], np.cumsum(np.bincount(flat))]).astype(np.int64)
        self._last: tuple[Rows | None, Allowed, Rows] | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def whole(self) -> Rows:
        """[L] documents of each list."""
        return np.diff(self.starts)

    def sizes(self, rows: Rows | None) -> Rows:
        """[L] how many of ``rows`` (``None`` for all) each list holds."""
        return self.whole if rows is None else self._narrowed(rows)[2]

    def allowed(self, rows: Rows) -> Allowed:
        """[n] which rows are among ``rows``."""
        return self._narrowed(rows)[1]

    def _narrowed(self, rows: Rows) -> tuple[Rows | None, Allowed, Rows]:
        """Remembered for the last rows: after a deletion they stay the same from search to search."""
        last = self._last
        if last is None or last[0] is not rows:
            allowed = np.zeros(len(self.lists), np.bool_)
            allowed[rows] = True
            sizes = np.bincount(np.asarray(self.lists[rows], np.int64).ravel(), minlength=len(self))
            last = self._last = (rows, allowed, sizes)
        return last

    def codes(self, block: Block) -> Codes:
        """A block's rows as bytes in the order of the lists, made once."""
        return block.keep(("in lists", self), lambda: Codes.of(block.data, self.rows))


def added(some: Rows, more: Rows) -> Rows:
    """Sizes of lists together; either may know lists that the other does not."""
    longer, shorter = (some, more) if len(some) >= len(more) else (more, some)
    total = longer.copy()
    total[: len(shorter)] += shorter
    return total


class ListedPart(NamedTuple):
    """Rows to search: a block, its lists, and which of its rows count (rising; ``None`` for all)."""

    block: Block
    listing: Listing
    rows: Rows | None
