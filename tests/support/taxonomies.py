"""A small taxonomy that one can reason about."""

from __future__ import annotations

from functools import cache
from typing import Any

from palmette import Document, FakeEncoder, TaxonomyModel

KINDS = ("dog", "cat", "owl", "bee")


def zoo() -> list[Document]:
    """A tree of three levels, 45 nodes, as documents that name their parents."""
    nodes = [Document(id="animal", text="animal")]
    for kind in KINDS:
        nodes.append(Document(id=kind, text=kind, metadata={"parents": ["animal"]}))
        for i in range(10):
            meta = {"parents": [kind], "name": f"{kind} {i}.", "number": i}
            nodes.append(Document(id=f"{kind} {i}", text=f"{kind} {i} of the zoo", metadata=meta))
    return nodes


def chain(node: str) -> list[str]:
    """A leaf and what lies above it, as ids."""
    return [node, node.split()[0], "animal"]


def train_zoo(data: Any = None, **options: Any) -> TaxonomyModel:
    """A model of the zoo, or of other data, over a fake encoder."""
    steps = options.get("steps", 300)
    usual = {"encoder": FakeEncoder(48), "dimension": 16, "steps": steps, "learning_rate": 0.01, "progress": False}
    return TaxonomyModel.fit(data or zoo(), **usual | {"evaluate_every": max(1, steps)} | options)


@cache
def zoo_model() -> TaxonomyModel:
    return train_zoo(steps=200)
