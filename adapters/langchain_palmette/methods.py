"""One retriever per method, with the options of its search as typed fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StrictFloat, StrictInt, field_validator

from langchain_palmette.retriever import PalmetteRetriever


class TreeRetriever(PalmetteRetriever):
    """Retriever of a tree: ranks by its space, and says the topic that question and document share.

    .. code-block:: python

        retriever = TreeRetriever.from_documents(documents, model="me/tree-ckpt", index_path="my-index")
        retriever = TreeRetriever(index_path="my-index", k=5)  # later, elsewhere
        retriever.invoke("a question", explain=True)[0].metadata["explanation"]["text"]
    """

    method: ClassVar[str | None] = "tree"
    typed_options: ClassVar[tuple[str, ...]] = ("level",)

    level: Annotated[int, Field(ge=1)] | None = None
    """Level of the tree to compare at, 1 … depth; ``None`` for the tree's own ranking."""


class MultiFieldRetriever(PalmetteRetriever):
    """Retriever of documents with fields (title, brand, …): every result can say which of them matched.

    .. code-block:: python

        retriever = MultiFieldRetriever.from_documents(products, model="me/shop", k=10)
        retriever.invoke("warm wool socks", filter={"price": {"$lt": 20}}, fields=["title", "brand"])

    Fields are read from the documents' metadata, as configured when the checkpoint was trained.
    """

    method: ClassVar[str | None] = "fields"
    typed_options: ClassVar[tuple[str, ...]] = ("by", "shortlist", "blend", "fields", "weights")

    by: Literal["two_stage", "aggregate", "best"] | None = None
    """``two_stage`` (a shortlist by all fields together, ranked by the best field), ``aggregate`` or ``best``."""
    shortlist: int | None = Field(default=None, ge=1)
    """Number of documents that the second stage ranks."""
    blend: float | None = Field(default=None, ge=0, le=1)
    """Weight of all fields together in the second stage, 0 … 1; half by default, 0 in the paper."""
    fields: list[str] | None = None
    """Fields that may be the best one; ``None`` for all."""
    weights: dict[str, float] | None = None
    """Factors of the fields' similarities, where the best field is chosen."""

    @field_validator("fields", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """Refuse a mapping of fields to metadata with the method's own error."""
        if isinstance(value, Mapping):
            from palmette.methods.fields.config import FieldsSearch

            FieldsSearch(fields=tuple(f"{name}={place}" for name, place in value.items()))
        return value


class PerLayerRetriever(PalmetteRetriever):
    """Retriever that searches with one query vector per layer of a frozen encoder.

    .. code-block:: python

        retriever = PerLayerRetriever.from_documents(documents, model="me/layers", k=12, engine="ivf")
        retriever.invoke("when did Harvard become an Ivy League school?", order="layer")
    """

    method: ClassVar[str | None] = "layers"
    typed_options: ClassVar[tuple[str, ...]] = ("layers", "order")

    layers: tuple[int, ...] | None = None
    """Layers to search with; the encoder stops at the last of them. ``None`` for all."""
    order: Literal["fused", "layer"] | None = None
    """``fused``: by the mean similarity; ``layer``: each layer's share, the first layer's first."""


class PathRetriever(PalmetteRetriever):
    """Retriever of a learned index: visits the leaves that a query is routed to, and ranks the documents in them.

    .. code-block:: python

        retriever = PathRetriever.from_documents(documents, model="me/paths", visit=0.1, k=10)
        retriever.invoke("how do I prune a pear?", visit=5000)
    """

    method: ClassVar[str | None] = "paths"
    typed_options: ClassVar[tuple[str, ...]] = ("visit", "beam")

    visit: StrictInt | StrictFloat | Literal["auto"] | None = None
    """Documents to visit: a share (up to 1.0), a number (a whole one), or ``auto``."""
    beam: StrictInt | None = Field(default=None, ge=1)
    """Leaves to visit instead, however full."""


class TaxonomyRetriever(PalmetteRetriever):
    """Retriever of a trained taxonomy: a query's exact match and everything more general.

    .. code-block:: python

        retriever = TaxonomyRetriever.from_documents(nodes, model="me/taxonomy", cut=0.5, k=20)
        retriever.invoke("golden retriever", order="specific")  # golden retriever, retriever, dog, animal
    """

    method: ClassVar[str | None] = "taxonomy"
    typed_options: ClassVar[tuple[str, ...]] = ("cut", "order", "within")

    cut: float | None = Field(default=None, ge=0, le=1)
    """Least probability of relevance, for as many results as there are, at most ``k``; ``None`` for ``k`` results."""
    order: Literal["score", "specific"] | None = None
    """Best first (``score``), or from ``specific`` to general."""
    within: str | None = None
    """Id of a node: only it and its descendants."""
