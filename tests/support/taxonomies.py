"""A small taxonomy that one can reason about."""

from __future__ import annotations

from palmette import Document

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
