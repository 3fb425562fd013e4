"""Every system by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from .adapter import BATCH, adapter
from .bench import Bench, Measured
from .trees import TREES, tree
from .untrained import bm25, encoder, principal


class System(NamedTuple):
    """How to measure it, and whether chance plays a part (else one seed says all)."""

    measure: Callable[[Bench, int], Measured]
    seeded: bool
    family: str


def systems() -> dict[str, System]:
    """All there are."""
    plain = {"BM25": bm25, "encoder": encoder, "encoder, principal components": principal}
    found = {n: System(partial(measure, name=n), False, "rivals") for n, measure in plain.items()}
    for name, nested, batch in (
        ("linear adapter", False, BATCH),
        ("linear adapter, batches of 512", False, 512),
        ("Matryoshka adapter", True, BATCH),
    ):
        found[name] = System(partial(adapter, name=name, nested=nested, batch=batch), True, "rivals")
    for name, options in TREES.items():
        found[name] = System(partial(tree, name=name, options=options), True, "trees")
    return found
