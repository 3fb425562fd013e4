"""Every system by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from .adapter import adapter
from .bench import COLUMNS, Bench, Measured
from .clusters import gmm_representation, search
from .trees import TREES, tree
from .untrained import bm25, encoder, principal, truncated

__all__ = ["System", "systems"]


class System(NamedTuple):
    """How to measure it, and whether chance plays a part (else one seed says all)."""

    measure: Callable[[Bench, int], Measured]
    seeded: bool
    family: str


def systems(width: int) -> dict[str, System]:
    """All there are, for an encoder of this width."""
    nested = (*(size for size in COLUMNS if size < width), width)
    wide = (*nested, *(size for size in COLUMNS if size > width))
    found = {
        "BM25": System(partial(bm25, name="BM25"), False, "rivals"),
        "encoder": System(partial(encoder, name="encoder"), False, "rivals"),
        "encoder, first columns": System(partial(truncated, name="encoder, first columns"), False, "rivals"),
        "encoder, principal components": System(
            partial(principal, name="encoder, principal components"), False, "rivals"
        ),
    }
    for name, sizes, starts in (
        ("linear adapter", (width,), ("identity", "random")),
        ("linear adapter, random start", (width,), ("random",)),
        ("Matryoshka adapter", nested, ("principal", "random")),
        ("Matryoshka adapter, random start", nested, ("random",)),
        ("Matryoshka adapter, 1024 wide", wide, ("random",)),
    ):
        found[name] = System(partial(adapter, name=name, sizes=sizes, starts=starts), True, "rivals")
    found["GMM, leaf probabilities"] = System(
        partial(gmm_representation, name="GMM, leaf probabilities"), True, "rivals"
    )
    for kind in ("k-means", "GMM"):
        found[f"{kind}, leaf search"] = System(partial(search, kind=kind), True, "rivals")
    for name, options in TREES.items():
        found[name] = System(partial(tree, name=name, options=options), True, "trees")
    return found
