"""Vectors as int8 codes: cheap integer products with an error bound select the few rows to compare in full.

A vector x is stored as x̂ = step · codes, with codes in −127 … 127; a query q likewise. Then

    |q·x − q̂·x̂| ≤ ‖q‖ ‖x − x̂‖ + ‖q − q̂‖ ‖x̂‖ = off

Each product gives a lower bound q̂·x̂ − off and an upper bound q̂·x̂ + off. A row is left out only if its upper bound is
below the k-th best lower bound, so the shortlist certainly contains the k best:

    row        a          b          c           k = 1: the best lower bound is .68 (a)
    bounds   .68–.72    .66–.70    .55–.59       c is out; a and b are compared in full

Among 100,000 sentence vectors 20 to 30 rows remain for k = 10. Few queries are multiplied by a compiled loop, many by
a matrix product: of float32 by NumPy, or of int8 where torch is loaded and its product is faster on the processor,
which ``matrix_product`` measures once. The results are equal integers either way.

Letters: N rows, C columns, Q queries, n rows of a tile, m pairs of a query and a row.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from palmette.arrays import Floats, Rows, as_floats
from palmette.machine.threads import get_threads, run_in_threads

Bytes = NDArray[np.int8]
"""Codes of vectors."""

_TILE = 4096
"""Smallest number of rows multiplied at a time."""
_PRODUCTS = 1 << 17
"""Products computed at a time: with fewer queries, more rows."""
_PIECE = 1 << 19  # numbers encoded at once
_WIDE = 16  # columns below which torch is not used: some versions mistake the layout of one column
_EXACT = 1024  # columns whose int8 products add up to less than 2^24, which float32 holds exactly
_CACHED = 512  # rows multiplied at once as float32
_DENSE = 0.5  # share of a run's rows above which all of the run are multiplied
_WORTH_A_THREAD = 1 << 23  # multiplications that make a second thread worth it


class Codes(NamedTuple):
    """Rows as int8 codes, with bounds of their error."""

    numbers: Bytes
    """[N, C]"""
    steps: Floats
    """[N] value of code 1; 0 for rows too small or too large to encode."""
    errors: Floats
    """[N] bound of ‖x − x̂‖, with room for the rounding of scores to float32; ∞ for rows that may overflow."""
    lengths: Floats
    """[N] bound of ‖x̂‖."""

    @classmethod
    def encode(cls, data: NDArray[Any], rows: NDArray[Any] | None = None) -> Codes:
        """Encode ``rows`` of ``data`` [N, C] (``None`` for all), with one step per row."""
        from palmette.search import kernels

        count, width = len(data) if rows is None else len(rows), data.shape[1]
        codes = cls(np.empty((count, width), np.int8), *(np.empty(count, np.float32) for _ in range(3)))

        def encode(start: int, stop: int) -> None:
            chosen = slice(start, stop) if rows is None else rows[start:stop]
            kernels.encode(np.ascontiguousarray(as_floats(data[chosen])), *(part[start:stop] for part in codes))

        edges = [*range(0, count, max(1, _PIECE // max(1, width))), count]
        run_in_threads([partial(encode, a, b) for a, b in pairwise(edges)])
        return codes

    def shortlist(self, rows: Rows | None, queries: QueryCodes, k: int) -> tuple[Rows, Rows]:
        """Select pairs (query, row) that include the ``k`` best of ``rows`` (ascending; ``None`` for all) per query."""
        count, width = len(self.numbers) if rows is None else len(rows), self.numbers.shape[1]
        threads = 1
        if one_by_one(len(queries.numbers)):  # torch has its own threads
            threads = min(get_threads(), count * width * len(queries.numbers) // _WORTH_A_THREAD + 1)
        edges = np.linspace(0, count, threads + 1).astype(int).tolist()
        shortlists = run_in_threads([partial(self._scan, rows, queries, k, a, b) for a, b in pairwise(edges)])
        of, near = (np.concatenate(parts) for parts in zip(*shortlists, strict=True))
        return of, near

    def _scan(self, rows: Rows | None, queries: QueryCodes, k: int, start: int, stop: int) -> tuple[Rows, Rows]:
        """Select pairs among the rows of one thread."""
        from palmette.search import kernels

        count, room = len(queries.numbers), 1024 + 4 * k * len(queries.numbers)
        best = np.full((count, k), -np.inf)  # [Q, k] heaps of lower bounds
        survivors: tuple[Any, ...] = (0, np.empty((2, room), np.int64), np.empty(room))  # count, pairs, upper bounds
        step, singly = max(_TILE, _PRODUCTS // count), one_by_one(count)
        products = np.empty((count, min(step, stop - start)), np.int32)
        wide = queries.numbers.astype(np.int16)  # saves a conversion per product
        for low in range(start, stop, step):
            tile = slice(low, min(low + step, stop))
            places = np.arange(tile.start, tile.stop) if rows is None else rows[tile]
            here = tile if rows is None else places
            if singly:
                block_products = products[:, : len(places)]
                kernels.multiply(self.numbers, places, wide, block_products)
            else:  # where most rows of a run are asked for, all of the run are multiplied
                first, span = int(places[0]), int(places[-1]) - int(places[0]) + 1
                dense = len(places) >= _DENSE * span
                block = self.numbers[first : first + span] if dense else self.numbers[places]
                block_products = integer_products(queries.numbers, block)
                if dense and span != len(places):
                    block_products = block_products[:, places - first]
            bounds = self.steps[here], self.errors[here], self.lengths[here]
            survivors = kernels.keep(block_products, places, bounds, queries[1:], best, survivors)
        filled, pairs, upper = survivors
        of, near = pairs[:, :filled]
        survives = ~(upper[:filled] < best[of, 0])
        return of[survives], near[survives]


class QueryCodes(NamedTuple):
    """Queries as int8 codes, with their error."""

    numbers: Bytes
    """[Q, C]"""
    steps: NDArray[np.float64]
    """[Q] value of code 1."""
    errors: NDArray[np.float64]
    """[Q] ‖q − q̂‖"""
    lengths: NDArray[np.float64]
    """[Q] ‖q‖"""

    @classmethod
    def encode(cls, queries: Floats) -> QueryCodes:
        """Encode queries [Q, C]."""
        exact = queries.astype(np.float64)
        steps = np.abs(exact).max(axis=1, initial=0) / 127
        numbers = np.rint(exact / np.where(steps > 0, steps, 1)[:, None])
        errors = np.linalg.norm(exact - steps[:, None] * numbers, axis=1)
        return cls(numbers.astype(np.int8), steps, errors, np.linalg.norm(exact, axis=1))

    def one(self, query: int) -> QueryCodes:
        """Return one query."""
        at = slice(query, query + 1)
        return QueryCodes(self.numbers[at], self.steps[at], self.errors[at], self.lengths[at])


def integer_products(queries: Bytes, rows: Bytes) -> NDArray[np.int32]:
    """Multiply int8 queries [Q, C] and rows [n, C] exactly: [Q, n]."""
    if queries.shape[1] >= _WIDE:
        return matrix_product()(queries, rows)
    from palmette.search import kernels

    products = np.empty((len(queries), len(rows)), np.int32)
    kernels.multiply(rows, np.arange(len(rows)), queries, products)
    return products


def product_of_bytes(a: Bytes, b: Bytes) -> NDArray[np.int32]:
    """Multiply as int8 by torch: fast on processors with integer dot products."""
    import torch

    products: NDArray[np.int32] = torch._int_mm(torch.from_numpy(a), torch.from_numpy(b).t()).numpy()
    return products


def product_of_floats(a: Bytes, b: Bytes) -> NDArray[np.int32]:
    """Multiply as float32, in blocks that stay in the cache and are narrow enough for exact sums."""
    products = np.zeros((len(a), len(b)), np.int32)
    for first in range(0, a.shape[1], _EXACT):
        left, right = a[:, first : first + _EXACT].astype(np.float32), b[:, first : first + _EXACT]
        for row in range(0, len(b), _CACHED):
            product = left @ right[row : row + _CACHED].astype(np.float32).T
            products[:, row : row + _CACHED] += product.astype(np.int32)
    return products


def matrix_product() -> Callable[[Bytes, Bytes], NDArray[np.int32]]:
    """Return the fastest exact product: torch's of bytes can be one, in a process that has loaded torch anyway."""
    return _faster_with_torch() if "torch" in sys.modules else product_of_floats


@cache
def _faster_with_torch() -> Callable[[Bytes, Bytes], NDArray[np.int32]]:
    """Choose the faster product on this processor by timing both; int8 is out where its sums saturate."""
    import torch

    a, b = np.random.default_rng(0).choice(np.array([-127, 127], np.int8), (2, 1024, 256))
    a[0] = b[0] = 127

    def seconds(product: Callable[[Bytes, Bytes], Any]) -> float:
        begun = perf_counter()
        product(a[:32], b)
        return perf_counter() - begun

    known = hasattr(torch, "_int_mm") and torch.backends.cpu.get_cpu_capability().startswith("AVX")
    if not known or not np.array_equal(product_of_bytes(a[:32], b), product_of_floats(a[:32], b)):
        return product_of_floats
    return min((product_of_bytes, product_of_floats), key=lambda product: min(seconds(product) for _ in range(3)))


_MATRIX: dict[Any, int] = {product_of_bytes: 5, product_of_floats: 20}
"""Number of queries from which each product beats the compiled loop."""


def one_by_one(queries: int) -> bool:
    """Return True if this number of queries is faster with the compiled loop than with a matrix product."""
    return queries < min(_MATRIX.values()) or queries < _MATRIX[matrix_product()]
