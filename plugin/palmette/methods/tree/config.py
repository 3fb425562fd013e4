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
    split: Literal["linear", "mlp", "cross_attention"] = "linear"
    """Score of a text at a node: a hyperplane on the embedding (``linear``), a small network shared by all
    nodes (``mlp``), or learned node embeddings that attend to the text's tokens (``cross_attention``).
    """
    aggregation: Literal["mean_then_linear", "linear_then_mean", "tree"] = "tree"
    """How a node's attention output becomes a score (``cross_attention`` only): one linear map shared by all
    nodes, one linear map per node, or the latter refined by a small network over the scores of the node and
    its ancestors (``tree``).
    """
    propagation: Literal["product", "learned", "none"] = "product"
    """How scores become leaf probabilities: the ``product`` of the turns on the way, a ``learned`` function of
    them for each leaf, or ``none``: no tree, one score per leaf.
    """
    schedule: Literal["constant", "stochastic", "linear", "exponential", "matryoshka"] = "stochastic"
    """Level that a step trains. ``constant``: the leaves. ``stochastic``: drawn with P(h) ∝ h², which makes the
    coarse levels good. ``linear``, ``exponential``: from the root down as training proceeds, one level at a
    time or doubling. ``matryoshka``: all levels at once.
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

    retired: ClassVar[Mapping[str, object]] = {
        "growth": 1.414, "upper": 5, "temperature": 0.05, "l1": 0.0, "hidden": 128, "split_dropout": 0.2,
        "heads": 8, "head_width": 64, "node_embeddings": 1, "closed": (), "adapted": False,
    }  # fmt: skip
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        # The encoder is BAAI/bge-large-en-v1.5 at 512 tokens. The paper does not state the rates of dropout and decay.
        "paper": {
            "depth": 10, "split": "cross_attention", "aggregation": "tree", "propagation": "learned",
            "schedule": "stochastic", "start": "random", "ranking": "leaves", "dropout": 0.1, "steps": 200_000,
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
    def scored(self) -> int:
        """Scores per text: one per split node, or one per leaf where there is no tree."""
        return self.leaves - (self.propagation != "none")

    @property
    def reads_tokens(self) -> bool:
        """True if the split reads token states besides the embedding."""
        return self.split == "cross_attention"


TRAINING: Mapping[str, Any] = {"learning_rate": 5e-4}
"""Defaults of the training loop."""


class TreeSearch(Config):
    """Options of one search in a tree."""

    level: int | Literal["auto"] | None = None
    """Level to compare at, 1 … depth; ``None`` for the tree's ``ranking``; ``auto`` for the smallest level that lost
    at most ``tolerance`` of the best level's validation quality (of trained trees).
    """
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Tolerated loss of quality for ``level="auto"``, as a share."""
    rerank: bool = False
    """Rank the ``shortlist`` best of the level by the vectors of the space."""
    shortlist: Annotated[int, Field(ge=1)] = 100
    """Candidates to rerank; never fewer than ``k``. Where words count, as many lexical candidates join."""
