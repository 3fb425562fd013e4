"""Whatever is handed to an adapter: it works, or raises a PalmetteError or the framework's own error."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.structured_query import Comparator, Comparison, Operation, Operator, StructuredQuery
from llama_index.core.schema import IndexNode, NodeWithScore, QueryBundle, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)
from pydantic import ValidationError

import langchain_palmette as lc
import llama_index.retrievers.palmette as li
from fuzz.test_calls import use_index
from support import odd, readers
from support.odd import COUNTS, FILTERS, GIVEN_IDS, OPTIONS, QUERIES, TEXTS, VALUES, calls, made, many, options, some

METADATA = odd.METADATA | st.dictionaries(
    st.sampled_from(["lang", "__proto__", "\ud800", "ref_doc_id"]), VALUES, max_size=2
)
GIVEN = st.tuples(TEXTS | st.sampled_from(["", " "]), METADATA, st.sampled_from(odd.IDS) | st.none())
VECTORS = VALUES | st.just([1.0] * 16)
NO, EITHER = st.just(None), st.booleans()


def document(given: tuple[Any, ...]) -> Document:
    """A LangChain document, past its own validation where that refuses the values."""
    fields = dict(zip(("page_content", "metadata", "id"), given, strict=True))
    try:
        return Document(**fields)
    except ValueError:
        return Document.model_construct(**fields)


def node(given: tuple[Any, ...], kind: Any = TextNode) -> Any:
    fields = dict(zip(("text", "metadata", "id_"), given, strict=True)) | {"index_id": "i"}
    return kind(**{name: value for name, value in fields.items() if value is not None})


def narrowed(given: tuple[Any, ...]) -> MetadataFilters:
    condition, *parts = given
    filters = [MetadataFilter(key=key, operator=operator, value=value) for key, operator, value in parts]
    return MetadataFilters(filters=filters, condition=condition)


def translated(comparator: Any, operator: Any, name: str, value: Any) -> Any:
    comparison = Comparison(comparator=comparator, attribute=name, value=value)
    operation = Operation(operator=operator, arguments=[comparison])
    query = StructuredQuery(query="owl", filter=operation, limit=None)
    return lc.PalmetteTranslator().visit_structured_query(query)[1]["filter"]


DOCUMENTS = st.lists(made(document, GIVEN), max_size=3)
LC = {name: OPTIONS[name] for name in ("k", "filter", "lexical", "explain", "level")} | {"score_threshold": VALUES}
FIELDS = LC | dict.fromkeys("search_options score_key engine index_path batch_size".split(), VALUES)
PASSAGES = st.fixed_dictionaries({"question": QUERIES, "documents": DOCUMENTS | VALUES})
TEXTUAL = dict.fromkeys(("input", "inputs", "query", "text"), QUERIES)
LC_KNOWN = TEXTUAL | {
    "texts": st.lists(TEXTS, max_size=2) | VALUES, "metadatas": st.lists(METADATA, max_size=2) | VALUES,
    "documents": DOCUMENTS, "items": DOCUMENTS, "ids": GIVEN_IDS | NO, "embedding": VECTORS, "k": COUNTS,
    "fetch_k": COUNTS, "config": NO, "callbacks": NO, "return_exceptions": EITHER,
}  # fmt: skip
retriever, store = lc.PalmetteRetriever.from_index, lc.PalmetteVectorStore.from_index
LANGCHAIN: list[tuple[Any, ...]] = [
    *calls(lc.PalmetteRetriever, "invoke batch similarity_search_with_score", LC_KNOWN, retriever, LC),
    *calls(lc.PalmetteRetriever, "upsert add_documents", LC_KNOWN, retriever),
    *calls(lc.PalmetteRetriever, "get delete", LC_KNOWN, retriever, {"filter": FILTERS}),
    *calls(lc.PalmetteVectorStore, "add_documents add_texts get_by_ids delete", LC_KNOWN, store),
    *calls(lc.PalmetteVectorStore, "similarity_search similarity_search_with_relevance_scores", LC_KNOWN, store, LC),
    *calls(lc.PalmetteVectorStore, "similarity_search_by_vector", LC_KNOWN, store),
    *calls(lc.PalmetteVectorStore, "max_marginal_relevance_search", LC_KNOWN, store, {"filter": FILTERS}),
    *calls(lc.PalmetteVectorStore, "max_marginal_relevance_search_by_vector", LC_KNOWN, store),
    (lambda index, query: lc.PalmetteEmbeddings(model=index.model).embed_query(query), QUERIES),
    (lambda index, how: retriever(index, **how).invoke("red owl"), options(FIELDS | {"model": VALUES})),
    (
        lambda index, *given: lc.PalmetteRetriever.from_documents(given[0], index.model, **given[1]),
        DOCUMENTS,
        options(FIELDS),
    ),
    (
        lambda index, texts, how: lc.PalmetteVectorStore.from_texts(texts, index.model, **how),
        st.lists(TEXTS),
        options({"ids": GIVEN_IDS, **LC}),
    ),
    (
        lambda index, *given: index.search("owl", filter=translated(*given)),
        *(st.sampled_from(one) for one in (Comparator, Operator, ["lang", "n"])),
        VALUES,
    ),
    (
        lambda index, how, *given: lc.PalmetteReranker(model=index.model, **how).compress_documents(*given),
        some("top_n lexical language search_options score_key"),
        DOCUMENTS,
        QUERIES,
    ),
    (
        lambda index, how, texts: lc.PalmetteEmbeddings(model=index.model, **how).embed_documents(texts),
        some("encoder"),
        QUERIES,
    ),
    (
        lambda index, how, given: lc.PalmetteReader(reader=readers.sentence_reader(), **how).invoke(given),
        some("threshold output question_key"),
        PASSAGES | VALUES,
    ),
    (lambda index, given: lc.PalmetteReader(reader=readers.sentence_reader()).batch([given]), PASSAGES),
]

NODE = made(node, GIVEN) | made(lambda given: node(given, IndexNode), GIVEN)
NODES = st.lists(NODE, max_size=3)
SCORED = st.lists(made(lambda one: NodeWithScore(node=one), NODE), max_size=3)
LI_FILTER = st.tuples(
    st.sampled_from(["lang", "n", "$id", ""]), st.sampled_from(FilterOperator), VALUES | st.sampled_from(["en", ["en"]])
)
LI_FILTERS = made(narrowed, st.tuples(st.sampled_from(FilterCondition), LI_FILTER, LI_FILTER)) | FILTERS
LI = {"filters": LI_FILTERS, "lexical": OPTIONS["lexical"]}
LI |= dict.fromkeys(("score_threshold", "explain", "level"), VALUES)
STORE = {
    "similarity_top_k": st.integers(-1, 4) | VALUES,
    "query_str": QUERIES,
    "filters": LI_FILTERS,
    "mode": st.sampled_from(VectorStoreQueryMode),
} | {n: VALUES for n in ("query_embedding", "doc_ids", "node_ids", "alpha", "mmr_threshold", "hybrid_top_k")}
OWL = {"query_str": "owl", "similarity_top_k": 2}
ANY_ID = st.sampled_from(odd.IDS) | VALUES
TEXTUAL = dict.fromkeys(("str_or_query_bundle", "query", "queries", "query_str"), QUERIES)
LI_KNOWN = TEXTUAL | {
    "nodes": NODES, "documents": NODES, "document": made(node, GIVEN), "node_ids": GIVEN_IDS, "node_id": ANY_ID,
    "ref_doc_id": ANY_ID, "filters": LI_FILTERS | NO, "show_progress": NO, "delete_from_docstore": EITHER, "fs": NO,
}  # fmt: skip
li_retriever, li_store = li.PalmetteRetriever.from_index, li.PalmetteVectorStore.from_index
WRITES = "add upsert insert insert_nodes refresh_ref_docs update_ref_doc get_nodes delete_nodes delete_ref_doc persist"
LLAMA: list[tuple[Any, ...]] = [
    *calls(li.PalmetteRetriever, f"retrieve retrieve_batch explain {WRITES}", LI_KNOWN, li_retriever),
    *calls(li.PalmetteRetriever, "from_persist_dir", LI_KNOWN, lambda index: li.PalmetteRetriever),
    *calls(li.PalmetteVectorStore, "add get_nodes delete_nodes delete persist", LI_KNOWN, li_store),
    (lambda index, query: li.PalmetteEmbedding(index.model).get_query_embedding(query), QUERIES),
    (lambda index, texts: li.PalmetteEmbedding(index.model).get_text_embedding_batch(texts), QUERIES),
    (lambda index, *given: li.PalmetteSynthesizer(readers.sentence_reader()).get_response(*given), QUERIES, VALUES),
    (
        lambda index, query, how: li_retriever(index).retrieve(li.PalmetteQuery(query, **how)),
        QUERIES,
        options(LI | {"top_k": COUNTS, "options": VALUES}),
    ),
    (
        lambda index, query, *more: li_retriever(index).retrieve(QueryBundle(query, *more)),
        st.sampled_from(["owl", ""]),
        NO,
        QUERIES | VALUES,
        VECTORS,
    ),
    (lambda index, how: li_retriever(index, **how).retrieve("owl"), options(LI | {"similarity_top_k": COUNTS})),
    (lambda index: li_retriever(index).ref_doc_info,),
    (
        lambda index, given, how: li.PalmetteRetriever.from_documents(given, index.model, **how),
        NODES,
        options(LI | dict.fromkeys(("index_path", "engine", "transformations"), VALUES)),
    ),
    (
        lambda index, how, more: li_store(index).query(VectorStoreQuery(**OWL | how), **more),
        options(STORE),
        some("mmr_threshold level"),
    ),
    (
        lambda index, how, nodes, query: li.PalmetteRerank(index.model, **how).postprocess_nodes(
            nodes, query_str=query
        ),
        some("top_n lexical language level"),
        SCORED,
        QUERIES,
    ),
    (lambda index, how: li.PalmetteEmbedding(index.model, **how).get_text_embedding("owl"), some("embed_batch_size")),
    (
        lambda index, how, *given: li.PalmetteSynthesizer(readers.sentence_reader(), **how).synthesize(*given),
        some("threshold no_answer"),
        QUERIES,
        SCORED,
    ),
]


@pytest.mark.parametrize("uses", [LANGCHAIN, LLAMA], ids=["langchain", "llama_index"])
@pytest.mark.parametrize("examples", [30, pytest.param(600, marks=pytest.mark.exhaustive)])
def test_nothing_else_is_raised(
    uses: list[tuple[Any, ...]], examples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    many(partial(use_index, also=ValidationError), uses, examples)
