"""Search over bytes finds what float64 finds, whatever the vectors look like; bounds hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palmette.arrays import to_fixed
from palmette.search import codes, flat, set_threads
from palmette.search.codes import Codes, Queries, integer_products
from palmette.search.flat import Block, ExactEngine, top_k
from support.vectors import brute, same


def vectors(rng: np.random.Generator, kind: str, rows: int, width: int) -> np.ndarray:
    match kind:
        case "ties":
            made = rng.integers(-1, 2, (rows, width))
        case "close":  # differ in the last bits only
            made = np.repeat(rng.standard_normal((1, width)), rows, axis=0)
            made[np.arange(rows), rng.integers(0, width, rows)] *= 1 + rng.choice(
                [0, 1e-7, -1e-7, 1e-3], rows
            )
        case "lengths":  # from vanishing to huge, zeros among them
            sizes = rng.choice([0, 1e-42, 1e-25, 1e-3, 1, 1e4, 1e18, 1e30], (rows, 1))
            made = rng.standard_normal((rows, width)) * sizes
        case "spikes":  # one number by which all others vanish
            made = rng.standard_normal((rows, width))
            made[np.arange(rows), rng.integers(0, width, rows)] *= 1e4
        case _:
            made = rng.standard_normal((rows, width))
    return made.astype(np.float32)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["any", "ties", "close", "lengths", "spikes"]),
    dtype=st.sampled_from(["float32", "float16", "uint16"]),
    rows=st.integers(1, 400),
    width=st.sampled_from([1, 3, 8, 31, 64, 65, 130]),
    count=st.sampled_from([1, 4, 5, 19]),
    k=st.sampled_from([1, 3, 20, 500]),
    share=st.sampled_from([1.0, 0.9, 0.2]),
    tile=st.sampled_from([1, 64, 1000]),
    threads=st.integers(1, 3),
    torch=st.booleans(),
)
def test_any_search_is_brute_force(
    seed: int, kind: str, dtype: str, rows: int, width: int, count: int, k: int, share: float, tile: int, threads: int,
    torch: bool,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    data, queries = vectors(rng, kind, rows, width), vectors(rng, kind, count, width)
    if dtype == "uint16":
        data = to_fixed(rng.dirichlet(np.full(width, 0.3), rows))
    else:
        data = (data if dtype == "float32" else data.clip(-6e4, 6e4)).astype(dtype)
    keys = np.cumsum(rng.integers(1, 4, rows))
    wanted = np.flatnonzero(rng.random(rows) < share)
    set_threads(threads)
    try:
        with pytest.MonkeyPatch.context() as patch, np.errstate(over="ignore"):
            patch.setattr(flat, "_FEW", 0)
            for name, value in {"_TILE": tile, "_PRODUCTS": 1, "_WORTH_A_THREAD": 1, "_PIECE": 500}.items():
                patch.setattr(codes, name, value)
            if not torch:
                patch.setattr(codes, "_torch_product", lambda: None)
            given = None if share == 1 else wanted
            found = top_k([(Block(data, keys), given)], queries, "inner_product", k, ExactEngine())
            expected = brute(data[wanted], keys[wanted], queries, "inner_product", k)
    finally:
        set_threads(None)
    assert found.keys.shape == (count, min(k, len(wanted)))
    if len(wanted):
        assert same(found, expected)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 70), st.sampled_from([1e-35, 1e-3, 1.0, 1e15]))
def test_bytes_say_how_far_off_they_are(seed: int, width: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    data = (rng.normal(size=(5, width)) ** 3 * size).astype(np.float32)
    data[0] = 0
    rows, query = np.array([3, 0, 1, 3]), rng.normal(size=(1, width)).astype(np.float32)
    made, asked = Codes.encode(data, rows), Queries.encode(query)
    decoded, exact = made.numbers * made.steps[:, None].astype(float), data[rows].astype(float)
    assert (np.linalg.norm(decoded - exact, axis=1) <= made.errors).all()
    told = integer_products(asked.numbers, made.numbers)[0] * made.steps * asked.steps[0]
    bound = made.errors * asked.lengths[0] + made.lengths * asked.errors[0]
    assert (np.abs(told - exact @ query[0].astype(float)) <= bound).all()
    assert (made.errors <= 0.05 * np.linalg.norm(exact, axis=1) + 1e-29).all(), "a byte says much"


def test_few_rows_are_compared_in_full() -> None:
    rng = np.random.default_rng(0)
    data, queries = vectors(rng, "any", 20_000, 64), vectors(rng, "any", 6, 64)
    found = top_k([(Block(data, np.arange(len(data))), None)], queries, "inner_product", 10, ExactEngine())
    assert 10 <= found.refined < 100
    assert found.visited == 20_000
    assert found.read < data.nbytes / 3


@pytest.mark.parametrize("count", [1, 7])
def test_a_row_that_is_not_finite_is_never_left_out(count: int) -> None:
    rng = np.random.default_rng(0)
    data, queries = vectors(rng, "any", 9_000, 16), np.abs(vectors(rng, "any", count, 16))
    data[5_000, 3], data[6_000, 2] = np.inf, -np.inf
    found = top_k([(Block(data, np.arange(len(data))), None)], queries, "inner_product", 3, ExactEngine())
    assert (found.keys[:, 0] == 5_000).all()
    assert (found.scores[:, 0] == np.inf).all()
    assert (found.keys != 6_000).all()
