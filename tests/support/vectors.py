"""Vectors to search, and what a search of them must find, by definition."""

from __future__ import annotations

import numpy as np

from palmette.arrays import as_floats
from palmette.search.flat import Block, Engine, top_k
from palmette.search.plan import Candidates


def distributions(rng: np.random.Generator, rows: int, columns: int, ties: bool = False) -> np.ndarray:
    given = rng.dirichlet(np.full(columns, 0.3), size=rows)
    if ties:  # few different rows, and halves, which float32 holds exactly
        given = np.eye(columns)[rng.integers(0, columns, (rows, 2))].mean(axis=1)
    return given.astype(np.float32)


def brute(data: np.ndarray, keys: np.ndarray, queries: np.ndarray, metric: str, k: int) -> Candidates:
    """Score in float64, round once; equal scores by key."""
    found, data = [], as_floats(data)
    for query in queries.astype(np.float64):
        terms = np.minimum(data, query) if metric == "overlap" else data * query
        scores = terms.sum(axis=1, dtype=np.float64).astype(np.float32)
        order = np.lexsort((keys, -scores))[:k]
        found.append((keys[order], scores[order]))
    return Candidates(np.array([keys for keys, _ in found]), np.array([scores for _, scores in found]))


def same(found: Candidates, expected: Candidates) -> bool:
    return np.array_equal(found.keys, expected.keys) and np.array_equal(found.scores, expected.scores)


def cut(data: np.ndarray, keys: np.ndarray, places: list[int]) -> list[tuple[Block, None]]:
    """The rows as several segments."""
    edges = [0, *sorted({place for place in places if place < len(keys)}), len(keys)]
    pairs = zip(edges, edges[1:], strict=False)
    return [(Block(np.ascontiguousarray(data[a:b]), keys[a:b]), None) for a, b in pairs if a < b]


def search(data: np.ndarray, queries: np.ndarray, metric: str, k: int, engine: Engine) -> Candidates:
    """Search rows whose keys are their places."""
    return top_k([(Block(data, np.arange(len(data))), None)], queries, metric, k, engine)
