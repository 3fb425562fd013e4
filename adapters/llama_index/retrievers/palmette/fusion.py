"""FusionRetriever: several trained models as one LlamaIndex retriever."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from llama_index.core.schema import BaseNode

from llama_index.retrievers.palmette.retriever import PalmetteRetriever

if TYPE_CHECKING:
    from palmette.model import Model

__all__ = ["FusionRetriever"]


class FusionRetriever(PalmetteRetriever):
    """Retrieves with several trained models over one set of nodes, each node stored once.

        retriever = FusionRetriever.from_documents(documents, model=["me/tree", "me/fields"])

    How much each model counts is learned by ``palmette.FusionModel.of(models, data)``, which may be given as the model;
    given as a list, all count the same, or as ``weights`` says. ``weights="rrf"`` fuses ranks instead of scores
    (reciprocal-rank fusion).

    Args:
        index: An index of a :class:`palmette.FusionModel`; what else it takes, see :class:`PalmetteRetriever`.
    """

    method: ClassVar[str | None] = "fusion"

    @classmethod
    def from_documents(
        cls,
        documents: Sequence[BaseNode],
        model: Model | str | Path | Sequence[Model | str | Path],
        *,
        weights: Sequence[float] | Literal["rrf"] | None = None,
        **options: Any,
    ) -> Self:
        """Index documents with several models, or with a fusion of some; see :class:`PalmetteRetriever`."""
        if weights is None and (isinstance(model, str | Path) or not isinstance(model, Sequence)):
            return super().from_documents(documents, model, **options)
        from palmette.fusion import FusionModel

        models = [model] if isinstance(model, str | Path) or not isinstance(model, Sequence) else model
        return super().from_documents(documents, FusionModel.of(models, weights=weights), **options)
