"""Whatever is handed to an adapter: it works, or raises a PalmetteError or the framework's own error."""

from __future__ import annotations

from collections.abc import Callable
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
from palmette import FakeEncoder, Index, SpaceModel
from support import readers
from support.odd import (
    COUNTS,
    FILTERS,
    GIVEN_IDS,
    IDS,
    METADATA,
    OPTIONS,
    QUERIES,
    TEXTS,
    VALUES,
    attempt,
    check,
    many,
    options,
    some,
)

LC = {name: OPTIONS[name] for name in ("k", "filter", "lexical", "explain", "level")}
LC |= {"score_threshold": VALUES}
LC_FIELDS = LC | dict.fromkeys("search_options score_key engine index_path model batch_size".split(), VALUES)
SOME_IDS = GIVEN_IDS | st.none()
NOTHING = st.just(dict[str, Any]())
VECTORS = VALUES | st.just([1.0] * 16)
DIVERSE = {"k": COUNTS, "fetch_k": COUNTS, "lambda_mult": VALUES}
ODD_KEYS = st.sampled_from(["lang", "__proto__", "\ud800", "ref_doc_id"])
ODD_METADATA = METADATA | st.dictionaries(ODD_KEYS, VALUES, max_size=2)
ANY_ID = st.sampled_from(IDS) | VALUES
GIVEN = st.tuples(TEXTS | st.sampled_from(["", " "]), ODD_METADATA, st.sampled_from(IDS) | st.none())
DOCUMENTS = st.lists(GIVEN, max_size=3)
NODES = st.tuples(DOCUMENTS, st.tuples(*[st.sampled_from([TextNode, IndexNode])] * 3))
LI_FILTER = st.tuples(
    st.sampled_from(["lang", "n", "$id", ""]), st.sampled_from(FilterOperator), VALUES | st.sampled_from(["en", ["en"]])
)
LI_FILTERS = st.tuples(st.just("made"), st.sampled_from(FilterCondition), LI_FILTER, LI_FILTER) | FILTERS
LI = {"filters": LI_FILTERS, "lexical": OPTIONS["lexical"]}
LI |= dict.fromkeys(("score_threshold", "explain", "level"), VALUES)
STORE = {
    "similarity_top_k": st.integers(-1, 4) | VALUES,
    "query_str": QUERIES,
    "filters": LI_FILTERS,
    "mode": st.sampled_from(VectorStoreQueryMode),
} | {n: VALUES for n in ("query_embedding", "doc_ids", "node_ids", "alpha", "mmr_threshold", "hybrid_top_k")}


def documents(given: Any) -> list[Document]:
    """LangChain documents, past their own validation where that refuses the values."""
    made = []
    for text, metadata, id in given:
        fields = {"page_content": text, "metadata": metadata, "id": id}
        try:
            made.append(Document(**fields))
        except ValueError:
            made.append(Document.model_construct(**fields))
    return made


def node(text: Any, metadata: Any, id: Any, kind: Any = TextNode) -> Any:
    fields = {"text": text, "metadata": metadata, "id_": id, "index_id": "i"}
    return kind(**{name: value for name, value in fields.items() if value is not None})


def nodes(given: Any) -> list[Any]:
    return [node(*one, kind) for one, kind in zip(*given, strict=False)]


def scored(given: Any) -> list[NodeWithScore]:
    return [NodeWithScore(node=one) for one in nodes(given)]


def filters(given: Any) -> Any:
    if not isinstance(given, tuple) or given[:1] != ("made",):
        return given
    parts = [MetadataFilter(key=key, operator=operator, value=value) for key, operator, value in given[2:]]
    return MetadataFilters(filters=parts, condition=given[1])


def opened(given: dict[str, Any]) -> dict[str, Any]:
    return {name: filters(value) if name == "filters" else value for name, value in given.items()}


def translated(comparator: Any, operator: Any, name: str, value: Any) -> Any:
    comparison = Comparison(comparator=comparator, attribute=name, value=value)
    operation = Operation(operator=operator, arguments=[comparison])
    query = StructuredQuery(query="owl", filter=operation, limit=None)
    return lc.PalmetteTranslator().visit_structured_query(query)[1]["filter"]


def on(of: Callable[[Index], Any], names: str, *given: Any, how: Any = NOTHING) -> list[tuple[Any, ...]]:
    """Calls of methods; a pair of a function and a strategy is what the function makes of what is drawn."""
    pairs = [one if isinstance(one, tuple) else (lambda value: value, one) for one in given]

    def calls(name: str) -> tuple[Any, ...]:
        def call(index: Index, keywords: Any, *values: Any) -> None:
            made = [convert(value) for (convert, _), value in zip(pairs, values, strict=True)]
            getattr(of(index), name)(*made, **opened(keywords))

        call.__qualname__ = call.__name__ = name
        return call, how, *(strategy for _, strategy in pairs)

    return [calls(name) for name in names.split()]


lc_retriever, lc_store = lc.PalmetteRetriever.from_index, lc.PalmetteVectorStore.from_index
LANGCHAIN: list[tuple[Any, ...]] = [
    *on(lc_retriever, "invoke batch similarity_search_with_score", QUERIES, how=options(LC)),
    *on(
        lc_retriever,
        "upsert add_documents",
        (documents, DOCUMENTS),
        how=options({"batch_size": VALUES, "progress": st.just(False)}),
    ),
    *on(lc_retriever, "get", GIVEN_IDS),
    *on(lc_retriever, "delete", GIVEN_IDS, how=options(OPTIONS, "filter")),
    *on(lc_store, "add_documents", (documents, DOCUMENTS), how=options({"ids": SOME_IDS})),
    *on(
        lc_store,
        "add_texts",
        st.lists(TEXTS, max_size=2) | VALUES,
        st.lists(ODD_METADATA, max_size=2) | VALUES,
        how=options({"ids": SOME_IDS}),
    ),
    *on(lc_store, "get_by_ids delete", GIVEN_IDS),
    *on(
        lc_store,
        "similarity_search similarity_search_with_relevance_scores",
        QUERIES,
        COUNTS,
        how=options(LC, "filter", "lexical", "explain", "score_threshold"),
    ),
    *on(lc_store, "similarity_search_by_vector", VECTORS, COUNTS),
    *on(lc_store, "max_marginal_relevance_search", QUERIES, how=options({**DIVERSE, "filter": FILTERS})),
    *on(lc_store, "max_marginal_relevance_search_by_vector", VECTORS, how=options(DIVERSE)),
    *on(lambda index: lc.PalmetteEmbeddings(model=index.model), "embed_query", QUERIES),
    (lambda index, how: lc_retriever(index, **how).invoke("red owl"), options(LC_FIELDS)),
    (
        lambda index, given, how: lc.PalmetteRetriever.from_documents(documents(given), index.model, **how),
        DOCUMENTS,
        options(LC_FIELDS),
    ),
    (
        lambda index, given, how: lc.PalmetteVectorStore.from_texts(given, index.model, **how),
        st.lists(TEXTS),
        options({"ids": GIVEN_IDS, **LC}),
    ),
    (
        lambda index, *given: index.search("owl", filter=translated(*given)),
        st.sampled_from(Comparator),
        st.sampled_from(Operator),
        st.sampled_from(["lang", "n"]),
        VALUES,
    ),
    (
        lambda index, how, given, query: lc.PalmetteReranker(model=index.model, **how).compress_documents(
            documents(given), query
        ),
        some("top_n lexical language search_options score_key"),
        DOCUMENTS,
        QUERIES,
    ),
    (
        lambda index, how, texts: lc.PalmetteEmbeddings(model=index.model, **how).embed_documents(texts),
        some("representation level encoder"),
        QUERIES,
    ),
    (
        lambda index, how, given: lc.PalmetteReader(reader=readers.sentence_reader(), **how).invoke(given),
        some("threshold output question_key"),
        VALUES,
    ),
    *on(
        lambda index: lc.PalmetteReader(reader=readers.sentence_reader()),
        "invoke",
        (lambda pair: {"question": pair[0], "documents": documents(pair[1])}, st.tuples(QUERIES, DOCUMENTS)),
    ),
    *on(
        lambda index: lc.PalmetteReader(reader=readers.sentence_reader()),
        "batch",
        (lambda pair: [{"question": pair[0], "documents": pair[1]}], st.tuples(QUERIES, VALUES)),
    ),
]

li_retriever, li_store = li.PalmetteRetriever.from_index, li.PalmetteVectorStore.from_index
LLAMA: list[tuple[Any, ...]] = [
    *on(li_retriever, "retrieve retrieve_batch", QUERIES),
    *on(li_retriever, "explain", QUERIES, ANY_ID),
    *on(li_retriever, "add upsert insert_nodes refresh_ref_docs", (nodes, NODES)),
    *on(li_retriever, "insert update_ref_doc", (lambda given: node(*given), GIVEN)),
    *on(li_retriever, "get_nodes delete_nodes delete_ref_doc", GIVEN_IDS),
    *on(li_retriever, "persist", VALUES),
    *on(lambda index: li.PalmetteRetriever, "from_persist_dir", VALUES),
    *on(li_store, "add", (nodes, NODES)),
    *on(li_store, "get_nodes delete_nodes", SOME_IDS, (filters, LI_FILTERS | st.none())),
    *on(li_store, "delete", ANY_ID),
    *on(li_store, "persist", VALUES),
    *on(lambda index: li.PalmetteEmbedding(index.model), "get_query_embedding get_text_embedding_batch", QUERIES),
    *on(lambda index: li.PalmetteSynthesizer(readers.sentence_reader()), "get_response", QUERIES, VALUES),
    (
        lambda index, query, how: li_retriever(index).retrieve(li.PalmetteQuery(query, **opened(how))),
        QUERIES,
        options(LI | {"top_k": COUNTS, "options": VALUES}),
    ),
    (
        lambda index, query, vector, texts: li_retriever(index).retrieve(
            QueryBundle(query, embedding=vector, custom_embedding_strs=texts)
        ),
        st.sampled_from(["owl", ""]),
        VECTORS,
        QUERIES | VALUES,
    ),
    (lambda index, how: li_retriever(index, **opened(how)).retrieve("owl"), options(LI | {"similarity_top_k": COUNTS})),
    (lambda index: li_retriever(index).ref_doc_info,),
    (
        lambda index, given, how: li.PalmetteRetriever.from_documents(nodes(given), index.model, **opened(how)),
        NODES,
        options(LI | {"index_path": VALUES, "engine": VALUES, "transformations": VALUES}),
    ),
    (lambda index, how: li_store(index).query(VectorStoreQuery(**opened(how))), options(STORE)),
    (
        lambda index, how, more: li_store(index).query(
            VectorStoreQuery(query_str="owl", similarity_top_k=2, **opened(how)), **more
        ),
        options(STORE, "filters", "mode", "alpha", "node_ids", "doc_ids"),
        some("mmr_threshold level"),
    ),
    (
        lambda index, how, given, query: li.PalmetteRerank(index.model, **how).postprocess_nodes(
            scored(given), query_str=query
        ),
        some("top_n lexical language level"),
        NODES,
        QUERIES,
    ),
    (
        lambda index, how: li.PalmetteEmbedding(index.model, **how).get_text_embedding("owl"),
        some("representation level embed_batch_size"),
    ),
    (
        lambda index, how, query, given: li.PalmetteSynthesizer(readers.sentence_reader(), **how).synthesize(
            query, scored(given)
        ),
        some("threshold no_answer"),
        QUERIES,
        NODES,
    ),
]


@pytest.mark.parametrize("uses", [LANGCHAIN, LLAMA], ids=["langchain", "llama_index"])
@pytest.mark.parametrize("examples", [30, pytest.param(600, marks=pytest.mark.exhaustive)])
def test_nothing_else_is_raised(
    uses: list[tuple[Any, ...]], examples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(made: list[tuple[Any, ...]]) -> None:
        with Index.in_memory(SpaceModel.untrained(FakeEncoder(16))) as index:
            index.add([{"id": "a", "text": "red fox", "metadata": {"lang": "en", "n": 1}}])
            for use, *given in made:
                check(attempt(use, index, *given, also=ValidationError))
            index.verify()

    many(run, uses, examples)
