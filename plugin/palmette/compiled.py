"""Loops compiled by numba, or their NumPy versions in a process that answers one question and ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

_compiles = True


def compiles_loops() -> bool:
    """Return whether loops are compiled: numba takes .6 seconds to import, and is faster from the second search on."""
    return _compiles


@contextmanager
def without_compiled_loops() -> Iterator[None]:
    """Search by NumPy alone, in all threads of this process: the results are the same, bit for bit.

    Overlaps, lists and several vectors per document, whose methods need torch anyway, stay compiled.
    """
    global _compiles
    before, _compiles = _compiles, False
    try:
        yield
    finally:
        _compiles = before
