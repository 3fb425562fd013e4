"""The vector store, and the retrievers that need one (LangChain's own suite is in test_standard.py)."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import RunnableLambda
from langchain_core.stores import InMemoryStore
from langchain_core.structured_query import Comparator, Comparison, Operation, Operator, StructuredQuery
from langchain_text_splitters import CharacterTextSplitter

from langchain_palmette import PalmetteEmbeddings, PalmetteTranslator, PalmetteVectorStore, TreeRetriever
from palmette import Index, TreeModel, load_encoder
from palmette.errors import ConfigError, DuplicateIdError, InputError
from support import tiny

QUESTION = "The green owl lives in house 10 and sings at night."


@pytest.fixture
def store(model: TreeModel) -> PalmetteVectorStore:
    return PalmetteVectorStore.from_index(Index.in_memory(model))


@pytest.fixture(scope="module")
def filled(retriever: TreeRetriever) -> PalmetteVectorStore:
    return PalmetteVectorStore(retriever)


def test_from_documents_and_texts(
    documents: list[Document], model: TreeModel, checkpoint: Path, tmp_path: Path
) -> None:
    [owl] = [document for document in documents if document.id == "green-owl"]
    for given in (model, checkpoint, PalmetteEmbeddings(model=model)):
        store = PalmetteVectorStore.from_documents(documents, given, k=2)
        assert store.similarity_search(QUESTION, k=1) == [owl]
        assert len(store.retriever.index) == len(documents)
    texts, metadatas = ["a green owl", "a red cat"], [{"n": 1}, {"n": 2}]
    how: Any = {"ids": ["owl", "cat"], "index_path": tmp_path / "index"}
    store = PalmetteVectorStore.from_texts(texts, model, metadatas, **how)
    again = PalmetteVectorStore.from_index(tmp_path / "index")
    for one in (store, again, pickle.loads(pickle.dumps(store))):
        assert one.get_by_ids(["cat", "x"]) == [Document(id="cat", page_content="a red cat", metadata={"n": 2})]
        assert [d.id for d in one.similarity_search("red cat", filter={"n": 1})] == ["owl"]


def test_an_encoder_will_do_and_what_cannot_be_is_refused(store: PalmetteVectorStore) -> None:
    small = PalmetteVectorStore.from_texts(["a red cat", "an owl"], PalmetteEmbeddings(encoder="fake:16"))
    assert small.retriever.index.model.encoder.dimension == 16
    assert small.similarity_search("red cat", k=1)[0].page_content == "a red cat"
    own = DeterministicFakeEmbedding(size=3)
    given = PalmetteVectorStore.from_texts(["a red cat", "an owl"], own)
    assert given.retriever.index.model.encoder is load_encoder(own)
    assert given.similarity_search("red cat", k=1)[0].page_content == "a red cat"
    with pytest.raises(ConfigError, match="give one of them"):
        PalmetteVectorStore.from_texts(["a"], own, encoder=own)
    with pytest.raises(DuplicateIdError):
        store.add_texts(["one", "two"], ids=["1", "1"])
    for wrong in ({"ids": ["1"]}, {"metadatas": [{}]}):
        with pytest.raises(InputError, match="one per text, got 1 for 2 texts"):
            store.add_texts(iter(["one", "two"]), **wrong)
    with pytest.raises(InputError, match="one per document, got 1 for 2"):
        store.add_documents([Document(page_content=" ")] * 2, ids=["1"])
    with pytest.raises(InputError, match="ids or a filter"):
        store.delete()


def test_by_vector(filled: PalmetteVectorStore, model: TreeModel) -> None:
    embeddings = filled.embeddings
    assert isinstance(embeddings, PalmetteEmbeddings)
    vector = embeddings.embed_query(QUESTION)
    expected = filled.similarity_search(QUESTION, lexical=0)
    assert filled.similarity_search_by_vector(vector) == expected
    assert filled.max_marginal_relevance_search_by_vector(vector, lambda_mult=1.0) == expected
    with pytest.raises(ConfigError, match="lexical"):
        filled.similarity_search_by_vector(vector, lexical=0.5)
    layers = PalmetteVectorStore.from_index(Index.in_memory(tiny.layers()))
    assert layers.embeddings is None
    with pytest.raises(ConfigError, match="give the text itself"):
        layers.similarity_search_by_vector(vector)


def test_marginal_relevance(store: PalmetteVectorStore) -> None:
    """Of two near copies the second gives way to another document."""
    copies = [f"The green owl lives in house 10{end}" for end in ("", " ", ".")]
    store.add_texts([*copies, "The red cat sings at night."], ids=["a", "b", "c", "cat"])
    ranked = [d.id for d in store.similarity_search("where does the green owl live?", k=4)]
    assert ranked[-1] == "cat"
    diverse = store.max_marginal_relevance_search("where does the green owl live?", k=2, lambda_mult=0.3)
    assert [d.id for d in diverse] == [ranked[0], "cat"]
    [_, near] = store.max_marginal_relevance_search("green owl", k=2, fetch_k=3, lambda_mult=0)
    assert near.id != "cat", "only fetch_k documents are considered"
    with pytest.raises(ConfigError, match=r"weight must be between 0 and 1, got 2"):
        store.max_marginal_relevance_search("owl", lambda_mult=2)


async def test_parent_documents(store: PalmetteVectorStore) -> None:
    """Several vectors for each document."""
    classic = pytest.importorskip("langchain_classic.retrievers")
    parents = [
        Document(id=name, page_content=f"The {name} sleeps.\n\nIt eats {food}.", metadata={"food": food})
        for name, food in (("owl", "mice"), ("cow", "grass"))
    ]
    splitter = CharacterTextSplitter(chunk_size=20, chunk_overlap=0)
    how = {"vectorstore": store, "docstore": InMemoryStore(), "child_splitter": splitter}
    retriever = classic.ParentDocumentRetriever(**how)
    retriever.add_documents(parents)
    assert len(store.retriever.index) == 4
    for how in ("similarity", "mmr", "similarity_score_threshold"):
        retriever.search_type = how
        assert retriever.invoke("It eats grass.")[0] == (await retriever.ainvoke("It eats grass."))[0] == parents[1]


ROWS: dict[str, dict[str, Any]] = {
    "a": {"n": 1, "day": "2026-01-01", "tags": ["red"], "title": "a hen", "sizes": [3]},
    "b": {"n": 2, "day": "2026-01-02", "tags": [], "title": "an owl", "sizes": [3]},
    "c": {"n": 3, "day": "2026-01-03", "tags": ["blue"], "title": "", "sizes": [3, 4]},
}
COMPARISONS: list[tuple[str, str, Any, str]] = [
    ("eq", "n", 1, "a"), ("ne", "n", 1, "bc"), ("gt", "n", 1, "bc"), ("lt", "n", 2, "a"),
    ("lte", "day", {"date": "2026-01-02", "type": "date"}, "ab"), ("in", "n", [1, 3], "ac"), ("in", "n", 3, "c"),
    ("nin", "n", [1, 3], "b"), ("contain", "tags", "red", "a"), ("contain", "title", "wl", "b"),
    ("contain", "sizes", 4, "c"), ("like", "title", "%OWL%", "b"),
]  # fmt: skip


def test_self_query(store: PalmetteVectorStore) -> None:
    base = pytest.importorskip("langchain_classic.retrievers.self_query.base")
    store.add_texts(["text a", "text b", "text c"], list(ROWS.values()), ids=list(ROWS))

    def found(directive: Any) -> str:
        retriever = base.SelfQueryRetriever(
            query_constructor=RunnableLambda(lambda _: StructuredQuery("text", directive)),
            vectorstore=store,
            structured_query_translator=PalmetteTranslator(),
        )
        return "".join(sorted(str(d.id) for d in retriever.invoke("what an LLM makes a query of")))

    for comparator, name, value, expected in COMPARISONS:
        comparison = Comparison(Comparator(comparator), name, value)
        assert found(comparison) == expected, comparison
        assert found(Operation(Operator.NOT, [comparison])) == "".join(sorted({*"abc"} - {*expected})), comparison
    first, recent = (Comparison(Comparator(how), "n", 2) for how in ("lt", "gte"))
    assert found(Operation(Operator.OR, [first, recent])) == "abc"
    assert found(Operation(Operator.AND, [first, recent])) == ""
    assert found(None) == "abc"
    huge = Comparison(Comparator.LIKE, "title", 10**5000)  # more digits than Python writes
    assert PalmetteTranslator().visit_comparison(huge)["title"]["$icontains"].startswith("<int whose repr raises")
