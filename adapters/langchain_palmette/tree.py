"""The tree's retriever."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from langchain_palmette.retriever import PalmetteRetriever

__all__ = ["TreeRetriever"]


class TreeRetriever(PalmetteRetriever):
    """Retriever of a trained tree: a coarse level is fast, the leaves are exact. Scores are 0 … 1.

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

    Everything else is as in :class:`PalmetteRetriever`.

    Attributes:
        level: Level of the tree to compare at, 1 … depth; ``None`` for the leaves.
    """

    method: ClassVar[str | None] = "tree"
    typed_options: ClassVar[tuple[str, ...]] = ("level",)

    level: int | None = Field(default=None, ge=1)
