"""One retriever per method, with the options of its search as typed attributes.

All take the options of :class:`PalmetteRetriever` too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar

from llama_index.retrievers.palmette.retriever import PalmetteRetriever

T = TypeVar("T")


class SearchOption(Generic[T]):
    """A search option of the method as an attribute of its retriever."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, retriever: Any, owner: type) -> T | None:
        value: T | None = retriever.search_options.get(self.name)
        return value

    def __set__(self, retriever: Any, value: T | None) -> None:
        retriever.search_options = {**retriever.search_options, self.name: value}


class TreeRetriever(PalmetteRetriever):
    """Retrieves with a tree: ranks by its space, and says the topic that question and document share."""

    method: ClassVar[str | None] = "tree"
    level = SearchOption[int]()
    """Level to compare at, 1 … depth; ``None`` for the tree's own ranking."""


class MultiFieldRetriever(PalmetteRetriever):
    """Retrieves nodes with fields (title, brand, …): every result can say which of them matched.

    Fields are read from the nodes' metadata, as configured when the model was trained.
    """

    method: ClassVar[str | None] = "fields"
    by = SearchOption[Literal["two_stage", "aggregate", "best"]]()
    """``two_stage`` (a shortlist by all fields together, ranked by the best field), ``aggregate`` or ``best``."""
    shortlist = SearchOption[int]()
    """Number of nodes that the second stage ranks."""
    blend = SearchOption[float]()
    """Weight of all fields together in the second stage, 0 … 1; half by default, 0 in the paper."""
    fields = SearchOption[Sequence[str]]()
    """Fields that may be the best one; ``None`` for all."""
    weights = SearchOption[Mapping[str, float]]()
    """Factors of the fields' similarities, where the best field is chosen."""


class PerLayerRetriever(PalmetteRetriever):
    """Retrieves with one query vector per layer of a frozen encoder."""

    method: ClassVar[str | None] = "layers"
    layers = SearchOption[Sequence[int]]()
    """Layers to search with; the encoder stops at the last of them. ``None`` for all."""
    order = SearchOption[Literal["fused", "layer"]]()
    """``fused``: by the mean similarity; ``layer``: each layer's share, the first layer's first."""


class PathRetriever(PalmetteRetriever):
    """Retrieves from a learned index: the nearest documents in the leaves that a query is routed to."""

    method: ClassVar[str | None] = "paths"
    visit = SearchOption[float | int | Literal["auto"]]()
    """Documents to visit: a share (up to 1.0), a number (a whole one), or ``auto``."""
    beam = SearchOption[int]()
    """Leaves to visit instead, however full."""


class TaxonomyRetriever(PalmetteRetriever):
    """Retrieves nodes of a taxonomy: the exact match of a query, and everything more general."""

    method: ClassVar[str | None] = "taxonomy"
    cut = SearchOption[float]()
    """Least probability of relevance, for as many results as there are; ``None`` for the usual number."""
    order = SearchOption[Literal["score", "specific"]]()
    """Best first (``score``), or from ``specific`` to general."""
    within = SearchOption[str]()
    """Id of a node: only it and its descendants."""
