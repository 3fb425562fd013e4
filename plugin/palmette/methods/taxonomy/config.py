"""Options of the taxonomy's dual encoder."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from palmette.config import FILLED_IN, Config
from palmette.errors import ConfigError
from palmette.training import TrainingConfig

__all__ = ["TaxonomyConfig", "TaxonomySearch", "TaxonomyTraining"]


class TaxonomyConfig(Config):
    """What dual encoder to train."""

    dimension: Annotated[int, Field(ge=0, le=65_536)] = 0
    """Width d of both embeddings; 0 for 64 of a hierarchy, and for the encoder's own width where there is
    none: what few questions teach then begins with all that the encoder knows.
    """
    queries: Literal["text", "lookup"] = "text"
    """What a query is read from: its ``text``, so that any will do, or a ``lookup`` table of the nodes, which
    knows nothing else.
    """
    documents: Literal["text", "lookup", "both"] = "both"
    """The same for documents; ``both`` adds a learned row per known node to what the text says."""
    heads: Literal["separate", "shared"] = "separate"
    """Whether queries and documents have ``separate`` heads on the encoder, or one they have ``shared``."""
    hidden: Annotated[int, Field(ge=0, le=65_536)] = 0
    """Width of a hidden layer of the heads; 0 for linear ones."""
    similarity: Literal["inner_product", "cosine"] = "inner_product"
    """``inner_product``, or ``cosine`` for embeddings of unit length."""
    multiplier: Annotated[float, Field(gt=0)] = 20.0
    """T, by which similarities are multiplied."""
    sampling: Literal["every", "regular", "rare", "heavy-tail", "rebalanced"] = "every"
    """What matches of a query are drawn: all (``every``), or one: any (``regular``), preferably one that few
    share (``rare``) or one that is far (``heavy-tail``), or a mix of regular and far (``rebalanced``).
    """
    regular_share: Annotated[float, Field(ge=0, le=1)] = 0.03
    """Share of regular draws in the mix."""
    correction: Annotated[float, Field(ge=0, le=2)] = 1.0
    """Strength of the log-frequency correction: 1 makes every document as likely a negative as every other, 0
    leaves frequent ones, the ancestors, pushed away by everyone.
    """
    rarity: Annotated[float, Field(ge=0, le=2)] = 0.05
    """How much more a rare match counts than one that many queries share: in proportion to frequency^−rarity.
    A little finds the exact match, which only its own query asks for; much loses the ancestors.
    """
    frequencies: Literal["known", "stream"] = "known"
    """How often training draws a document: ``known`` beforehand, by the matches of all queries, or counted on
    the ``stream`` of batches.
    """
    negatives: Literal["masked", "all"] = "masked"
    """``masked`` counts whatever in the batch matches a query as a match, ``all`` as a negative but for the
    one drawn.
    """
    hard: Annotated[int, Field(ge=0, le=1024)] = 8
    """So many negatives of each query's own besides the batch's: its wrong answers that score highest. Of a
    hierarchy only, where what does not match is known to be wrong, and with ``masked`` negatives.
    """
    hard_share: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Share of the steps, the last ones, that have them; they are looked for once, before the first (and
    again where a run is resumed).
    """
    recipe: Literal["joint", "pretrain-finetune"] = "joint"
    """``joint``, or ``pretrain-finetune``: the last part of the steps on far matches only."""
    finetune_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the steps that finetune."""
    finetune_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Their learning rate over that of pretraining."""
    finetune_multiplier: Annotated[float, Field(gt=0)] = 25.0
    """Their T over that of pretraining."""
    max_distance: Annotated[int, Field(ge=0, le=32767)] | None = None
    """Ancestors farther than this do not match; ``None`` for all."""
    width: Annotated[int, Field(ge=0), FILLED_IN] = 0
    """Width of the encoder's embedding (filled in by ``fit``)."""
    nodes: Annotated[int, Field(ge=0), FILLED_IN] = 0
    """Documents that are known by row (filled in by ``fit``)."""

    def check(self) -> None:
        """Ranges, and towers that fit together."""
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


class TaxonomyTraining(TrainingConfig):
    """:class:`palmette.training.TrainingConfig` with what measured best for taxonomies."""

    steps: int = 2000
    batch_size: int = 512
    decay: Literal["cosine", "linear", "constant"] = "linear"


class TaxonomySearch(Config):
    """Options of one search in a taxonomy."""

    cut: Annotated[float, Field(ge=0, le=1)] | None = None
    """Leave out what is relevant with a probability below this (calibrated after training), so that the
    number of results is the query's own; ``None`` for ``k`` of them.
    """
    order: Literal["score", "specific"] = "score"
    """Best first (``score``), or what is likely relevant from ``specific`` to general, then the rest."""
    within: str | None = None
    """Id of a node: only it and what lies below it."""
    closed: bool = False
    """Only whole chains: with a node come its known ancestors, and one whose ancestors do not fit into ``k``
    stays out.
    """
