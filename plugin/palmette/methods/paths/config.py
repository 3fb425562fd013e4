"""Options of the learned index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from palmette.config import FILLED_IN, Config
from palmette.errors import ConfigError

LEAVES_PER_ROOT = 4.0
"""Leaves per √N documents: with twice as many, a tenth of the documents holds up to 4 points more of the answers."""
SHARPNESS = 40.0
"""Factor of the initial similarities under the softmax."""
ENCODER_RATE = 0.1
"""Learning rate of the encoder as a share of the module's."""

TRAINING: Mapping[str, Any] = {"steps": 0, "batch_size": 64, "learning_rate": 3e-4}
"""Defaults of the training loop: none, since k-means leaves find as much as trained ones."""


class PathsConfig(Config):
    """Shape, start and losses of an index."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {  # for SciFact (table 8), with 4e-4 for the encoder; its indexer learns at .016, ours at .004
            "branches": 40, "height": 1, "start": "random", "centroid_weight": 0.0,
            "semantic": 0.2, "indexing": 0.8, "intra_leaf": 0.2, "negatives": "leaves", "refresh": 5,
            "encoder_learns": "all", "steps": 1_400, "batch_size": 64, "learning_rate": 4e-3,
        }
    }  # fmt: skip

    branches: Annotated[int, Field(ge=2, le=65_536)] | None = None
    """Children B of every node; ``None`` for as many as give about 4√N leaves for N documents."""
    height: Annotated[int, Field(ge=1, le=8)] = 1
    """Heights H of the tree, which has B^H leaves."""
    start: Literal["kmeans", "random"] = "kmeans"
    """Initial indexer: ``kmeans`` of the corpus (of its residuals at further heights), or ``random`` as in the paper,
    from where leaves tend to collapse.
    """
    semantic: Annotated[float, Field(ge=0)] = 1.0
    """λ₁, weight of the loss on embeddings."""
    indexing: Annotated[float, Field(ge=0)] = 0.8
    """λ₂, weight of the same loss on path embeddings."""
    intra_leaf: Annotated[float, Field(ge=0)] = 0.2
    """λ₃, weight of the loss that keeps unlike documents out of one leaf."""
    margin: Annotated[float, Field(gt=0)] = 0.3
    """γ of all triplets."""
    similar: Annotated[float, Field(ge=-1, le=1)] = 0.9
    """τ: documents whose cosine reaches it may share a leaf."""
    negatives: Literal["in-batch", "leaves"] = "in-batch"
    """Negatives of the batch alone, or also the nearest wrong documents in the ``leaves`` of the query."""
    refresh: Annotated[int, Field(ge=1)] = 5
    """Epochs between two searches for negatives in leaves."""
    centroid_weight: Annotated[float, Field(ge=0)] = 0.4
    """Weight of the cosine of a query and a leaf's mean document (× 40) beside the log probability of the leaf, in the
    order of leaves to visit; 0 for the paper's order. Trained probabilities say little about leaves far down.
    """
    encoder_learns: Literal["nothing", "all"] = "nothing"
    """Train ``all`` of the encoder; the checkpoint then holds its weights. With ``nothing`` steps train the indexer
    alone.
    """
    width: Annotated[int, Field(ge=0), FILLED_IN] = 0
    """Width of the encoder's embedding (filled in by ``fit``)."""

    def check(self) -> None:
        """Check the number of leaves."""
        if self.branches is not None and self.leaves > 1 << 20:
            raise ConfigError(
                f"paths: branches={self.branches} and height={self.height} make {self.leaves:,} leaves; at most "
                f"{1 << 20:,} are allowed"
            )

    def for_documents(self, count: int) -> PathsConfig:
        """Config with branches for ``count`` documents, where they are left open."""
        if self.branches is not None:
            return self
        leaves = LEAVES_PER_ROOT * count**0.5
        return self.replace(branches=max(2, round(leaves ** (1 / self.height))))

    @property
    def leaves(self) -> int:
        """Number of leaves."""
        return int((self.branches or 0) ** self.height)


class PathsSearch(Config):
    """Options of one search in a learned index."""

    visit: float | int | Literal["auto"] = "auto"
    """Documents to compare: a share (up to 1.0), a whole number, or ``auto``: the least share that lost at most
    a hundredth of the full recall when the model was trained, and all of few documents.
    """
    beam: Annotated[int, Field(ge=1)] | None = None
    """β: visit so many leaves instead, however full."""

    def check(self) -> None:
        """Check ``visit``."""
        whole = not isinstance(self.visit, float)
        if self.visit != "auto" and not (self.visit >= 1 if whole else 0 < self.visit <= 1):
            raise ConfigError(
                f"paths search: visit must be a share above 0 and up to 1.0, a whole number of documents of at "
                f"least 1, or 'auto', got {self.visit!r}"
            )
