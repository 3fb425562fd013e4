"""TaxonomyRetriever: a query's exact match and everything more general, as a LlamaIndex retriever."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Unpack

from llama_index.retrievers.palmette.options import Options, SearchOption
from llama_index.retrievers.palmette.retriever import PalmetteRetriever

if TYPE_CHECKING:
    from palmette.index import Index

__all__ = ["TaxonomyRetriever"]


class TaxonomyRetriever(PalmetteRetriever):
    """Retrieves nodes of a taxonomy: the exact match of a query, and all that lies above it.

    Args:
        index: An index of a :class:`palmette.TaxonomyModel`.
        cut: Least probability of being relevant: as many results as there are; ``None`` for the usual number.
        order: Best first (``score``), or from ``specific`` to general.
        within: Id of a node: only it and what lies below it.
        closed: Only whole chains of ancestors.
        options: Those of :class:`PalmetteRetriever`.
    """

    method: ClassVar[str | None] = "taxonomy"
    cut = SearchOption[float]()
    order = SearchOption[Literal["score", "specific"]]()
    within = SearchOption[str]()
    closed = SearchOption[bool]()

    def __init__(
        self,
        index: Index,
        *,
        cut: float | None = None,
        order: Literal["score", "specific"] | None = None,
        within: str | None = None,
        closed: bool | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(index, cut=cut, order=order, within=within, closed=closed, **options)
