"""PalmetteVectorStore: LangChain's VectorStore over an index of any method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from langchain_palmette.documents import from_hit
from langchain_palmette.embeddings import PalmetteEmbeddings
from langchain_palmette.retriever import PalmetteRetriever
from palmette.config import check_kind
from palmette.errors import ConfigError, InputError
from palmette.index.frameworks import as_vector, check_size, diversify
from palmette.machine.threads import AsyncTwin

if TYPE_CHECKING:
    from palmette import Index, Model
    from palmette.index.results import QueryList


class PalmetteVectorStore(VectorStore):
    """Vector store over an index; the index's model encodes texts and queries, whatever its method.

    .. code-block:: python

        store = PalmetteVectorStore.from_documents(documents, index_path="my-index")  # or with a trained "me/ckpt"
        store = PalmetteVectorStore.from_index("my-index")  # later, elsewhere
        store = PalmetteVectorStore(TreeRetriever(index_path="my-index", level=6))  # with options of the method
        store.add_texts(["Apples are picked in September."], [{"month": 9}], ids=["apples"])
        store.similarity_search_with_score("when is the harvest?", k=3, filter={"month": {"$gte": 9}})
        store.as_retriever(search_type="mmr", search_kwargs={"k": 5})
        store.delete(["apples"])

    Searches take the options of :meth:`PalmetteRetriever.invoke`: ``filter``, ``score_threshold``, ``lexical``,
    ``explain`` and those of the method. Higher scores are better.
    """

    def __init__(self, retriever: PalmetteRetriever) -> None:
        self.retriever = retriever

    @classmethod
    def from_index(cls, index: str | Path | Index, **fields: Any) -> Self:
        """Vector store over a folder or an open index; ``fields`` are those of :class:`PalmetteRetriever`."""
        return cls(PalmetteRetriever.from_index(index, **fields))

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | Model | str | Path | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **options: Any,
    ) -> Self:
        """Index texts.

        ``embedding`` is LangChain's ``Embeddings``, a checkpoint, by folder or Hub repository, a loaded model, or
        :class:`PalmetteEmbeddings` of either or of an encoder; ``None`` for the default encoder, with nothing to train.
        ``options`` are those of :meth:`PalmetteRetriever.from_documents`, such as ``index_path``.
        """
        from palmette import SpaceModel

        model = embedding
        if isinstance(model, PalmetteEmbeddings):
            model = model.model or SpaceModel.untrained(model.loaded("encoder"))
        elif isinstance(model, Embeddings):
            if options.get("encoder") is not None:
                raise ConfigError("embedding and encoder are the same thing here: give one of them")
            model, options["encoder"] = None, model
        store = cls(PalmetteRetriever.from_documents([], model, **options))
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    def from_documents(
        cls, documents: list[Document], embedding: Embeddings | Model | str | Path | None = None, **options: Any
    ) -> Self:
        """Index documents; arguments as in :meth:`from_texts`."""
        return super().from_documents(documents, cast("Embeddings", embedding), **options)

    @property
    def embeddings(self) -> PalmetteEmbeddings | None:
        """Vectors that :meth:`similarity_search_by_vector` takes; ``None`` for models that read more of a text."""
        model = self.retriever.index.model
        return PalmetteEmbeddings(model=model) if model.accepts_embeddings else None

    # -- writing --------------------------------------------------------------------------------------------

    def add_documents(
        self, documents: Sequence[Document], *, ids: Sequence[str | None] | None = None, **options: Any
    ) -> list[str]:
        """Add documents, replacing those whose id exists; blank ones are left out. Returns the ids of the others."""
        check_kind("ids", ids, (Sequence, type(None)), "a list of str")
        if ids is not None:
            if len(ids) != len(documents):
                raise InputError(f"ids must be one per document, got {len(ids)} for {len(documents)} documents")
            documents = [
                document.model_copy(update={"id": id or document.id})
                for document, id in zip(documents, ids, strict=True)
            ]
        options.pop("batch_size", None)  # LangChain's index() passes its own
        return self.retriever.upsert(documents, **options)["succeeded"]

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **options: Any,
    ) -> list[str]:
        """Add texts, replacing those whose id exists; blank ones are left out. Returns the ids of the others."""
        check_kind("texts", texts, Iterable, "a list of str")
        check_kind("ids", ids, (Sequence, type(None)), "a list of str")
        check_kind("metadatas", metadatas, (Sequence, type(None)), "a list of dicts")
        listed = list(texts)
        for name, values in (("ids", ids), ("metadatas", metadatas or None)):
            if values is not None and len(values) != len(listed):  # LangChain's own drops texts beyond the ids
                raise InputError(f"{name} must be one per text, got {len(values)} for {len(listed)} texts")
        return super().add_texts(listed, metadatas, ids=ids, **options)

    def delete(self, ids: list[str] | None = None, **options: Any) -> bool:
        """Delete by ids, or by ``filter=``; unknown ids are skipped."""
        self.retriever.delete(ids, **options)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """Documents by id; unknown ids are skipped."""
        return self.retriever.get(ids)

    # -- searching ------------------------------------------------------------------------------------------

    def similarity_search(self, query: str, k: int = 4, **call: Any) -> list[Document]:
        """Best documents, as they were given."""
        return [document for document, _ in self.similarity_search_with_score(query, k, **call)]

    def similarity_search_with_score(self, query: str, k: int = 4, **call: Any) -> list[tuple[Document, float]]:
        """Best documents, each with its score."""
        return self.retriever.similarity_search_with_score(query, k, **call)

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **call: Any) -> list[Document]:
        """Best documents for a query vector of :attr:`embeddings`, without words."""
        return self._search(as_vector(embedding)[None], k, **{"lexical": 0, **call})

    def max_marginal_relevance_search(
        self, query: str, k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **call: Any
    ) -> list[Document]:
        """Documents that are relevant and differ from each other; see :func:`palmette.index.frameworks.diversify`."""
        return self._search([query], k, fetch_k, lambda_mult, **call)

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **call: Any
    ) -> list[Document]:
        """:meth:`max_marginal_relevance_search` for a query vector of :attr:`embeddings`, without words."""
        return self._search(as_vector(embedding)[None], k, fetch_k, lambda_mult, **{"lexical": 0, **call})

    def _search(
        self,
        queries: QueryList,
        k: int,
        fetch_k: int = 0,
        lambda_mult: float | None = None,
        *,
        explain: bool = False,
        **call: Any,
    ) -> list[Document]:
        """Results of one query; diverse ones where ``lambda_mult`` is given."""
        k = check_size("k", k)
        more = k if lambda_mult is None else max(k, check_size("fetch_k", fetch_k))
        [hits] = self.retriever._search(queries, k=more, explain=explain, **call)
        if lambda_mult is not None:
            vectors = self.retriever.index.vectors(hits)
            hits = diversify(hits, vectors, k, lambda_mult)
        return [from_hit(hit, None, explain) for hit in hits]

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        return float  # a probability

    # palmette's threads instead of asyncio's few: queries that arrive together share one pass of the encoder
    aadd_documents = AsyncTwin(add_documents).method
    aadd_texts = AsyncTwin(add_texts).method
    adelete = AsyncTwin(delete).method
    aget_by_ids = AsyncTwin(get_by_ids).method
    asimilarity_search = AsyncTwin(similarity_search).method
    asimilarity_search_with_score = AsyncTwin(similarity_search_with_score).method
    asimilarity_search_by_vector = AsyncTwin(similarity_search_by_vector).method
    amax_marginal_relevance_search = AsyncTwin(max_marginal_relevance_search).method
    amax_marginal_relevance_search_by_vector = AsyncTwin(max_marginal_relevance_search_by_vector).method
