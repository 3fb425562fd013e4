"""LangChain's and LlamaIndex's adapters behind one interface, for tests of what both do alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import langchain_core.documents
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

import langchain_palmette
import llama_index.retrievers.palmette as llama_palmette
from palmette import Explanation


class Given(NamedTuple):
    """A document that may be blank."""

    id: str
    text: str
    metadata: Mapping[str, Any] = MappingProxyType({})
    fields: Mapping[str, Any] = MappingProxyType({})


class Found(NamedTuple):
    """A result; ``why`` is its explanation as JSON."""

    id: str
    score: float
    text: str
    metadata: dict[str, Any]
    why: dict[str, Any] | None


class LangChain:
    """Documents, invocations and compressors."""

    package: Any = langchain_palmette

    def documents(self, documents: Sequence[Any]) -> list[Any]:
        return [
            langchain_core.documents.Document(
                id=d.id,
                page_content=d.text,
                metadata={**d.metadata, **({"title": ""} if d.fields else {}), **d.fields},
            )
            for d in documents
        ]

    def build(self, kind: str, documents: Sequence[Any], model: Any, **options: Any) -> Any:
        cls = getattr(self.package, kind)
        return cls.from_documents(self.documents(documents), model, score_key="score", **options)

    def over(self, kind: str, index: Any, **options: Any) -> Any:
        return getattr(self.package, kind).from_index(index, score_key="score", **options)

    def ask(self, retriever: Any, query: Any, **options: Any) -> list[Found]:
        found = []
        for document in retriever.invoke(query, **options):
            metadata = dict(document.metadata)
            score, why = metadata.pop("score"), metadata.pop("explanation", None)
            found.append(Found(document.id, score, document.page_content, metadata, why))
        return found

    def write(self, retriever: Any, documents: Sequence[Any]) -> None:
        retriever.upsert(self.documents(documents))

    def held(self, retriever: Any, ids: Sequence[str]) -> list[str]:
        return [document.id for document in retriever.get(ids)]

    def delete(self, retriever: Any, ids: Sequence[str]) -> list[str]:
        return retriever.delete(ids)["succeeded"]

    def rerank(
        self, model: Any, texts: Sequence[str], query: str, *, level: int | None = None, **how: Any
    ) -> Any:
        """Places of the texts that are kept, best first, and their scores."""
        reranker = self.package.PalmetteReranker(model=model, search_options={"level": level}, **how)
        given = self.documents([Given(str(place), text) for place, text in enumerate(texts)])
        ranked = reranker.compress_documents(given, query)
        assert not any("relevance_score" in one.metadata for one in given), "given documents stay as they are"
        return [(int(one.id), one.metadata["relevance_score"]) for one in ranked]

    def embeddings(self, model: Any, **options: Any) -> tuple[Any, Any]:
        """Functions that embed texts and a query."""
        made = self.package.PalmetteEmbeddings(model=model, **options)
        return made.embed_documents, made.embed_query

    def answer(self, reader: Any, query: str, texts: Sequence[str], **options: Any) -> Any:
        """Answer, ``None`` for none, with its confidence and supports."""
        documents = self.documents([Given(f"n{place}", text) for place, text in enumerate(texts)])
        told = self.package.PalmetteReader(reader=reader, **options).invoke(
            {"question": query, "documents": documents}
        )
        return told["answer"], told["confidence"], told["supports"]


class LlamaIndex:
    """Nodes, queries and postprocessors."""

    package: Any = llama_palmette

    def documents(self, documents: Sequence[Any]) -> list[Any]:
        """Nodes known by their texts: metadata are not put before them."""
        return [
            TextNode(id_=d.id, text=d.text, metadata=metadata, excluded_embed_metadata_keys=[*metadata])
            for d in documents
            for metadata in [{**d.metadata, **d.fields}]
        ]

    def _settings(self, options: dict[str, Any], k: str) -> dict[str, Any]:
        return {{"k": k, "filter": "filters"}.get(name, name): value for name, value in options.items()}

    def build(self, kind: str, documents: Sequence[Any], model: Any, **options: Any) -> Any:
        cls, settings = getattr(self.package, kind), self._settings(options, "similarity_top_k")
        return cls.from_documents(self.documents(documents), model, **settings)

    def over(self, kind: str, index: Any, **options: Any) -> Any:
        return getattr(self.package, kind)(index, **self._settings(options, "similarity_top_k"))

    def ask(self, retriever: Any, query: Any, **options: Any) -> list[Found]:
        asked = self.package.PalmetteQuery(query, **self._settings(options, "top_k"))
        found = []
        for one in retriever.retrieve(asked):
            why = getattr(one, "explanation", None)
            told = why.to_dict() if isinstance(why, Explanation) else None
            found.append(Found(one.node_id, one.score, one.node.get_content(), one.node.metadata, told))
        return found

    def write(self, retriever: Any, documents: Sequence[Any]) -> None:
        retriever.upsert(self.documents(documents))

    def held(self, retriever: Any, ids: Sequence[str]) -> list[str]:
        return [node.node_id for node in retriever.get_nodes(ids)]

    def delete(self, retriever: Any, ids: Sequence[str]) -> list[str]:
        return retriever.delete_nodes(ids)

    def rerank(self, model: Any, texts: Sequence[str], query: str, *, top_n: int = 99, **how: Any) -> Any:
        """Places of the texts that are kept, best first, and their scores."""
        made = self.package.PalmetteRerank(model, top_n=top_n, **how)
        given = [
            NodeWithScore(node=TextNode(id_=str(n), text=text), score=0.5) for n, text in enumerate(texts)
        ]
        ranked = made.postprocess_nodes(given, QueryBundle(query))
        assert {one.score for one in given} <= {0.5}, "given nodes stay as they are"
        return [(int(one.node_id), one.score) for one in ranked]

    def embeddings(self, model: Any, **options: Any) -> tuple[Any, Any]:
        """Functions that embed texts and a query."""
        made = self.package.PalmetteEmbedding(model, **options)
        return made.get_text_embedding_batch, made.get_query_embedding

    def answer(self, reader: Any, query: str, texts: Sequence[str], **options: Any) -> Any:
        """Answer, ``None`` for none, with its confidence and supports."""
        nodes = [NodeWithScore(node=TextNode(id_=f"n{n}", text=text)) for n, text in enumerate(texts)]
        told = self.package.PalmetteSynthesizer(reader, no_answer="?", **options).synthesize(query, nodes)
        facts = told.metadata["answer"]
        return None if str(told) == "?" else str(told), facts["confidence"], facts["supports"]


FRAMEWORKS = {"LangChain": LangChain(), "LlamaIndex": LlamaIndex()}
