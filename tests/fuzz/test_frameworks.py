"""Whatever is handed to an adapter: it works, or raises a PalmetteError or the framework's own error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import langchain_core.documents as lc
import pytest
from hypothesis import strategies as st
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

import langchain_palmette as ours_lc
import llama_index.retrievers.palmette as ours_li
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
)

lc_retriever, lc_store = ours_lc.PalmetteRetriever.from_index, ours_lc.PalmetteVectorStore.from_index
li_retriever, li_store = ours_li.PalmetteRetriever.from_index, ours_li.PalmetteVectorStore.from_index

# -- LangChain ----------------------------------------------------------------------------------------------

LC = {name: OPTIONS[name] for name in ("k", "filter", "lexical", "explain", "level")} | {
    "score_threshold": VALUES
}
LC_FIELDS = LC | {
    name: VALUES for name in ("search_options", "score_key", "engine", "index_path", "model", "batch_size")
}
ODD_METADATA = METADATA | st.dictionaries(
    st.sampled_from(["lang", "__proto__", "\ud800", "ref_doc_id"]), VALUES, max_size=2
)


def document(text: Any, metadata: Any, id: Any) -> Any:
    """A LangChain document, past its own validation where that refuses the values."""
    try:
        return lc.Document(page_content=text, metadata=metadata, id=id)
    except ValueError:
        return lc.Document.model_construct(page_content=text, metadata=metadata, id=id)


DOCUMENTS = st.lists(
    st.tuples(TEXTS | st.sampled_from(["", " "]), ODD_METADATA, st.sampled_from(IDS) | st.none()), max_size=3
)


def made(documents: Any) -> list[Any]:
    return [document(*one) for one in documents]


def translated(comparator: Any, operator: Any, name: str, value: Any) -> Any:
    comparison = Comparison(comparator=comparator, attribute=name, value=value)
    query = StructuredQuery(
        query="owl", filter=Operation(operator=operator, arguments=[comparison]), limit=None
    )
    return ours_lc.PalmetteTranslator().visit_structured_query(query)[1]["filter"]


LANGCHAIN: list[tuple[Any, ...]] = [
    (lambda index, query, how: lc_retriever(index).invoke(query, **how), QUERIES, options(LC)),
    (lambda index, fields: lc_retriever(index, **fields).invoke("red owl"), options(LC_FIELDS)),
    (lambda index, queries, how: lc_retriever(index).batch(queries, **how), QUERIES, options(LC)),
    (
        lambda index, query, how: lc_retriever(index).similarity_search_with_score(query, **how),
        QUERIES,
        options(LC),
    ),
    (
        lambda index, how, given, more: getattr(lc_retriever(index), how)(made(given), **more),
        st.sampled_from(["upsert", "add_documents"]),
        DOCUMENTS,
        options({"batch_size": VALUES, "progress": st.just(False)}),
    ),
    (lambda index, ids: lc_retriever(index).get(ids), GIVEN_IDS),
    (lambda index, ids, how: lc_retriever(index).delete(ids, **how), GIVEN_IDS, options(OPTIONS, "filter")),
    (
        lambda index, given, fields: ours_lc.PalmetteRetriever.from_documents(
            made(given), index.model, **fields
        ),
        DOCUMENTS,
        options(LC_FIELDS),
    ),
    (
        lambda index, given, ids: lc_store(index).add_documents(made(given), ids=ids),
        DOCUMENTS,
        GIVEN_IDS | st.none(),
    ),
    (
        lambda index, texts, metadatas, ids: lc_store(index).add_texts(texts, metadatas, ids=ids),
        st.lists(TEXTS, max_size=2) | VALUES,
        st.lists(ODD_METADATA, max_size=2) | VALUES,
        GIVEN_IDS | st.none(),
    ),
    (lambda index, ids: lc_store(index).get_by_ids(ids), GIVEN_IDS),
    (lambda index, ids: lc_store(index).delete(ids), GIVEN_IDS),
    (
        lambda index, query, k, how: lc_store(index).similarity_search(query, k, **how),
        QUERIES,
        COUNTS,
        options(LC, "filter", "lexical", "explain", "score_threshold"),
    ),
    (
        lambda index, query, k, how: lc_store(index).similarity_search_with_relevance_scores(query, k, **how),
        QUERIES,
        COUNTS,
        options(LC, "filter", "score_threshold"),
    ),
    (
        lambda index, vector, k: lc_store(index).similarity_search_by_vector(vector, k),
        VALUES | st.just([1.0] * 16),
        COUNTS,
    ),
    (
        lambda index, query, how: lc_store(index).max_marginal_relevance_search(query, **how),
        QUERIES,
        options({"k": COUNTS, "fetch_k": COUNTS, "lambda_mult": VALUES, "filter": FILTERS}),
    ),
    (
        lambda index, vector, how: lc_store(index).max_marginal_relevance_search_by_vector(vector, **how),
        VALUES | st.just([1.0] * 16),
        options({"k": COUNTS, "fetch_k": COUNTS, "lambda_mult": VALUES}),
    ),
    (
        lambda index, given, how: ours_lc.PalmetteVectorStore.from_texts(given, index.model, **how),
        st.lists(TEXTS),
        options({"ids": GIVEN_IDS, **LC, "k": COUNTS}),
    ),
    (
        lambda index, *given: index.search("owl", filter=translated(*given)),
        st.sampled_from(Comparator),
        st.sampled_from(Operator),
        st.sampled_from(["lang", "n"]),
        VALUES,
    ),
    (
        lambda index, fields, given, query: ours_lc.PalmetteReranker(
            model=index.model, **fields
        ).compress_documents(made(given), query),
        options({n: VALUES for n in ("top_n", "lexical", "language", "search_options", "score_key")}),
        DOCUMENTS,
        QUERIES,
    ),
    (
        lambda index, fields, texts: ours_lc.PalmetteEmbeddings(model=index.model, **fields).embed_documents(
            texts
        ),
        options({n: VALUES for n in ("representation", "level", "encoder")}),
        QUERIES,
    ),
    (lambda index, query: ours_lc.PalmetteEmbeddings(model=index.model).embed_query(query), QUERIES),
    (
        lambda index, fields, given: ours_lc.PalmetteReader(
            reader=readers.sentence_reader(), **fields
        ).invoke(given),
        options({n: VALUES for n in ("threshold", "output", "question_key")}),
        VALUES,
    ),
    (
        lambda index, question, given: ours_lc.PalmetteReader(reader=readers.sentence_reader()).invoke(
            {"question": question, "documents": made(given)}
        ),
        QUERIES,
        DOCUMENTS,
    ),
    (
        lambda index, question, given: ours_lc.PalmetteReader(reader=readers.sentence_reader()).batch(
            [{"question": question, "documents": given}]
        ),
        QUERIES,
        VALUES,
    ),
]

# -- LlamaIndex ---------------------------------------------------------------------------------------------


def node(text: Any, metadata: Any, id: Any, kind: Any) -> Any:
    fields = {"text": text, "metadata": metadata, "id_": id, "index_id": "i"}
    return kind(**{name: value for name, value in fields.items() if value is not None})


NODES = st.tuples(DOCUMENTS, st.tuples(*[st.sampled_from([TextNode, IndexNode])] * 3))


def nodes(given: Any) -> list[Any]:
    return [node(*one, kind) for one, kind in zip(*given, strict=False)]


def metadata_filters(condition: Any, *given: Any) -> Any:
    return MetadataFilters(
        filters=[MetadataFilter(key=key, operator=operator, value=value) for key, operator, value in given],
        condition=condition,
    )


LI_FILTER = st.tuples(
    st.sampled_from(["lang", "n", "$id", ""]),
    st.sampled_from(FilterOperator),
    VALUES | st.sampled_from(["en", ["en"]]),
)
LI_FILTERS = st.tuples(st.just("made"), st.sampled_from(FilterCondition), LI_FILTER, LI_FILTER) | FILTERS


def filters(given: Any) -> Any:
    return metadata_filters(*given[1:]) if isinstance(given, tuple) and given[:1] == ("made",) else given


def opened(given: dict[str, Any]) -> dict[str, Any]:
    return {name: filters(value) if name == "filters" else value for name, value in given.items()}


LI = {
    "filters": LI_FILTERS,
    "score_threshold": VALUES,
    "lexical": OPTIONS["lexical"],
    "explain": VALUES,
    "level": VALUES,
}
STORE = {
    "similarity_top_k": st.integers(-1, 4) | VALUES,
    "query_str": QUERIES,
    "query_embedding": VALUES,
    "doc_ids": VALUES,
    "node_ids": VALUES,
    "filters": LI_FILTERS,
    "alpha": VALUES,
    "mmr_threshold": VALUES,
    "mode": st.sampled_from(VectorStoreQueryMode),
    "hybrid_top_k": VALUES,
}


def asked(query: Any, embedding: Any, texts: Any) -> QueryBundle:
    return QueryBundle(query, embedding=embedding, custom_embedding_strs=texts)


LLAMA: list[tuple[Any, ...]] = [
    (
        lambda index, query, how: li_retriever(index).retrieve(ours_li.PalmetteQuery(query, **opened(how))),
        QUERIES,
        options(LI | {"top_k": COUNTS, "options": VALUES}),
    ),
    (lambda index, query: li_retriever(index).retrieve(query), QUERIES),
    (
        lambda index, *given: li_retriever(index).retrieve(asked(*given)),
        st.sampled_from(["owl", ""]),
        VALUES | st.just([1.0] * 16),
        QUERIES | VALUES,
    ),
    (
        lambda index, how: li_retriever(index, **opened(how)).retrieve("owl"),
        options(LI | {"similarity_top_k": COUNTS}),
    ),
    (lambda index, queries: li_retriever(index).retrieve_batch(queries), QUERIES),
    (lambda index, query, id: li_retriever(index).explain(query, id), QUERIES, st.sampled_from(IDS) | VALUES),
    (
        lambda index, how, given: getattr(li_retriever(index), how)(nodes(given)),
        st.sampled_from(["add", "upsert", "insert_nodes", "refresh_ref_docs"]),
        NODES,
    ),
    (
        lambda index, how, given: getattr(li_retriever(index), how)(node(*given)),
        st.sampled_from(["insert", "update_ref_doc"]),
        st.tuples(TEXTS, ODD_METADATA, st.sampled_from(IDS), st.just(TextNode)),
    ),
    (
        lambda index, how, ids: getattr(li_retriever(index), how)(ids),
        st.sampled_from(["get_nodes", "delete_nodes", "delete_ref_doc"]),
        GIVEN_IDS,
    ),
    (lambda index: li_retriever(index).ref_doc_info,),
    (
        lambda index, given, how: ours_li.PalmetteRetriever.from_documents(
            nodes(given), index.model, **opened(how)
        ),
        NODES,
        options(LI | {"index_path": VALUES, "engine": VALUES, "transformations": VALUES}),
    ),
    (lambda index, path: li_retriever(index).persist(path), VALUES),
    (lambda index, path: ours_li.PalmetteRetriever.from_persist_dir(path), VALUES),
    (lambda index, given: li_store(index).add(nodes(given)), NODES),
    (lambda index, how: li_store(index).query(VectorStoreQuery(**opened(how))), options(STORE)),
    (
        lambda index, how, more: li_store(index).query(
            VectorStoreQuery(query_str="owl", similarity_top_k=2, **opened(how)), **more
        ),
        options(STORE, "filters", "mode", "alpha", "node_ids", "doc_ids"),
        options({"mmr_threshold": VALUES, "level": VALUES}),
    ),
    (
        lambda index, ids, given: li_store(index).get_nodes(ids, filters(given)),
        GIVEN_IDS | st.none(),
        LI_FILTERS | st.none(),
    ),
    (
        lambda index, ids, given: li_store(index).delete_nodes(ids, filters(given)),
        GIVEN_IDS | st.none(),
        LI_FILTERS | st.none(),
    ),
    (lambda index, id: li_store(index).delete(id), st.sampled_from(IDS) | VALUES),
    (lambda index, path: li_store(index).persist(path), VALUES),
    (
        lambda index, how, given, query: ours_li.PalmetteRerank(index.model, **how).postprocess_nodes(
            [NodeWithScore(node=one) for one in nodes(given)], query_str=query
        ),
        options({"top_n": VALUES, "lexical": VALUES, "language": VALUES, "level": VALUES}),
        NODES,
        QUERIES,
    ),
    (
        lambda index, how: ours_li.PalmetteEmbedding(index.model, **how).get_text_embedding("owl"),
        options({"representation": VALUES, "level": VALUES, "embed_batch_size": VALUES}),
    ),
    (
        lambda index, how, text: getattr(ours_li.PalmetteEmbedding(index.model), how)(text),
        st.sampled_from(["get_query_embedding", "get_text_embedding_batch"]),
        QUERIES,
    ),
    (
        lambda index, how, query, given: ours_li.PalmetteSynthesizer(
            readers.sentence_reader(), **how
        ).synthesize(query, [NodeWithScore(node=one) for one in nodes(given)]),
        options({"threshold": VALUES, "no_answer": VALUES}),
        QUERIES,
        NODES,
    ),
    (
        lambda index, query, chunks: ours_li.PalmetteSynthesizer(readers.sentence_reader()).get_response(
            query, chunks
        ),
        QUERIES,
        VALUES,
    ),
]


@pytest.mark.parametrize(
    "uses", [pytest.param(LANGCHAIN, id="langchain"), pytest.param(LLAMA, id="llama_index")]
)
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
