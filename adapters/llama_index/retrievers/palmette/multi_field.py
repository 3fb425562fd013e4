"""MultiFieldRetriever: documents with fields, as a LlamaIndex retriever."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Unpack

from llama_index.retrievers.palmette.options import Options, SearchOption
from llama_index.retrievers.palmette.retriever import PalmetteRetriever

if TYPE_CHECKING:
    from palmette.index import Index

__all__ = ["MultiFieldRetriever"]


class MultiFieldRetriever(PalmetteRetriever):
    """Retrieves nodes with fields (title, brand, …): every result can say which of them matched.

    Fields are read from the nodes' metadata, as the model was told when it was trained.

    Args:
        index: An index of a :class:`palmette.FieldsModel`.
        by: ``two_stage`` (a shortlist by all fields together, ranked by the best field), ``aggregate`` or ``best``.
        shortlist: How many nodes the second stage ranks.
        blend: How much of the similarity of all fields together there is in the second stage's, 0 … 1; by default
            half. 0 ranks by the best field alone, as the paper does.
        fields: Only these count as best field.
        weights: What similarities of a field are multiplied by, where the best is chosen.
        options: Those of :class:`PalmetteRetriever`.
    """

    method: ClassVar[str | None] = "fields"
    by = SearchOption[Literal["two_stage", "aggregate", "best"]]()
    shortlist = SearchOption[int]()
    blend = SearchOption[float]()
    fields = SearchOption[Sequence[str]]()
    weights = SearchOption[Mapping[str, float]]()

    def __init__(
        self,
        index: Index,
        *,
        by: Literal["two_stage", "aggregate", "best"] | None = None,
        shortlist: int | None = None,
        blend: float | None = None,
        fields: Sequence[str] | None = None,
        weights: Mapping[str, float] | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            index, by=by, shortlist=shortlist, blend=blend, fields=fields, weights=weights, **options
        )
