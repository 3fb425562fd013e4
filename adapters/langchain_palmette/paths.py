"""The learned index's retriever."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, StrictFloat, StrictInt

from langchain_palmette.retriever import PalmetteRetriever

__all__ = ["PathRetriever"]


class PathRetriever(PalmetteRetriever):
    """Retriever of a learned index: it visits the leaves that a query goes to, and finds what is nearest there.

    Setup:
        .. code-block:: bash

            pip install 'palmette[langchain]'

    Instantiate:
        .. code-block:: python

            from langchain_palmette import PathRetriever

            retriever = PathRetriever.from_documents(documents, model="me/paths", visit=0.1, k=10)

    Usage:
        .. code-block:: python

            retriever.invoke("how do I prune a pear?", visit=5000)

    Everything else is as in :class:`PalmetteRetriever`.
    """

    method: ClassVar[str | None] = "paths"
    typed_options: ClassVar[tuple[str, ...]] = ("visit", "tolerance", "beam")

    visit: StrictInt | StrictFloat | Literal["auto"] | None = None
    """Share of the documents to look at (up to 1.0), how many of them (a whole number), or ``auto``."""
    tolerance: float | None = Field(default=None, ge=0, le=1)
    """Share of the recall that ``auto`` may lose."""
    beam: StrictInt | None = Field(default=None, ge=1)
    """Leaves to visit instead, however full."""
