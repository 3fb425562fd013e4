"""PalmetteQuery: a query with its own k, filters and search options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from llama_index.core.schema import QueryBundle

from llama_index.retrievers.palmette.filters import Filters
from palmette.config import check_kind


@dataclass(init=False)
class PalmetteQuery(QueryBundle):
    """A query bundle with search settings of its own, for retrievers and query engines.

        retriever.retrieve(PalmetteQuery("a question", top_k=3, filters={"lang": "en"}, level=6))
        query_engine.query(PalmetteQuery("a question", top_k=20))

    The retriever's settings are the defaults.

    Attributes:
        top_k: Number of nodes, instead of the retriever's ``similarity_top_k``.
        filters: Filters that narrow the retriever's own, and cannot widen them.
        score_threshold: Leave out nodes that score less.
        lexical: Weight of words beside the method: 0 … 1, or ``"auto"``.
        explain: Whether to return :class:`ExplainedNode`.
        options: Search options of the method, also taken as keywords (``level=6``).
    """

    top_k: int | None = None
    filters: Filters = None
    score_threshold: float | None = None
    lexical: float | Literal["auto"] | None = None
    explain: bool | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        query_str: str,
        image_path: str | None = None,
        custom_embedding_strs: list[str] | None = None,
        embedding: list[float] | None = None,
        *,
        top_k: int | None = None,
        filters: Filters = None,
        score_threshold: float | None = None,
        lexical: float | Literal["auto"] | None = None,
        explain: bool | None = None,
        options: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        check_kind("options", options, (Mapping, type(None)), "a mapping")
        super().__init__(query_str, image_path, custom_embedding_strs, embedding)
        self.top_k = top_k
        self.filters = filters
        self.score_threshold = score_threshold
        self.lexical = lexical
        self.explain = explain
        self.options = {**(options or {}), **more}
