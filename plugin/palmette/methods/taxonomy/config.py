"""Options of the taxonomy's dual encoder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from palmette.config import Config, check_range
from palmette.errors import ConfigError
from palmette.training import TrainingConfig

__all__ = ["TaxonomyConfig", "TaxonomySearch", "TaxonomyTraining"]


@dataclass(frozen=True)
class TaxonomyConfig(Config):
    """What dual encoder to train.

    Attributes:
        dimension: Width d of both embeddings; 0 for 64 of a hierarchy, and for the encoder's own width where
            there is none: what few questions teach then begins with all that the encoder knows.
        queries: What a query is read from: its ``text``, so that any will do, or a ``lookup`` table of the
            nodes, which knows nothing else.
        documents: The same for documents; ``both`` adds a learned row per known node to what the text says.
        heads: Whether queries and documents have ``separate`` heads on the encoder, or one they have ``shared``.
        hidden: Width of a hidden layer of the heads; 0 for linear ones.
        similarity: ``inner_product``, or ``cosine`` for embeddings of unit length.
        multiplier: T, by which similarities are multiplied.
        sampling: What matches of a query are drawn: all (``every``), or one: any (``regular``), preferably one that few
            share (``rare``) or one that is far (``heavy-tail``), or a mix of regular and far (``rebalanced``).
        regular_share: Share of regular draws in the mix.
        correction: Strength of the log-frequency correction: 1 makes every document as likely a negative as
            every other, 0 leaves frequent ones, the ancestors, pushed away by everyone.
        rarity: How much more a rare match counts than one that many queries share: in proportion to frequency^−rarity.
            A little finds the exact match, which only its own query asks for; much loses the ancestors.
        frequencies: How often training draws a document: ``known`` beforehand, by the matches of all queries, or
            counted on the ``stream`` of batches.
        negatives: ``masked`` counts whatever in the batch matches a query as a match, ``all`` as a negative but for the
            one drawn.
        hard: So many negatives of each query's own besides the batch's: its wrong answers that score highest. Of a
            hierarchy only, where what does not match is known to be wrong, and with ``masked`` negatives.
        hard_share: Share of the steps, the last ones, that have them; they are looked for once, before the first
            (and again where a run is resumed).
        recipe: ``joint``, or ``pretrain-finetune``: the last part of the steps on far matches only.
        finetune_share: Share of the steps that finetune.
        finetune_rate: Their learning rate over that of pretraining.
        finetune_multiplier: Their T over that of pretraining.
        max_distance: Ancestors farther than this do not match; ``None`` for all.
        width: Width of the encoder's embedding (filled in by ``fit``).
        nodes: Documents that are known by row (filled in by ``fit``).
    """

    dimension: int = 0
    queries: Literal["text", "lookup"] = "text"
    documents: Literal["text", "lookup", "both"] = "both"
    heads: Literal["separate", "shared"] = "separate"
    hidden: int = 0
    similarity: Literal["inner_product", "cosine"] = "inner_product"
    multiplier: float = 20.0
    sampling: Literal["every", "regular", "rare", "heavy-tail", "rebalanced"] = "every"
    regular_share: float = 0.03
    correction: float = 1.0
    rarity: float = 0.05
    frequencies: Literal["known", "stream"] = "known"
    negatives: Literal["masked", "all"] = "masked"
    hard: int = 8
    hard_share: float = 0.25
    recipe: Literal["joint", "pretrain-finetune"] = "joint"
    finetune_share: float = 0.5
    finetune_rate: float = 1e-3
    finetune_multiplier: float = 25.0
    max_distance: int | None = None
    width: int = field(default=0, metadata={"filled_in": True})
    nodes: int = field(default=0, metadata={"filled_in": True})

    def check(self) -> None:
        """Ranges, and towers that fit together."""
        for name, low, high in (
            ("dimension", 0, 65_536),
            ("hidden", 0, 65_536),
            ("regular_share", 0, 1),
            ("correction", 0, 2),
            ("rarity", 0, 2),
            ("hard", 0, 1024),
            ("hard_share", 0, 1),
            ("finetune_share", 0, 1),
            ("max_distance", 0, 32_767),
            ("width", 0, float("inf")),
            ("nodes", 0, float("inf")),
        ):
            check_range("taxonomy", name, getattr(self, name), low, high)
        for name in ("multiplier", "finetune_rate", "finetune_multiplier"):
            if not 0 < getattr(self, name) < 1e9:
                raise ConfigError(f"taxonomy: {name} must be above 0, got {getattr(self, name)!r}")
        if self.queries == "lookup" and self.documents != "lookup":
            raise ConfigError(
                "taxonomy: queries='lookup' goes with documents='lookup' only: there is no text to read"
            )
        if self.sampling == "every" and self.negatives == "all":
            raise ConfigError(
                "taxonomy: negatives='all' has one match of a query against all others, but sampling='every' takes "
                "all its matches: use sampling='regular' with it"
            )
        if self.heads == "shared" and self.documents == "lookup":
            raise ConfigError(
                "taxonomy: heads='shared' needs documents that are read from text ('text' or 'both')"
            )

    @property
    def reads(self) -> bool:
        """Whether any tower reads text."""
        return self.queries == "text"


@dataclass(frozen=True)
class TaxonomyTraining(TrainingConfig):
    """:class:`palmette.training.TrainingConfig` with what measured best for taxonomies."""

    steps: int = 2000
    batch_size: int = 512
    decay: Literal["cosine", "linear", "constant"] = "linear"


@dataclass(frozen=True)
class TaxonomySearch(Config):
    """Options of one search in a taxonomy.

    Attributes:
        cut: Leave out what is relevant with a probability below this (calibrated after training), so that the
            number of results is the query's own; ``None`` for ``k`` of them.
        order: Best first (``score``), or what is likely relevant from ``specific`` to general, then the rest.
        within: Id of a node: only it and what lies below it.
        closed: Only whole chains: with a node come its known ancestors, and one whose ancestors do not fit
            into ``k`` stays out.
    """

    cut: float | None = None
    order: Literal["score", "specific"] = "score"
    within: str | None = None
    closed: bool = False

    def check(self) -> None:
        """Ranges."""
        check_range("taxonomy search", "cut", self.cut, 0, 1)
