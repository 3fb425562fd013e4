"""The per-layer retriever."""

from __future__ import annotations

from typing import ClassVar, Literal

from langchain_palmette.retriever import PalmetteRetriever

__all__ = ["PerLayerRetriever"]


class PerLayerRetriever(PalmetteRetriever):
    """Retriever that asks with a query from every layer of a frozen encoder.

    Setup:
        .. code-block:: bash

            pip install 'palmette[langchain]'

    Instantiate:
        .. code-block:: python

            from langchain_palmette import PerLayerRetriever

            retriever = PerLayerRetriever.from_documents(documents, model="me/layers", k=12, engine="ivf")

    Usage:
        .. code-block:: python

            retriever.invoke("when did Harvard become an Ivy League school?", order="layer")

    Everything else is as in :class:`PalmetteRetriever`.
    """

    method: ClassVar[str | None] = "layers"
    typed_options: ClassVar[tuple[str, ...]] = ("layers", "order", "budget")

    layers: tuple[int, ...] | None = None
    """Only the queries of these; the encoder stops at the last of them. ``None`` for all."""
    order: Literal["fused", "layer", "interleave"] | None = None
    """``fused``: by the mean similarity; ``layer``: each layer's share, the first layer's first; ``interleave``: the
    best of each layer, then the second best of each, ….
    """
    budget: tuple[int, ...] | None = None
    """Shares of ``k`` by layer (with ``layer`` and ``interleave``); ``None`` for equal ones."""
