"""The tree's retriever."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from langchain_palmette.retriever import PalmetteRetriever

__all__ = ["TreeRetriever"]


class TreeRetriever(PalmetteRetriever):
    """Retriever of a trained tree: a coarse level is fast, the leaves are exact.

    With ``lexical=0`` scores are 0 … 1, 1 for twins, or cosines where they are reranked; else words are mixed in.

    Setup:
        .. code-block:: bash

            pip install 'palmette[langchain]'

    Instantiate:
        .. code-block:: python

            from langchain_palmette import TreeRetriever

            retriever = TreeRetriever.from_documents(documents, model="me/tree-ckpt", index_path="my-index")
            retriever = TreeRetriever(index_path="my-index", k=5, level=6)  # later, elsewhere

    Usage:
        .. code-block:: python

            retriever.invoke("a question")
            retriever.invoke("a question", level=3, explain=True)[0].metadata["explanation"]["detail"]["path"]
            retriever.invoke("a question", level="auto", rerank=True, shortlist=50)

    Everything else is as in :class:`PalmetteRetriever`.
    """

    method: ClassVar[str | None] = "tree"
    typed_options: ClassVar[tuple[str, ...]] = ("level", "rerank", "shortlist")

    level: Annotated[int, Field(ge=1)] | Literal["auto"] | None = None
    """Level of the tree to compare at, 1 … depth; ``auto`` for the smallest that is about as good as the best;
    ``None`` for the leaves.
    """
    rerank: bool = False
    """Rank the ``shortlist`` best by the cosine in the tree's space."""
    shortlist: int = Field(default=100, ge=1)
    """Candidates to rerank, at least ``k``; where words count, as many lexical candidates join."""
