"""Options of the learned index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from palmette.config import FILLED_IN, Config
from palmette.errors import ConfigError

__all__ = ["TRAINING", "PathsConfig", "PathsSearch"]

LEAVES_PER_ROOT = 2.0
"""Leaves for each document under a square root: twice as many halve what a leaf visited for nothing costs."""

Negatives = Literal["in-batch", "leaves", "nearest"]


class PathsConfig(Config):
    """What index to train."""

    branches: Annotated[int, Field(ge=2, le=65_536)] | None = None
    """Children B of every node; ``None`` takes as many as give about 2√N leaves for N documents."""
    height: Annotated[int, Field(ge=1, le=8)] = 1
    """Heights H of the tree, which has B^H leaves."""
    per_document: Annotated[int, Field(ge=1, le=64)] = 1
    """Leaves that every document goes to (d2l)."""
    start: Literal["kmeans", "random"] = "kmeans"
    """The indexer begins as a ``kmeans`` of the corpus, of what is left of it at every further height, or at
    ``random`` as in the paper, from where leaves tend to collapse.
    """
    sharpness: Annotated[float, Field(gt=0)] = 40.0
    """Factor of the start's similarities under the softmax."""
    semantic: Annotated[float, Field(ge=0)] = 1.0
    """λ₁, weight of the loss on embeddings."""
    indexing: Annotated[float, Field(ge=0)] = 0.8
    """λ₂, weight of the same loss on path embeddings."""
    intra_leaf: Annotated[float, Field(ge=0)] = 0.2
    """λ₃, weight of the loss that keeps unlike documents out of one leaf."""
    intra_leaf_form: Literal["triplet", "product"] = "triplet"
    """The ``triplet`` anchored on the relevant document (the paper's algorithm), or the plain ``product`` of
    two documents' path embeddings (its equation).
    """
    margin: Annotated[float, Field(gt=0)] = 0.3
    """γ of all triplets."""
    similar: Annotated[float, Field(ge=-1, le=1)] = 0.9
    """τ: documents whose cosine reaches it may share a leaf."""
    balance: Annotated[float, Field(ge=0)] = 0.0
    """Weight of a term that asks for equally full leaves."""
    capacity: float = 2.0
    """How many documents a leaf is expected to hold at most, as a multiple of equally full leaves: fuller
    ones are made less attractive; 0 for no limit. With 1.15 leaves begin even and stay so, and searches
    take equally long, but documents that come in dense groups are torn apart.
    """
    negatives: Negatives = "in-batch"
    """Wrong answers beside those of the batch: none (``in-batch``), from the ``leaves`` that the query goes
    to, or its ``nearest`` documents wherever they lie.
    """
    refresh: Annotated[int, Field(ge=1)] = 5
    """Epochs between two searches for them."""
    nearness: Annotated[float, Field(ge=0)] = 0.4
    """How much the cosine of a query and a leaf's mean document counts, times ``sharpness``, beside the log
    of the leaf's probability, when leaves to visit are put in order; 0 for the paper's order. A trained
    probability says little about the leaves far down.
    """
    indexer_rate: Annotated[float, Field(gt=0)] = 1.0
    """Learning rate of the indexer, as a multiple of that of the rest."""
    encoder_learns: Literal["nothing", "last", "all"] = "nothing"
    """The encoder's ``last`` layer, or ``all`` of it; a checkpoint then holds its weights. With ``nothing``,
    a linear map on its embeddings learns alone, which takes minutes on a CPU.
    """
    encoder_rate: Annotated[float, Field(gt=0)] = 0.1
    """Its learning rate, as a multiple of that of the map."""
    width: Annotated[int, Field(ge=0), FILLED_IN] = 0
    """Width of the encoder's embedding (filled in by ``fit``)."""

    def check(self) -> None:
        """Ranges, and a tree of a size that can be."""
        if self.capacity != 0 and not 1 <= self.capacity < 1e6:
            raise ConfigError(f"paths: capacity must be 0 or at least 1, got {self.capacity!r}")
        if self.branches is not None and not self.per_document <= self.branches**self.height <= 1 << 20:
            raise ConfigError(
                f"paths: branches={self.branches} and height={self.height} make {self.branches**self.height:,} "
                f"leaves; there must be at least per_document={self.per_document} and at most {1 << 20:,}"
            )

    def sized(self, documents: int) -> PathsConfig:
        """With as many branches as suit so many documents, where that is left open."""
        if self.branches is not None:
            return self
        wanted = max(self.per_document, LEAVES_PER_ROOT * documents**0.5, 2)
        return self.replace(branches=max(2, round(wanted ** (1 / self.height))))

    @property
    def leaves(self) -> int:
        """How many leaves there are."""
        return int((self.branches or 0) ** self.height)


TRAINING: Mapping[str, Any] = {"steps": 600, "batch_size": 64, "learning_rate": 3e-4}
"""Defaults of the training loop."""


class PathsSearch(Config):
    """Options of one search in a learned index."""

    visit: float | int | Literal["auto"] = "auto"
    """How much to look at: a share of the documents (a number up to 1.0), so many of them (a whole number),
    or ``auto``: the least share that lost at most ``tolerance`` of the recall of looking at all of them
    when the model was trained, and everything where there are too few to be worth it.
    """
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.01
    """That share, for ``visit="auto"``."""
    beam: Annotated[int, Field(ge=1)] | None = None
    """β, so many leaves instead, however full."""

    def check(self) -> None:
        """Ranges."""
        if self.visit != "auto" and not (
            0 < self.visit <= 1 if isinstance(self.visit, float) else self.visit >= 1
        ):
            raise ConfigError(
                f"paths search: visit must be a share above 0 and up to 1.0, a whole number of documents of at "
                f"least 1, or 'auto', got {self.visit!r}"
            )
