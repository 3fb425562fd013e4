"""One retriever per method, with the options of its search as typed attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar, Unpack

from llama_index.core.schema import BaseNode

from llama_index.retrievers.palmette.retriever import Options, PalmetteRetriever

if TYPE_CHECKING:
    from palmette import Index, Model

T = TypeVar("T")


class _HasOptions(Protocol):
    search_options: dict[str, Any]


class SearchOption(Generic[T]):
    """A search option of the method as an attribute of its retriever."""

    def __set_name__(self, owner: type[_HasOptions], name: str) -> None:
        self.name = name

    def __get__(self, retriever: _HasOptions, owner: type[_HasOptions]) -> T | None:
        return retriever.search_options.get(self.name)

    def __set__(self, retriever: _HasOptions, value: T | None) -> None:
        retriever.search_options = {**retriever.search_options, self.name: value}


class TreeRetriever(PalmetteRetriever):
    """Retrieves with a learned tree: coarse levels are fast, the leaves (the default) are exact.

    With ``lexical=0`` scores are 0 … 1 (1 for equal texts), or cosines with ``rerank``; otherwise words are added.

    Args:
        index: An index of a :class:`palmette.TreeModel`.
        level: Level to compare at, 1 … depth; ``auto`` for the smallest that is about as good as the best; ``None``
            for the leaves.
        rerank: Rank the best candidates again by the cosine of their vectors.
        shortlist: Number of candidates to rerank; with words, as many lexical candidates join.
        options: Options of :class:`PalmetteRetriever`.
    """

    method: ClassVar[str | None] = "tree"
    level = SearchOption[int | Literal["auto"]]()
    rerank = SearchOption[bool]()
    shortlist = SearchOption[int]()

    def __init__(
        self,
        index: Index,
        *,
        level: int | Literal["auto"] | None = None,
        rerank: bool | None = None,
        shortlist: int | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(index, level=level, rerank=rerank, shortlist=shortlist, **options)


class MultiFieldRetriever(PalmetteRetriever):
    """Retrieves nodes with fields (title, brand, …): every result can say which of them matched.

    Fields are read from the nodes' metadata, as configured when the model was trained.

    Args:
        index: An index of a :class:`palmette.FieldsModel`.
        by: ``two_stage`` (a shortlist by all fields together, ranked by the best field), ``aggregate`` or ``best``.
        shortlist: Number of nodes that the second stage ranks.
        blend: Weight of all fields together in the second stage, 0 … 1; half by default, 0 in the paper.
        fields: Fields that may be the best one; ``None`` for all.
        weights: Factors of the fields' similarities, where the best field is chosen.
        options: Options of :class:`PalmetteRetriever`.
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
        own: dict[str, Any] = {"by": by, "shortlist": shortlist, "blend": blend}
        super().__init__(index, **own, fields=fields, weights=weights, **options)


class PerLayerRetriever(PalmetteRetriever):
    """Retrieves with one query vector per layer of a frozen encoder.

    Args:
        index: An index of a :class:`palmette.LayersModel`.
        layers: Layers to search with; the encoder stops at the last of them. ``None`` for all.
        order: ``fused``: by the mean similarity; ``layer``: each layer's share, the first layer's first;
            ``interleave``: the best of each layer, then the second best of each, ….
        budget: Shares of ``similarity_top_k`` by layer (with ``layer`` and ``interleave``).
        options: Options of :class:`PalmetteRetriever`.
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


class PathRetriever(PalmetteRetriever):
    """Retrieves from a learned index: the nearest documents in the leaves that a query is routed to.

    Args:
        index: An index of a :class:`palmette.PathsModel`.
        visit: Documents to visit: a share (up to 1.0), a number (a whole one), or ``auto``.
        tolerance: Share of the recall that ``auto`` may lose.
        beam: Leaves to visit instead, however full.
        options: Options of :class:`PalmetteRetriever`.
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


class TaxonomyRetriever(PalmetteRetriever):
    """Retrieves nodes of a taxonomy: the exact match of a query, and everything more general.

    Args:
        index: An index of a :class:`palmette.TaxonomyModel`.
        cut: Least probability of relevance, for as many results as there are; ``None`` for the usual number.
        order: Best first (``score``), or from ``specific`` to general.
        within: Id of a node: only it and its descendants.
        closed: Only whole chains of ancestors.
        options: Options of :class:`PalmetteRetriever`.
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


class FusionRetriever(PalmetteRetriever):
    """Retrieves with several trained models over one set of nodes, each node stored once.

        retriever = FusionRetriever.from_documents(documents, model=["me/tree", "me/fields"])

    ``palmette.FusionModel.of(models, data)`` learns the models' weights and may be given as the model; in a list, all
    models have equal weights unless ``weights`` says otherwise.

    Args:
        index: An index of a :class:`palmette.FusionModel`; for the rest see :class:`PalmetteRetriever`.
    """

    method: ClassVar[str | None] = "fusion"

    @classmethod
    def from_documents(
        cls,
        documents: Sequence[BaseNode],
        model: Model | str | Path | Sequence[Model | str | Path],
        *,
        weights: Sequence[float] | None = None,
        **options: Any,
    ) -> Self:
        """Index documents with several models, or with a fusion; see :class:`PalmetteRetriever`."""
        if isinstance(model, str | Path) or not isinstance(model, Sequence):
            if weights is None:
                return super().from_documents(documents, model, **options)
            model = [model]
        from palmette import FusionModel

        return super().from_documents(documents, FusionModel.of(model, weights=weights), **options)
