"""A small taxonomy that one can reason about."""

from __future__ import annotations

from functools import cache

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


@cache
def zoo_model() -> TaxonomyModel:
    """A model of the zoo."""
    options = {"dimension": 16, "steps": 200, "learning_rate": 0.01, "evaluate_every": 200}
    return TaxonomyModel.fit(zoo(), encoder=FakeEncoder(48), progress=False, **options)
