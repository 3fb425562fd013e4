"""The vector store, and what LlamaIndex builds on one."""

import copy
import pickle

import pytest
from llama_index.core import Document, MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import MetadataMode, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import FilterOperator, MetadataFilter, MetadataFilters, VectorStoreQuery
from llama_index.core.vector_stores.types import VectorStoreQueryMode

from llama_index.retrievers.palmette import PalmetteVectorStore
from palmette import Index
from palmette.errors import ConfigError, InputError
from support import tiny

QUESTION = "where does the owl live in the forest"
MOCK = MockEmbedding(1)


@pytest.fixture
def store(writable):
    return PalmetteVectorStore(writable)


@pytest.fixture
def bare(model):
    return PalmetteVectorStore.from_index(Index.in_memory(model))


def where(key, value, operator=FilterOperator.EQ):
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


def ask(store, text=QUESTION, k=3, **how):
    return store.query(VectorStoreQuery(query_str=text, similarity_top_k=k, **how))


def animals(nodes):
    return {node.metadata["animal"] for node in nodes}


def test_a_query_is_a_search(store, writable):
    found, expected = ask(store), writable.retrieve(QUESTION)
    assert found.ids == [node.node_id for node in found.nodes] == [result.node_id for result in expected]
    assert found.similarities == [result.score for result in expected]
    assert found.nodes == [result.node for result in expected]
    assert (store.stores_text, store.is_embedding_query) == (True, False)
    assert store.client is writable.index
    for twin in (copy.copy(store), copy.deepcopy(store), store.model_copy(deep=True)):
        assert twin.client is store.client
        assert ask(twin).ids == found.ids
    writable.level = 2
    assert ask(store).similarities == [hit.score for hit in store.client.search(QUESTION, 3, level=2)]


def test_filters_nodes_and_documents_narrow(store):
    assert animals(ask(store, k=9, filters=where("animal", "fox")).nodes) == {"fox"}
    assert sorted(ask(store, k=9, node_ids=["owl-river", "fox-river"]).ids) == ["fox-river", "owl-river"]
    assert {n.ref_doc_id for n in ask(store, k=9, doc_ids=["doc-owl"]).nodes} == {"doc-owl"}
    both = ask(store, k=9, doc_ids=["doc-owl"], filters=where("year", 2021, FilterOperator.GTE))
    assert sorted(both.ids) == ["owl-forest", "owl-house", "owl-river"]
    assert ask(store, doc_ids=["nowhere"]).ids == []
    tenant = PalmetteVectorStore.from_index(store.client, filters={"animal": "hen"})
    for nodes in (ask(tenant, k=9).nodes, tenant.get_nodes(), tenant.get_nodes(["hen-river", "owl-river"])):
        assert animals(nodes) == {"hen"}
    tenant.clear()
    assert animals(store.get_nodes()) == {"cat", "dog", "owl", "fox", "bat"}


def test_an_embedding_is_searched_where_there_is_no_text(store, model):
    vector = model.encoder.encode_queries([QUESTION])[0].tolist()
    expected = [hit.id for hit in store.client.search(QUESTION, 3, lexical=0)]
    assert store.query(VectorStoreQuery(query_embedding=vector, similarity_top_k=3)).ids == expected
    assert ask(store, query_embedding=[1.0]).ids == ask(store).ids, "the text goes first"
    layers = PalmetteVectorStore.from_index(Index.in_memory(tiny.layers()))
    layers.add([TextNode(text="an owl")])
    assert len(ask(layers).ids) == 1
    with pytest.raises(ConfigError, match="give the text itself"):
        layers.query(VectorStoreQuery(query_embedding=[0.0] * 48))


def test_query_modes(store):
    words = [hit.id for hit in store.client.search(QUESTION, 3, lexical=1)]
    for mode in (VectorStoreQueryMode.SPARSE, VectorStoreQueryMode.TEXT_SEARCH):
        assert ask(store, mode=mode).ids == words
    mixed = [hit.score for hit in store.client.search(QUESTION, 3, lexical=0.25)]
    assert ask(store, mode=VectorStoreQueryMode.HYBRID, alpha=0.75).similarities == mixed
    assert ask(store, mode=VectorStoreQueryMode.HYBRID).ids == ask(store).ids
    with pytest.raises(ConfigError, match=r"no query mode 'svm': use default, mmr"):
        ask(store, mode=VectorStoreQueryMode.SVM)
    coarse = store.query(VectorStoreQuery(query_str=QUESTION, similarity_top_k=3), level=2)
    assert coarse.similarities == [hit.score for hit in store.client.search(QUESTION, 3, level=2)]


def test_maximal_marginal_relevance(bare):
    owl, hen = "the owl lives in the forest", "a hen in the house"
    bare.add([TextNode(id_=id, text=text) for id, text in (("a", owl), ("b", f"{owl}."), ("hen", hen))])
    assert ask(bare, k=2).ids == ["a", "b"]
    mmr = VectorStoreQueryMode.MMR
    assert ask(bare, k=2, mode=mmr, mmr_threshold=0.3).ids == ["a", "hen"]
    assert ask(bare, k=2, mode=mmr, mmr_threshold=1.0).ids == ["a", "b"]
    query = VectorStoreQuery(query_str=QUESTION, similarity_top_k=2, mode=mmr)
    for weight in (0.3, 0.0):
        assert bare.query(query, mmr_threshold=weight).ids == ["a", "hen"]
    with pytest.raises(ConfigError, match="between 0 and 1"):
        bare.query(query, mmr_threshold=2.0)


def test_add_get_and_delete(bare, nodes):
    nodes[0].embedding = [0.5]
    ids = [node.node_id for node in nodes]
    with pytest.warns(UserWarning, match="1 of 25 documents are blank and were left out"):
        assert bare.add([*nodes, TextNode(id_="blank", text="\n")]) == [*ids, "blank"], "callers pair ids with nodes"
    assert bare.add(nodes) == ids
    kept = bare.get_nodes(["cat-forest", "x", ids[0]])
    assert [node.node_id for node in kept] == [ids[0], "cat-forest"]
    assert kept[0].embedding is None, "embeddings of others are not kept"
    assert nodes[0].embedding == [0.5]
    changed = TextNode(id_=ids[0], text="a tiger", metadata={"animal": "tiger", "year": 1})
    bare.add([changed])
    assert bare.get_nodes([ids[0]]) == bare.get_nodes(filters=where("animal", "tiger")) == [changed]
    assert bare.get_nodes(["owl-river"], where("animal", "tiger")) == []
    assert len(bare.get_nodes()) == len(nodes)

    bare.delete("doc-owl")
    bare.delete("nowhere")
    assert animals(bare.get_nodes()) == {"cat", "dog", "fox", "hen", "bat", "tiger"}
    bare.delete_nodes(["cat-forest", "fox-river", "x"], where("animal", "fox"))
    assert [n.node_id for n in bare.get_nodes(["cat-forest", "fox-river"])] == ["cat-forest"]
    bare.delete_nodes(filters=where("animal", "cat"))
    bare.delete_nodes([])
    assert bare.get_nodes(["cat-forest"]) == []
    with pytest.raises(InputError, match="ids or a filter"):
        bare.delete_nodes()
    for _ in range(2):
        bare.clear()
        assert bare.get_nodes() == []
    assert ask(bare).ids == []


def test_vector_store_index(bare, nodes):
    context = StorageContext.from_defaults(vector_store=bare)
    index = VectorStoreIndex(nodes, storage_context=context, embed_model=MOCK)
    retriever = index.as_retriever(similarity_top_k=3, filters=where("animal", "owl"))
    assert retriever.retrieve(QUESTION)[0].node_id == "owl-forest"
    index.insert(Document(doc_id="new", text="An owl sleeps.", metadata={"animal": "owl"}))
    assert retriever.retrieve("An owl sleeps.")[0].node.ref_doc_id == "new"
    index.delete_ref_doc("new", delete_from_docstore=True)
    index.delete_nodes(["owl-forest"])
    again = VectorStoreIndex.from_vector_store(bare, embed_model=MOCK)
    assert len(again.vector_store.get_nodes()) == len(nodes) - 1
    response = again.as_query_engine(llm=MockLLM(), similarity_top_k=1).query("the fox lives in the river")
    assert response.source_nodes[0].node_id == "fox-river"
    by_words = again.as_retriever(vector_store_query_mode="sparse").retrieve("fox river")
    assert by_words[0].node_id == "fox-river"


@pytest.mark.parametrize("strategy", ["upserts", "upserts_and_delete"])
async def test_ingestion_pipelines(bare, strategy):
    pipeline = IngestionPipeline(
        transformations=[SentenceSplitter(chunk_size=12, chunk_overlap=0), MOCK],
        vector_store=bare,
        docstore=SimpleDocumentStore(),
        docstore_strategy=DocstoreStrategy(strategy),
    )

    def run(**documents):
        pipeline.run(documents=[Document(doc_id=id, text=text) for id, text in documents.items()])
        return sorted((n.ref_doc_id, n.get_content(MetadataMode.NONE)) for n in bare.get_nodes())

    owl, fox = "The owl sleeps in a tree all day long. It hunts mice at night.", "The fox eats grapes."
    first = run(owl=owl, fox=fox)
    assert [id for id, _ in first] == ["fox", "owl", "owl"]
    assert run(owl=owl, fox=fox) == first
    assert run(owl=owl, fox="The fox eats hens.") == [("fox", "The fox eats hens."), *first[1:]]
    await pipeline.arun(documents=[Document(doc_id="owl", text=owl)])
    left = {node.ref_doc_id for node in bare.get_nodes()}
    assert left == ({"owl"} if strategy == "upserts_and_delete" else {"owl", "fox"})


def test_persistence(store, on_disk, model, tmp_path):
    context = StorageContext.from_defaults(vector_store=store)
    context.persist(tmp_path / "storage")
    copied = PalmetteVectorStore.from_index(tmp_path / "storage/default__vector_store", model=model)
    again = VectorStoreIndex.from_vector_store(copied, embed_model=MOCK)
    assert again.as_retriever().retrieve(QUESTION)[0].node_id == "owl-forest"
    opened = StorageContext.from_defaults(vector_store=copied, persist_dir=tmp_path / "storage")
    opened.persist(tmp_path / "storage")  # a folder is kept already
    copied.client.close()

    kept = PalmetteVectorStore(on_disk)
    kept.persist(str(tmp_path / "unused.json"))
    assert not (tmp_path / "unused").exists()
    unpickled = pickle.loads(pickle.dumps(kept))
    assert ask(unpickled).ids == ask(kept).ids
    unpickled.client.close()
    with pytest.raises(ConfigError, match="index_path="):
        pickle.dumps(store)
