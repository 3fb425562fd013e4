"""Options of the learned index."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from palmette.config import Config, check_range
from palmette.errors import ConfigError
from palmette.training import TrainingConfig

__all__ = ["PathsConfig", "PathsSearch", "PathsTraining"]

LEAVES_PER_ROOT = 2.0
"""Leaves for each document under a square root: twice as many halve what a leaf visited for nothing costs."""

Negatives = Literal["in-batch", "leaves", "nearest"]


@dataclass(frozen=True)
class PathsConfig(Config):
    """What index to train.

    Attributes:
        branches: Children B of every node; ``None`` takes as many as give about 2√N leaves for N documents.
        height: Heights H of the tree, which has B^H leaves.
        per_document: Leaves that every document goes to (d2l).
        start: The indexer begins as a ``kmeans`` of the corpus, of what is left of it at every further height, or
            at ``random`` as in the paper, from where leaves tend to collapse.
        sharpness: Factor of the start's similarities under the softmax.
        semantic: λ₁, weight of the loss on embeddings.
        indexing: λ₂, weight of the same loss on path embeddings.
        intra_leaf: λ₃, weight of the loss that keeps unlike documents out of one leaf.
        intra_leaf_form: The ``triplet`` anchored on the relevant document (the paper's algorithm), or the plain
            ``product`` of two documents' path embeddings (its equation).
        margin: γ of all triplets.
        similar: τ: documents whose cosine reaches it may share a leaf.
        balance: Weight of a term that asks for equally full leaves.
        capacity: How many documents a leaf is expected to hold at most, as a multiple of equally full leaves: fuller
            ones are made less attractive; 0 for no limit. With 1.15 leaves begin even and stay so, and searches take
            equally long, but documents that come in dense groups are torn apart.
        negatives: Wrong answers beside those of the batch: none (``in-batch``), from the ``leaves`` that the query
            goes to, or its ``nearest`` documents wherever they lie.
        refresh: Epochs between two searches for them.
        nearness: How much the cosine of a query and a leaf's mean document counts, times ``sharpness``, beside the log
            of the leaf's probability, when leaves to visit are put in order; 0 for the paper's order. A trained
            probability says little about the leaves far down.
        indexer_rate: Learning rate of the indexer, as a multiple of that of the rest.
        encoder_learns: The encoder's ``last`` layer, or ``all`` of it; a checkpoint then holds its weights. With
            ``nothing``, a linear map on its embeddings learns alone, which takes minutes on a CPU.
        encoder_rate: Its learning rate, as a multiple of that of the map.
        width: Width of the encoder's embedding (filled in by ``fit``).
    """

    branches: int | None = None
    height: int = 1
    per_document: int = 1
    start: Literal["kmeans", "random"] = "kmeans"
    sharpness: float = 40.0
    semantic: float = 1.0
    indexing: float = 0.8
    intra_leaf: float = 0.2
    intra_leaf_form: Literal["triplet", "product"] = "triplet"
    margin: float = 0.3
    similar: float = 0.9
    balance: float = 0.0
    capacity: float = 2.0
    negatives: Negatives = "in-batch"
    refresh: int = 5
    nearness: float = 0.4
    indexer_rate: float = 1.0
    encoder_learns: Literal["nothing", "last", "all"] = "nothing"
    encoder_rate: float = 0.1
    width: int = field(default=0, metadata={"filled_in": True})

    def check(self) -> None:
        """Ranges, and a tree of a size that can be."""
        for name, low, high in (
            ("branches", 2, 65_536),
            ("height", 1, 8),
            ("per_document", 1, 64),
            ("semantic", 0, 1e6),
            ("indexing", 0, 1e6),
            ("intra_leaf", 0, 1e6),
            ("balance", 0, 1e6),
            ("similar", -1, 1),
            ("nearness", 0, 1e6),
            ("refresh", 1, 1e9),
            ("width", 0, 1e6),
        ):
            check_range("paths", name, getattr(self, name), low, high)
        for name in ("sharpness", "margin", "indexer_rate", "encoder_rate"):
            if not 0 < getattr(self, name) < 1e6:
                raise ConfigError(f"paths: {name} must be above 0, got {getattr(self, name)!r}")
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


@dataclass(frozen=True)
class PathsTraining(TrainingConfig):
    """:class:`palmette.training.TrainingConfig` with what measured best for the learned index."""

    steps: int = 600
    batch_size: int = 64
    learning_rate: float = 3e-4


@dataclass(frozen=True)
class PathsSearch(Config):
    """Options of one search in a learned index.

    Attributes:
        visit: How much to look at: a share of the documents (a number up to 1.0), so many of them (a whole number), or
            ``auto``: the least share that lost at most ``tolerance`` of the recall of looking at all of them when
            the model was trained, and everything where there are too few to be worth it.
        tolerance: That share, for ``visit="auto"``.
        beam: β, so many leaves instead, however full.
    """

    visit: float | int | Literal["auto"] = "auto"
    tolerance: float = 0.01
    beam: int | None = None

    def check(self) -> None:
        """Ranges."""
        check_range("paths search", "tolerance", self.tolerance, 0, 1)
        check_range("paths search", "beam", self.beam, 1)
        if self.visit != "auto" and not (
            0 < self.visit <= 1 if isinstance(self.visit, float) else self.visit >= 1
        ):
            raise ConfigError(
                f"paths search: visit must be a share above 0 and up to 1.0, a whole number of documents of at "
                f"least 1, or 'auto', got {self.visit!r}"
            )
