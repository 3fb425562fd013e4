"""Vectors to search, and what a search of them must find, by definition."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from palmette.arrays import as_floats
from palmette.search.flat import Block, ExactEngine, top_k
from palmette.search.plan import Candidates


def distributions(rng: np.random.Generator, rows: int, columns: int, ties: bool = False) -> np.ndarray:
    given = rng.dirichlet(np.full(columns, 0.3), size=rows)
    if ties:  # few different rows, and halves, which float32 holds exactly
        given = np.eye(columns)[rng.integers(0, columns, (rows, 2))].mean(axis=1)
    return given.astype(np.float32)


def vectors(rng: np.random.Generator, kind: str, rows: int, width: int) -> np.ndarray:
    """Numbers that are hard to search, in several ways."""
    match kind:
        case "shares":
            made = distributions(rng, rows, width)
        case "halves":
            made = distributions(rng, rows, width, ties=True)
        case "signed":
            made = distributions(rng, rows, width) * rng.choice([-3, 1], (rows, width))
        case "ties":
            made = rng.integers(-1, 2, (rows, width))
        case "close":  # differ in the last bits only
            made = np.repeat(rng.standard_normal((1, width)), rows, axis=0)
            made[np.arange(rows), rng.integers(0, width, rows)] *= 1 + rng.choice([0, 1e-7, -1e-7, 1e-3], rows)
        case "lengths":  # from vanishing to huge, zeros among them
            sizes = rng.choice([0, 1e-42, 1e-25, 1e-3, 1, 1e4, 1e18, 1e30], (rows, 1))
            made = rng.standard_normal((rows, width)) * sizes
        case "spikes":  # one number by which all others vanish
            made = rng.standard_normal((rows, width))
            made[np.arange(rows), rng.integers(0, width, rows)] *= 1e4
        case _:
            made = rng.standard_normal((rows, width))
    return made.astype(np.float32)


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


def cut(
    data: np.ndarray, keys: np.ndarray, places: list[int], wanted: np.ndarray | None = None
) -> list[tuple[Block, np.ndarray | None]]:
    """The rows as several segments, with the ``wanted`` ones of each."""
    edges = [0, *sorted({place for place in places if place < len(keys)}), len(keys)]
    parts = []
    for a, b in pairwise(edges):
        rows = None if wanted is None else wanted[(wanted >= a) & (wanted < b)] - a
        parts.append((Block(np.ascontiguousarray(data[a:b]), keys[a:b]), rows))
    return parts


def search(data: np.ndarray, queries: np.ndarray, metric: str, k: int, engine: ExactEngine) -> Candidates:
    """Search rows whose keys are their places."""
    return top_k([(Block(data, np.arange(len(data))), None)], queries, metric, k, engine)
