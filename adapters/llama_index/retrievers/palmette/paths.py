"""PathRetriever: visits the leaves of a learned index, as a LlamaIndex retriever."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Unpack

from llama_index.retrievers.palmette.options import Options, SearchOption
from llama_index.retrievers.palmette.retriever import PalmetteRetriever

if TYPE_CHECKING:
    from palmette.index import Index

__all__ = ["PathRetriever"]


class PathRetriever(PalmetteRetriever):
    """Retrieves from a learned index: the nearest documents in the leaves that a query goes to.

    Args:
        index: An index of a :class:`palmette.PathsModel`.
        visit: Share of the documents to look at (up to 1.0), how many of them (a whole number), or ``auto``.
        tolerance: Share of the recall that ``auto`` may lose.
        beam: Leaves to visit instead, however full.
        options: Those of :class:`PalmetteRetriever`.
    """

    method: ClassVar[str | None] = "paths"
    visit = SearchOption[float | int | Literal["auto"]]()
    tolerance = SearchOption[float]()
    beam = SearchOption[int]()

    def __init__(
        self,
        index: Index,
        *,
        visit: float | int | Literal["auto"] | None = None,
        tolerance: float | None = None,
        beam: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(index, visit=visit, tolerance=tolerance, beam=beam, **options)
