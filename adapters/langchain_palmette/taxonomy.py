"""The taxonomy's retriever."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from langchain_palmette.retriever import PalmetteRetriever

__all__ = ["TaxonomyRetriever"]


class TaxonomyRetriever(PalmetteRetriever):
    """Retriever of a trained taxonomy: a query's exact match and everything more general.

    Setup:
        .. code-block:: bash

            pip install 'palmette[langchain]'

    Instantiate:
        .. code-block:: python

            from langchain_palmette import TaxonomyRetriever

            retriever = TaxonomyRetriever.from_documents(nodes, model="me/taxonomy", cut=0.5, k=20)

    Usage:
        .. code-block:: python

            retriever.invoke("golden retriever", order="specific")  # golden retriever, retriever, dog, animal

    Everything else is as in :class:`PalmetteRetriever`.
    """

    method: ClassVar[str | None] = "taxonomy"
    typed_options: ClassVar[tuple[str, ...]] = ("cut", "order", "within", "closed")

    cut: float | None = Field(default=None, ge=0, le=1)
    """Least probability of being relevant: as many results as there are, at most ``k``; ``None`` for ``k``."""
    order: Literal["score", "specific"] | None = None
    """Best first (``score``), or from ``specific`` to general."""
    within: str | None = None
    """Id of a node: only it and what lies below it."""
    closed: bool | None = None
    """Only whole chains of ancestors."""
