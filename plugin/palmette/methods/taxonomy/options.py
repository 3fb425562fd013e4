"""Keyword options of ``TaxonomyModel.fit``, for editors; written from ``config.py`` by ``make options``."""

from __future__ import annotations

from typing import Literal

from palmette.training import CommonOptions

__all__ = ["TaxonomyOptions"]


class TaxonomyOptions(CommonOptions, total=False):
    """What ``TaxonomyModel.fit`` takes; see :class:`TaxonomyConfig` and :class:`TaxonomyTraining`."""

    dimension: int
    """Width d of both embeddings; 0 for 64 of a hierarchy, and for the encoder's own width where there is
    none: what few questions teach then begins with all that the encoder knows. Default: ``0``.
    """

    queries: Literal["text", "lookup"]
    """What a query is read from: its ``text``, so that any will do, or a ``lookup`` table of the nodes, which
    knows nothing else. Default: ``'text'``.
    """

    documents: Literal["text", "lookup", "both"]
    """The same for documents; ``both`` adds a learned row per known node to what the text says. Default:
    ``'both'``.
    """

    heads: Literal["separate", "shared"]
    """Whether queries and documents have ``separate`` heads on the encoder, or one they have ``shared``.
    Default: ``'separate'``.
    """

    hidden: int
    """Width of a hidden layer of the heads; 0 for linear ones. Default: ``0``."""

    similarity: Literal["inner_product", "cosine"]
    """``inner_product``, or ``cosine`` for embeddings of unit length. Default: ``'inner_product'``."""

    multiplier: float
    """T, by which similarities are multiplied. Default: ``20.0``."""

    sampling: Literal["every", "regular", "rare", "heavy-tail", "rebalanced"]
    """What matches of a query are drawn: all (``every``), or one: any (``regular``), preferably one that few
    share (``rare``) or one that is far (``heavy-tail``), or a mix of regular and far (``rebalanced``).
    Default: ``'every'``.
    """

    regular_share: float
    """Share of regular draws in the mix. Default: ``0.03``."""

    correction: float
    """Strength of the log-frequency correction: 1 makes every document as likely a negative as every other, 0
    leaves frequent ones, the ancestors, pushed away by everyone. Default: ``1.0``.
    """

    rarity: float
    """How much more a rare match counts than one that many queries share: in proportion to frequency^−rarity.
    A little finds the exact match, which only its own query asks for; much loses the ancestors. Default:
    ``0.05``.
    """

    frequencies: Literal["known", "stream"]
    """How often training draws a document: ``known`` beforehand, by the matches of all queries, or counted on
    the ``stream`` of batches. Default: ``'known'``.
    """

    negatives: Literal["masked", "all"]
    """``masked`` counts whatever in the batch matches a query as a match, ``all`` as a negative but for the
    one drawn. Default: ``'masked'``.
    """

    hard: int
    """So many negatives of each query's own besides the batch's: its wrong answers that score highest. Of a
    hierarchy only, where what does not match is known to be wrong, and with ``masked`` negatives. Default:
    ``8``.
    """

    hard_share: float
    """Share of the steps, the last ones, that have them; they are looked for once, before the first (and again
    where a run is resumed). Default: ``0.25``.
    """

    recipe: Literal["joint", "pretrain-finetune"]
    """``joint``, or ``pretrain-finetune``: the last part of the steps on far matches only. Default:
    ``'joint'``.
    """

    finetune_share: float
    """Share of the steps that finetune. Default: ``0.5``."""

    finetune_rate: float
    """Their learning rate over that of pretraining. Default: ``0.001``."""

    finetune_multiplier: float
    """Their T over that of pretraining. Default: ``25.0``."""

    max_distance: int | None
    """Ancestors farther than this do not match; ``None`` for all. Default: ``None``."""

    steps: int
    """Optimiser steps at most. Default: ``2000``."""

    batch_size: int
    """Pairs per step (and per process). Default: ``512``."""

    learning_rate: float
    """Peak rate of AdamW. Default: ``0.001``."""

    weight_decay: float
    """Decoupled weight decay of matrices (never of biases and scales). Default: ``0.0``."""

    warmup: float
    """Share of the steps in which the rate rises. Default: ``0.05``."""

    decay: Literal["cosine", "linear", "constant"]
    """How the rate falls afterwards, to zero at the last step. Default: ``'linear'``."""
