"""TreeRetriever: a learned tree as a LlamaIndex retriever."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Unpack

from llama_index.retrievers.palmette.options import Options, SearchOption
from llama_index.retrievers.palmette.retriever import PalmetteRetriever

if TYPE_CHECKING:
    from palmette.index import Index

__all__ = ["TreeRetriever"]


class TreeRetriever(PalmetteRetriever):
    """Retrieves with a learned tree: coarse levels are fast, the leaves (the default) are exact.

    With ``lexical=0`` scores are 0 … 1, 1 for twins, or cosines where they are reranked; else words are mixed in.

    Args:
        index: An index of a :class:`palmette.TreeModel`.
        level: Level to compare at, 1 … depth; ``auto`` for the smallest that is about as good as the best; ``None``
            for the leaves.
        rerank: Rank the ``shortlist`` best by the cosine in the tree's space, which then takes the score's place.
        shortlist: Candidates to rerank, at least ``similarity_top_k``; where words count, as many lexical ones join.
        options: Those of :class:`PalmetteRetriever`.
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
