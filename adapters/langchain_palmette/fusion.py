"""The retriever of several models at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from langchain_core.documents import Document

from langchain_palmette.retriever import PalmetteRetriever

if TYPE_CHECKING:
    from palmette.model import Model

__all__ = ["FusionRetriever"]


class FusionRetriever(PalmetteRetriever):
    """Retriever by several trained models over one set of documents, each document stored once.

    Setup:
        .. code-block:: bash

            pip install 'palmette[langchain]'

    Instantiate:
        .. code-block:: python

            from langchain_palmette import FusionRetriever

            retriever = FusionRetriever.from_documents(documents, model=["me/tree", "me/fields"], index_path="my-index")
            retriever = FusionRetriever(index_path="my-index", k=5)  # later, elsewhere

    Usage:
        .. code-block:: python

            retriever.invoke("a question")
            retriever.invoke("a question", lexical=0.5)  # and their words

    How much each model counts is learned by ``palmette.FusionModel.of(models, data)``, which may be given as the model;
    given as a list, all count the same, or as ``weights`` says. ``weights="rrf"`` fuses ranks instead of scores
    (reciprocal-rank fusion). Everything else is as in :class:`PalmetteRetriever`.
    """

    method: ClassVar[str | None] = "fusion"

    @classmethod
    def from_documents(
        cls,
        documents: Iterable[Document],
        model: str | Path | Model | Sequence[str | Path | Model],
        *,
        weights: Sequence[float] | Literal["rrf"] | None = None,
        **fields: Any,
    ) -> Self:
        """Index documents with several models, or with a fusion of some; see :class:`PalmetteRetriever`."""
        if weights is None and (isinstance(model, str | Path) or not isinstance(model, Sequence)):
            return super().from_documents(documents, model, **fields)
        from palmette.fusion import FusionModel

        models = [model] if isinstance(model, str | Path) or not isinstance(model, Sequence) else model
        return super().from_documents(documents, FusionModel.of(models, weights=weights), **fields)
