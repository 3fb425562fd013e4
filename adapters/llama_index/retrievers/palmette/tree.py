"""TreeRetriever: a learned tree as a LlamaIndex retriever."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Unpack

from llama_index.retrievers.palmette.options import Options, SearchOption
from llama_index.retrievers.palmette.retriever import PalmetteRetriever

if TYPE_CHECKING:
    from palmette.index import Index

__all__ = ["TreeRetriever"]


class TreeRetriever(PalmetteRetriever):
    """Retrieves with a learned tree: coarse levels are fast, the leaves (the default) are exact.

    Args:
        index: An index of a :class:`palmette.TreeModel`.
        level: Level to compare at, 1 … depth; ``None`` for the leaves.
        options: Those of :class:`PalmetteRetriever`.
    """

    method: ClassVar[str | None] = "tree"
    level = SearchOption[int]()

    def __init__(self, index: Index, *, level: int | None = None, **options: Unpack[Options]) -> None:
        super().__init__(index, level=level, **options)
