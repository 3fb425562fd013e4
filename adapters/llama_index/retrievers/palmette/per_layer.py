"""PerLayerRetriever: a query from every layer of a frozen encoder, as a LlamaIndex retriever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, Unpack

from llama_index.retrievers.palmette.options import Options, SearchOption
from llama_index.retrievers.palmette.retriever import PalmetteRetriever

if TYPE_CHECKING:
    from palmette.index import Index

__all__ = ["PerLayerRetriever"]


class PerLayerRetriever(PalmetteRetriever):
    """Asks with a query from every layer of a frozen encoder: what one layer misses another finds.

    Args:
        index: An index of a :class:`palmette.LayersModel`.
        layers: Only the queries of these; the encoder stops at the last of them. ``None`` for all.
        order: ``fused``: by the mean similarity; ``layer``: each layer's share, the first layer's first;
            ``interleave``: the best of each layer, then the second best of each, ….
        budget: Shares of the results by layer (with ``layer`` and ``interleave``); ``None`` for equal ones.
        options: Those of :class:`PalmetteRetriever`.
    """

    method: ClassVar[str | None] = "layers"
    layers = SearchOption[Sequence[int]]()
    order = SearchOption[Literal["fused", "layer", "interleave"]]()
    budget = SearchOption[Sequence[int]]()

    def __init__(
        self,
        index: Index,
        *,
        layers: Sequence[int] | None = None,
        order: Literal["fused", "layer", "interleave"] | None = None,
        budget: Sequence[int] | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(index, layers=layers, order=order, budget=budget, **options)
