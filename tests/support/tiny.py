"""Small real things: a corpus one can reason about, and a tree trained on it in a moment."""

from __future__ import annotations

from functools import cache
from typing import Any

from palmette import Document, FakeEncoder, FusionModel, TaxonomyModel, TreeModel

COLOURS = ("red", "green", "blue", "white", "black", "golden")
ANIMALS = ("cat", "dog", "owl", "fox", "ant", "bee", "cow", "hen")


def documents() -> list[Document]:
    """48 documents with metadata to filter by: ``{colour} {animal}`` and a sentence about it."""
    return [
        Document(
            id=f"{colour}-{animal}",
            text=f"The {colour} {animal} lives in house {number} and sings at night.",
            metadata={"colour": colour, "animal": animal, "house": number, "tags": [colour, animal]},
        )
        for number, (colour, animal) in enumerate((c, a) for c in COLOURS for a in ANIMALS)
    ]


def pairs() -> list[tuple[str, str]]:
    """A question per document."""
    return [
        (f"where does the {d.metadata['colour']} {d.metadata['animal']} live?", d.text) for d in documents()
    ]


def train_tree(**options: Any) -> TreeModel:
    """A depth-5 tree over a fake encoder."""
    settings: dict[str, Any] = {"depth": 5, "steps": 20, "batch_size": 16, "progress": False} | options
    return TreeModel.fit(pairs(), encoder=FakeEncoder(48), **settings)


@cache
def tree() -> TreeModel:
    """One such tree, shared by all tests of a process (models are immutable)."""
    return train_tree()


def train_taxonomy(**options: Any) -> TaxonomyModel:
    """Two towers over a fake encoder, trained on pairs alone."""
    settings: dict[str, Any] = {"dimension": 32, "steps": 20, "batch_size": 16, "progress": False} | options
    return TaxonomyModel.fit(pairs(), encoder=FakeEncoder(48), **settings)


@cache
def taxonomy() -> TaxonomyModel:
    """One such model."""
    return train_taxonomy()


@cache
def fusion() -> FusionModel:
    """A tree and a taxonomy as one."""
    return FusionModel.of([tree(), taxonomy()], weights=[2, 1])
