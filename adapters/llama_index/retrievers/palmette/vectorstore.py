"""PalmetteVectorStore: a LlamaIndex vector store over an index of any method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.schema import BaseNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)

from llama_index.retrievers.palmette.nodes import scored, to_node
from llama_index.retrievers.palmette.query import PalmetteQuery, palmette_filter
from llama_index.retrievers.palmette.retriever import PalmetteRetriever
from palmette.config import check_kind, check_path, check_range
from palmette.errors import ConfigError
from palmette.index.frameworks import check_size, diversify
from palmette.machine.threads import AsyncTwin
from palmette.types import Document

if TYPE_CHECKING:
    from palmette import Index

FETCH = 4
"""Nodes fetched per node returned, for maximal marginal relevance."""

_WORDS = (VectorStoreQueryMode.TEXT_SEARCH, VectorStoreQueryMode.SPARSE)
_MIXED = (VectorStoreQueryMode.HYBRID, VectorStoreQueryMode.SEMANTIC_HYBRID)
_MODES = (VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.MMR, *_WORDS, *_MIXED)


class PalmetteVectorStore(BasePydanticVectorStore):
    """Vector store over an index; the index's model encodes nodes and queries, whatever its method.

        store = PalmetteVectorStore.from_index("my-index")
        index = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(1))
        IngestionPipeline(transformations=[SentenceSplitter(), MockEmbedding(1)], vector_store=store)

    LlamaIndex embeds every node before it hands it to a store. Those embeddings are not used, so a mock is enough. A
    query is searched by its text; by its embedding (of the model's own encoder) where it has no text.

    Query modes: ``default``; ``text_search`` and ``sparse`` (words alone); ``hybrid`` (``alpha`` is the weight of the
    method beside words); ``mmr`` (with ``mmr_threshold``). Similarities are scores: higher is better.
    """

    stores_text: bool = True
    is_embedding_query: bool = False

    _retriever: PalmetteRetriever = PrivateAttr()

    def __init__(self, retriever: PalmetteRetriever) -> None:
        super().__init__(stores_text=True)
        self._retriever = retriever

    @classmethod
    def from_index(cls, index: Index | str | Path, **options: Any) -> Self:
        """Vector store over a folder or an open index; options as for :meth:`PalmetteRetriever.from_index`."""
        return cls(PalmetteRetriever.from_index(index, **options))

    @classmethod
    def class_name(cls) -> str:
        """Name in serialized form."""
        return "PalmetteVectorStore"

    @property
    def client(self) -> Index:
        """The index."""
        return self._retriever.index

    # -- writing --------------------------------------------------------------------------------------------

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes, replacing those whose id exists; blank ones are left out."""
        self._retriever.upsert([node.model_copy(update={"embedding": None}) for node in nodes])
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete all nodes of a document."""
        self._retriever.delete_ref_doc(ref_doc_id)

    def delete_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None, **delete_kwargs: Any
    ) -> None:
        """Delete nodes by id, by filter, or those that meet both; unknown ids are skipped."""
        every = node_ids is None and filters is None
        self.client.delete(None if every else [node.key for node in self._documents(node_ids, filters)])

    def clear(self) -> None:
        """Delete all nodes."""
        self.client.delete([node.key for node in self._documents(None, None)])

    # -- reading --------------------------------------------------------------------------------------------

    def get_nodes(self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None) -> list[BaseNode]:
        """Nodes by id, by filter, or those that meet both, in the order they were added; unknown ids are skipped."""
        return [to_node(document) for document in self._documents(node_ids, filters)]

    def _documents(self, node_ids: list[str] | None, filters: MetadataFilters | None) -> list[Document]:
        ids = None if node_ids is None else {"$id": node_ids}
        return list(self._retriever._filtered().filtered(ids).documents(palmette_filter(filters)))

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """Search by text or embedding; ``kwargs`` are options of the method, and ``mmr_threshold``."""
        if query.mode not in _MODES:
            raise ConfigError(
                f"PalmetteVectorStore has no query mode {query.mode.value!r}: use {', '.join(m.value for m in _MODES)}"
            )
        weight = kwargs.pop("mmr_threshold", query.mmr_threshold)
        diverse = query.mode is VectorStoreQueryMode.MMR
        check_kind("query_str", query.query_str, (str, type(None)), "a str")
        check_range("a query", "alpha", query.alpha, 0, 1)
        lexical: float | None = None  # weight of words: the retriever's own, unless the mode says one
        if query.mode in _WORDS:
            lexical = 1.0
        elif query.mode in _MIXED and query.alpha is not None:
            lexical = 1 - query.alpha
        retriever, text = self._retriever, query.query_str or ""
        k = check_size("similarity_top_k", query.similarity_top_k)
        call = retriever._call(
            PalmetteQuery(
                text,
                embedding=None if text.strip() else query.query_embedding,
                top_k=k * (FETCH if diverse else 1),
                filters=self._narrow(query),
                lexical=lexical,
                explain=False,
                options=kwargs,
            )
        )
        [hits] = retriever._hits([call])
        if diverse:
            vectors = self.client.vectors(hits)
            hits = diversify(hits, vectors, k, 0.5 if weight is None else weight)
        results = [scored(hit, explain=False) for hit in hits]
        return VectorStoreQueryResult(
            nodes=[result.node for result in results],
            similarities=[result.score or 0.0 for result in results],
            ids=[result.node_id for result in results],
        )

    def _narrow(self, query: VectorStoreQuery) -> dict[str, Any] | None:
        """Filter of a query: its filters, its nodes and its documents."""
        for name in ("node_ids", "doc_ids"):
            check_kind(name, getattr(query, name), (list, type(None)), "a list of str")
        parts = [palmette_filter(query.filters)]
        if query.node_ids:
            parts.append({"$id": query.node_ids})
        if query.doc_ids:
            parts.append({"$id": [node.key for node in self._retriever._stored(query.doc_ids)]})
        conditions = [part for part in parts if part is not None]
        return {"$and": conditions} if conditions else None

    def persist(self, persist_path: str, fs: Any = None) -> None:
        """Keep the index: folders and collections are kept, memory is copied to ``persist_path`` without suffix.

        ``PalmetteVectorStore.from_index("storage/default__vector_store")`` opens the copy that
        ``storage_context.persist("storage")`` makes.
        """
        if not isinstance(self.client.path, str):
            self._retriever.persist(self.client.path or check_path(persist_path).with_suffix(""))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._retriever,)

    aget_nodes = AsyncTwin(get_nodes).method
    async_add = AsyncTwin(add).method
    adelete = AsyncTwin(delete).method
    adelete_nodes = AsyncTwin(delete_nodes).method
    aclear = AsyncTwin(clear).method
    aquery = AsyncTwin(query).method
