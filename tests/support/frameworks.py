"""LangChain's and LlamaIndex's adapters behind one interface, for tests of what both do alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
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


class Framework:
    """What is written alike."""

    package: Any
    documents: Any
    settings: Any
    """Options of a retriever under the framework's names."""
    batching: str
    """The method of many queries."""
    id_of: Any

    def build(self, kind: str, documents: Sequence[Any], model: Any, **options: Any) -> Any:
        made = self.documents(documents)
        return getattr(self.package, kind).from_documents(made, model, **self.settings(options))

    def over(self, kind: str, index: Any, **options: Any) -> Any:
        return getattr(self.package, kind).from_index(index, **self.settings(options))

    def write(self, retriever: Any, documents: Sequence[Any]) -> None:
        retriever.upsert(self.documents(documents))

    def batch(self, retriever: Any, queries: Sequence[str]) -> list[list[str]]:
        return [[*map(self.id_of, found)] for found in getattr(retriever, self.batching)(queries)]

    async def abatch(self, retriever: Any, queries: Sequence[str]) -> list[list[str]]:
        return [[*map(self.id_of, found)] for found in await getattr(retriever, f"a{self.batching}")(queries)]


class LangChain(Framework):
    """Documents, invocations and compressors."""

    package, batching, id_of = langchain_palmette, "batch", attrgetter("id")

    def documents(self, documents: Sequence[Any]) -> list[Any]:
        made = []
        for d in documents:
            metadata = {**d.metadata, **({"title": ""} if d.fields else {}), **d.fields}
            made.append(langchain_core.documents.Document(id=d.id, page_content=d.text, metadata=metadata))
        return made

    def settings(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"score_key": "score", **options}

    def ask(self, retriever: Any, query: Any, **options: Any) -> list[Found]:
        found = []
        for document in retriever.invoke(query, **options):
            metadata = dict(document.metadata)
            score, why = metadata.pop("score"), metadata.pop("explanation", None)
            found.append(Found(document.id, score, document.page_content, metadata, why))
        return found

    async def aask(self, retriever: Any, query: str, **options: Any) -> list[str]:
        """Ids of the results, searched asynchronously."""
        return [document.id for document in await retriever.ainvoke(query, **options)]

    def held(self, retriever: Any, ids: Sequence[str]) -> list[str]:
        return [document.id for document in retriever.get(ids)]

    def delete(self, retriever: Any, ids: Sequence[str]) -> list[str]:
        return retriever.delete(ids)["succeeded"]

    def rerank(self, model: Any, texts: Sequence[str], query: str, *, level: int | None = None, **how: Any) -> Any:
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
        asked = {"question": query, "documents": documents}
        told = self.package.PalmetteReader(reader=reader, **options).invoke(asked)
        return told["answer"], told["confidence"], told["supports"]


class LlamaIndex(Framework):
    """Nodes, queries and postprocessors."""

    package, batching, id_of = llama_palmette, "retrieve_batch", attrgetter("node_id")

    def documents(self, documents: Sequence[Any]) -> list[Any]:
        """Nodes known by their texts: metadata are not put before them."""
        made = []
        for d in documents:
            hidden = {"metadata": {**d.metadata, **d.fields}, "excluded_embed_metadata_keys": [*d.metadata, *d.fields]}
            made.append(TextNode(id_=d.id, text=d.text, **hidden))
        return made

    def settings(self, options: dict[str, Any], k: str = "similarity_top_k") -> dict[str, Any]:
        return {{"k": k, "filter": "filters"}.get(name, name): value for name, value in options.items()}

    def query(self, query: Any, options: dict[str, Any]) -> Any:
        return self.package.PalmetteQuery(query, **self.settings(options, "top_k"))

    def ask(self, retriever: Any, query: Any, **options: Any) -> list[Found]:
        found = []
        for one in retriever.retrieve(self.query(query, options)):
            why = getattr(one, "explanation", None)
            told = why.to_dict() if isinstance(why, Explanation) else None
            found.append(Found(one.node_id, one.score, one.node.get_content(), one.node.metadata, told))
        return found

    async def aask(self, retriever: Any, query: str, **options: Any) -> list[str]:
        """Ids of the results, searched asynchronously."""
        return [one.node_id for one in await retriever.aretrieve(self.query(query, options))]

    def held(self, retriever: Any, ids: Sequence[str]) -> list[str]:
        return [node.node_id for node in retriever.get_nodes(ids)]

    def delete(self, retriever: Any, ids: Sequence[str]) -> list[str]:
        return retriever.delete_nodes(ids)

    def rerank(self, model: Any, texts: Sequence[str], query: str, *, top_n: int = 99, **how: Any) -> Any:
        made = self.package.PalmetteRerank(model, top_n=top_n, **how)
        nodes = [TextNode(id_=str(place), text=text) for place, text in enumerate(texts)]
        given = [NodeWithScore(node=node, score=0.5) for node in nodes]
        ranked = made.postprocess_nodes(given, QueryBundle(query))
        assert {one.score for one in given} <= {0.5}, "given nodes stay as they are"
        return [(int(one.node_id), one.score) for one in ranked]

    def embeddings(self, model: Any, **options: Any) -> tuple[Any, Any]:
        made = self.package.PalmetteEmbedding(model, **options)
        return made.get_text_embedding_batch, made.get_query_embedding

    def answer(self, reader: Any, query: str, texts: Sequence[str], **options: Any) -> Any:
        nodes = [NodeWithScore(node=TextNode(id_=f"n{n}", text=text)) for n, text in enumerate(texts)]
        told = self.package.PalmetteSynthesizer(reader, no_answer="?", **options).synthesize(query, nodes)
        facts = told.metadata["answer"]
        return None if str(told) == "?" else str(told), facts["confidence"], facts["supports"]


SECTIONS = "\n\n".join(f"## Part {n}\n\nThe {n} owls of house {n} sing at night, and sleep." for n in range(6))
FRAMEWORKS = {"LangChain": LangChain(), "LlamaIndex": LlamaIndex()}
