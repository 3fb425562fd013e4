"""Every system by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from .adapter import BATCH, adapter
from .bench import Bench, Measured
from .clusters import gmm_representation, search
from .trees import TREES, tree
from .untrained import bm25, encoder, principal, truncated

__all__ = ["System", "systems"]


class System(NamedTuple):
    """How to measure it, and whether chance plays a part (else one seed says all)."""

    measure: Callable[[Bench, int], Measured]
    seeded: bool
    family: str


def systems() -> dict[str, System]:
    """All there are."""
    found = {}
    for name, measure in (
        ("BM25", bm25),
        ("encoder", encoder),
        ("encoder, first columns", truncated),
        ("encoder, principal components", principal),
    ):
        found[name] = System(partial(measure, name=name), False, "rivals")
    for name, shape, starts, batch in (
        ("linear adapter", "plain", ("identity", "random"), BATCH),
        ("linear adapter, batches of 512", "plain", ("identity", "random"), 512),
        ("linear adapter, random start", "plain", ("random",), BATCH),
        ("Matryoshka adapter", "nested", ("principal", "random"), BATCH),
        ("Matryoshka adapter, batches of 512", "nested", ("principal", "random"), 512),
        ("Matryoshka adapter, random start", "nested", ("random",), BATCH),
        ("Matryoshka adapter, 1024 wide", "wide", ("random",), BATCH),
    ):
        measure = partial(adapter, name=name, shape=shape, starts=starts, batch=batch)
        found[name] = System(measure, True, "rivals")
    found["GMM, leaf probabilities"] = System(
        partial(gmm_representation, name="GMM, leaf probabilities"), True, "rivals"
    )
    for kind in ("k-means", "GMM"):
        found[f"{kind}, leaf search"] = System(partial(search, kind=kind), True, "rivals")
    for name, options in TREES.items():
        found[name] = System(partial(tree, name=name, options=options), True, "trees")
    return found
