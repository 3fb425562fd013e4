"""Options of the taxonomy's dual encoder, of its training and of a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from palmette.config import FILLED_IN, Config
from palmette.errors import ConfigError

TRAINING: Mapping[str, Any] = {"steps": 2000, "batch_size": 512, "decay": "linear"}
"""Defaults of the training loop."""


class TaxonomyConfig(Config):
    """Dual encoder to train."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {  # its optimiser is SGD, ours AdamW
            "sampling": "regular", "negatives": "all", "correction": 0.0, "hard": 0, "recipe": "pretrain-finetune",
            "batch_size": 4096, "steps": 50_000,
        }
    }  # fmt: skip

    dimension: Annotated[int, Field(ge=0, le=65_536)] = 0
    """Width d of both embeddings; 0 for 64 with a hierarchy, and for the encoder's own width without one: training
    on few questions then begins with all that the encoder knows.
    """
    queries: Literal["text", "lookup"] = "text"
    """Input of the query tower: any ``text``, or a ``lookup`` table of the nodes, which knows nothing else."""
    documents: Literal["text", "lookup", "both"] = "both"
    """Input of the document tower; ``both`` adds a learned row per known node to its text."""
    multiplier: Annotated[float, Field(gt=0)] = 20.0
    """T, the factor of similarities in the softmax."""
    sampling: Literal["every", "regular"] = "every"
    """Matches drawn of each query: all (``every``), or any one (``regular``)."""
    correction: Annotated[float, Field(ge=0, le=2)] = 1.0
    """Strength of the log-frequency correction: 1 makes every document as likely a negative as every other, 0 pushes
    frequent documents, the ancestors, away.
    """
    negatives: Literal["masked", "all"] = "masked"
    """``masked`` takes every document of the batch that matches a query as a match, ``all`` takes all but the drawn
    one as negatives.
    """
    hard: Annotated[int, Field(ge=0, le=1024)] = 8
    """Hard negatives per query besides the batch: its best-scoring wrong answers. With a hierarchy only, which
    says what is wrong, and with ``masked`` negatives.
    """
    hard_share: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Share of the steps, the last ones, with hard negatives; they are mined once, before the first of these steps
    (and again when a run is resumed).
    """
    recipe: Literal["joint", "pretrain-finetune"] = "joint"
    """``joint``, or ``pretrain-finetune``: the last part of the steps on far matches only."""
    finetune_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Share of the steps that finetune."""
    finetune_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Learning rate of finetuning over that of pretraining."""
    finetune_multiplier: Annotated[float, Field(gt=0)] = 25.0
    """T of finetuning over that of pretraining."""
    max_distance: Annotated[int, Field(ge=0, le=32767)] | None = None
    """Ancestors farther than this do not match; ``None`` for all."""
    width: Annotated[int, Field(ge=0), FILLED_IN] = 0
    """Width of the encoder's embedding (filled in by ``fit``)."""
    nodes: Annotated[int, Field(ge=0), FILLED_IN] = 0
    """Number of documents known by row (filled in by ``fit``)."""

    def check(self) -> None:
        """Refuse towers that do not fit together."""
        if self.queries == "lookup" and self.documents != "lookup":
            raise ConfigError("taxonomy: queries='lookup' goes with documents='lookup' only: there is no text to read")
        if self.sampling == "every" and self.negatives == "all":
            raise ConfigError(
                "taxonomy: negatives='all' has one match of a query against all others, but sampling='every' takes "
                "all its matches: use sampling='regular' with it"
            )


class TaxonomySearch(Config):
    """Options of one search in a taxonomy."""

    cut: Annotated[float, Field(ge=0, le=1)] | None = None
    """Leave out documents whose probability of relevance (calibrated after training) is below this, so that each query
    gets its own number of results; ``None`` for ``k`` of them.
    """
    order: Literal["score", "specific"] = "score"
    """Best first (``score``), or the likely relevant ones from ``specific`` to general, then the rest."""
    within: str | None = None
    """Id of a node: search only it and its descendants."""
