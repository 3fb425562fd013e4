"""The retriever of documents with fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from langchain_palmette.retriever import PalmetteRetriever

__all__ = ["MultiFieldRetriever"]


class MultiFieldRetriever(PalmetteRetriever):
    """Retriever of documents with fields (title, brand, …): every result can say which of them matched.

    Setup:
        .. code-block:: bash

            pip install 'palmette[langchain]'

    Instantiate:
        .. code-block:: python

            from langchain_palmette import MultiFieldRetriever

            retriever = MultiFieldRetriever.from_documents(products, model="me/shop", k=10)

    Usage:
        .. code-block:: python

            retriever.invoke("warm wool socks", filter={"price": {"$lt": 20}}, fields=["title", "brand"])

    Fields are read from the documents' metadata, as the checkpoint was told when it was trained. Everything else is
    as in :class:`PalmetteRetriever`.
    """

    method: ClassVar[str | None] = "fields"
    typed_options: ClassVar[tuple[str, ...]] = ("by", "shortlist", "blend", "fields", "weights")

    by: Literal["two_stage", "aggregate", "best"] | None = None
    """``two_stage`` (a shortlist by all fields together, ranked by the best field), ``aggregate`` or ``best``.
    """
    shortlist: int | None = Field(default=None, ge=1)
    """How many documents the second stage ranks."""
    blend: float | None = Field(default=None, ge=0, le=1)
    """How much of the similarity of all fields together there is in the second stage's, 0 … 1; by default half. 0
    ranks by the best field alone, as the paper does.
    """
    fields: list[str] | None = None
    """Only these count as best field."""
    weights: dict[str, float] | None = None
    """What similarities of a field are multiplied by, where the best is chosen."""

    @field_validator("fields", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """A mapping of fields to metadata is refused with the method's own words."""
        if isinstance(value, Mapping):
            from palmette.methods.fields.config import FieldsSearch

            FieldsSearch(fields=tuple(f"{name}={place}" for name, place in value.items()))
        return value
