"""What the three ways of searching cost: ratios of one process, taken in turns."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from palmette.arrays import quantise
from palmette.methods.fields.config import FieldsConfig, FieldsSearch
from palmette.methods.fields.search import AGGREGATE, FIELDS, SCALES, plan
from palmette.search.plan import ArraySpec
from palmette.store.local import LocalBackend
from palmette.types import Document

WIDTH, COUNT, ROUNDS = 384, 5, 9
LARGE = 1_000_000
"""Documents from which on only single queries are timed."""
WAYS: dict[str, FieldsSearch] = {
    "aggregate": FieldsSearch(by="aggregate"),
    "two stages of 100": FieldsSearch(blend=0.0),
    "two stages of 100, blended": FieldsSearch(),
    "best": FieldsSearch(by="best"),
}


def backend_of(size: int) -> LocalBackend:
    """Documents of random unit vectors."""
    draw = np.random.default_rng(0)
    specs = (
        ArraySpec(AGGREGATE, (WIDTH,)),
        ArraySpec(FIELDS, (COUNT, WIDTH), "int8"),
        ArraySpec(SCALES, (COUNT,)),
    )
    backend = LocalBackend.in_memory(specs)
    with backend.write() as writer:
        for start in range(0, size, 5000):
            rows = range(start, min(size, start + 5000))
            made = draw.standard_normal((len(rows), COUNT, WIDTH), dtype=np.float32)
            made /= np.linalg.norm(made, axis=-1, keepdims=True)
            whole = made.mean(1)
            arrays: dict[str, Any] = {AGGREGATE: whole / np.linalg.norm(whole, axis=-1, keepdims=True)}
            arrays[FIELDS], arrays[SCALES] = quantise(made)
            writer.put([Document(str(row), "x") for row in rows], arrays)
    return backend


def timed(backend: LocalBackend, batch: int) -> dict[str, float]:
    """The fastest of some rounds, milliseconds a query."""
    config = FieldsConfig(fields=tuple("abcde"), dimension=WIDTH)
    draw = np.random.default_rng(1)
    queries = draw.standard_normal((batch, WIDTH)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    with backend.read() as view:
        for turn in range(ROUNDS + 1):
            for name, options in WAYS.items():
                if name == "best" and turn > (2 if len(view) < LARGE else 1):
                    continue
                began = time.perf_counter()
                view.candidates(plan(config, queries, 10, options), 10)
                if turn:
                    times[name].append(1000 * (time.perf_counter() - began) / batch)
    return {name: min(values) for name, values in times.items()}


def heading() -> list[str]:
    """What stands above the rows."""
    return [
        f"Random unit vectors, {COUNT} fields of {WIDTH} numbers, k = 10; the fastest of {ROUNDS} rounds in turns.",
        "",
        "| documents | queries at once | " + " | ".join(WAYS) + " | two stages : aggregate | blended |",
        "|---|---|" + "---|" * (len(WAYS) + 2),
    ]


def rows_of(size: int) -> list[str]:
    """Milliseconds a query by queries at once."""
    rows = []
    with backend_of(size) as backend:
        for batch in (1, 64) if size < LARGE else (1,):
            found = timed(backend, batch)
            cells = " | ".join(f"{found[name]:.2f} ms" for name in WAYS)
            ratios = " | ".join(
                f"{found[name] / found['aggregate']:.2f}" for name in WAYS if name.startswith("two stages")
            )
            rows.append(f"| {size:,} | {batch} | {cells} | {ratios} |")
    return rows
