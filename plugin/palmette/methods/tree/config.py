"""Options of the tree, of its training and of a search in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from palmette.config import FILLED_IN, Config

FIXED_POINT = 1 << 11
"""Leaves up to which fixed point may be chosen."""


class TreeConfig(Config):
    """Shape, split function and training objective of a tree."""

    depth: Annotated[int, Field(ge=1, le=14)] = 6
    """Levels D of split nodes; the finest representation has 2^D columns."""
    split: Literal["linear", "cross_attention"] = "linear"
    """Score of a text at a node: a hyperplane on the embedding (``linear``), or learned node embeddings that attend to
    the text's tokens and are refined by the scores of the node's ancestors (``cross_attention``).
    """
    propagation: Literal["product", "learned"] = "product"
    """How scores become leaf probabilities: the ``product`` of the turns on the way, or a ``learned`` function of them
    for each leaf.
    """
    start: Literal["clusters", "random"] = "clusters"
    """Where the splits come from. ``clusters`` leads the documents to their k-means clusters, the leaves, and trains
    nothing: topics. ``random`` trains all splits by pairs, as in the paper.
    """
    ranking: Literal["vectors", "leaves"] = "vectors"
    """What a search compares that names no ``level``: the ``vectors`` of the space, or the ``leaves``."""
    sharpness: Annotated[float, Field(gt=0)] = 4.0
    """Steepness of the linear splits at the start: the sharper, the more of a text is in one leaf."""
    dropout: Annotated[float, Field(ge=0, le=0.99)] = 0.0
    """Probability of dropping a node's score in training."""
    width: Annotated[int, Field(ge=0), FILLED_IN] = 0
    """Width of the encoder's embedding (filled in by ``fit``)."""
    token_width: Annotated[int, Field(ge=0), FILLED_IN] = 0
    """Width of its token states, where the split reads them (filled in by ``fit``)."""
    stored: Annotated[Literal["fixed", "float16"], FILLED_IN] = "fixed"
    """Number format of leaf probabilities in an index: ``fixed`` point, or ``float16`` where documents differ by less
    than its steps (filled in by ``fit``).
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        # The encoder is BAAI/bge-large-en-v1.5 at 512 tokens. The paper does not state the rates of dropout and decay.
        "paper": {
            "depth": 10, "split": "cross_attention", "propagation": "learned",
            "start": "random", "ranking": "leaves", "dropout": 0.1, "steps": 200_000,
            "batch_size": 64, "learning_rate": 4e-4, "warmup": 0.05, "decay": "constant",
        },
    }  # fmt: skip

    @property
    def leaves(self) -> int:
        """Columns of the finest level."""
        return int(2**self.depth)

    @property
    def dtype(self) -> str:
        """Stored dtype of leaf probabilities."""
        return "uint16" if self.stored == "fixed" else self.stored

    @property
    def splits(self) -> int:
        """Split nodes N = 2^D − 1, each of which scores a text."""
        return self.leaves - 1

    @property
    def reads_tokens(self) -> bool:
        """True if the split reads token states besides the embedding."""
        return self.split == "cross_attention"


TRAINING: Mapping[str, Any] = {"learning_rate": 5e-4}
"""Defaults of the training loop."""


class TreeSearch(Config):
    """Options of one search in a tree."""

    level: int | None = None
    """Level to compare at, 1 … depth; ``None`` for the tree's ``ranking``."""
