"""The options of nodes with fields as attributes of their retriever."""

from dataclasses import replace

import pytest
from llama_index.core.schema import QueryBundle, TextNode

from llama_index.retrievers.palmette import MultiFieldRetriever, PalmetteQuery, PalmetteRerank
from palmette import Index
from palmette.errors import PalmetteError
from support.shop import model, shop


@pytest.fixture(scope="module")
def retriever() -> MultiFieldRetriever:
    nodes = [
        TextNode(
            id_=d.key,
            text=d.text,
            metadata={**d.metadata, "title": d.fields.get("title", "")},
            excluded_embed_metadata_keys=["brand", "price", "title"],  # fields of their own
        )
        for d in shop()
    ]
    return MultiFieldRetriever.from_documents(nodes, model(), similarity_top_k=3, by="best", lexical=0)


def test_options_are_attributes_and_may_be_asked_for(retriever: MultiFieldRetriever) -> None:
    assert retriever.by == "best"
    best = [n.node.node_id for n in retriever.retrieve("golden owl 22")]
    staged = retriever.retrieve(PalmetteQuery("golden owl 22", by="two_stage", shortlist=60, blend=0.0))
    assert [n.node.node_id for n in staged] == best
    brand = retriever.retrieve(PalmetteQuery("golden", fields=["brand"], weights={"brand": 2.0}))
    assert len({n.node.metadata["brand"] for n in brand}) == 1


def test_metadata_are_read_once() -> None:
    """A node's text without the metadata that LlamaIndex puts before it: those are fields of their own."""
    nodes = [TextNode(id_=d.key, text=d.text, metadata={**d.metadata, **d.fields}) for d in shop()]
    plain = [replace(d, metadata={**d.metadata, **d.fields}, fields={}) for d in shop()]
    retriever = MultiFieldRetriever.from_documents(nodes, model(), similarity_top_k=5)
    (seventh,) = retriever.index.get(["7"])
    assert (
        model().extractor.read(seventh)
        == model().extractor.read(plain[7])
        == ["blue", "fox 7", shop()[7].text]
    )
    expected = [(hit.id, hit.score) for hit in Index.build(plain, model()).search("golden owl 22", k=5)]
    found = retriever.retrieve("golden owl 22")
    assert [(n.node.node_id, n.score) for n in found] == [
        (id, pytest.approx(s, abs=1e-6)) for id, s in expected
    ]
    assert found[0].node == next(node for node in nodes if node.node_id == found[0].node.node_id)
    ranked = PalmetteRerank(model(), top_n=5, lexical=0).postprocess_nodes(found, query_str="golden owl 22")
    scores = model().score("golden owl 22", [plain[int(n.node.node_id)] for n in ranked])
    assert [n.score for n in ranked] == pytest.approx(scores, abs=1e-6)


def test_a_field_that_is_not_there_is_named(retriever: MultiFieldRetriever) -> None:
    with pytest.raises(PalmetteError, match="no field 'colour'"):
        retriever.retrieve(PalmetteQuery("owl", fields=["colour"]))


def test_several_texts_of_a_query_are_one_question(retriever: MultiFieldRetriever) -> None:
    """As LlamaIndex's HyDE asks: with the texts that an answer might have, and the question."""
    texts = ["a golden owl of brass", "golden owl 22"]
    nodes = retriever.retrieve(QueryBundle("golden owl 22", custom_embedding_strs=texts))
    [expected] = retriever.index.search([tuple(texts)], 3, by="best", lexical=0)
    assert [(n.node.node_id, n.score) for n in nodes] == [
        (hit.id, pytest.approx(hit.score)) for hit in expected
    ]
    bundle = QueryBundle("golden owl 22", custom_embedding_strs=texts)
    assert retriever.explain(bundle, nodes[0].node.node_id).score == pytest.approx(nodes[0].score, abs=1e-6)
    mixed = retriever.retrieve_batch([bundle, "golden owl 22", bundle])
    assert (
        [n.node.node_id for n in mixed[0]]
        == [n.node.node_id for n in mixed[2]]
        == [hit.id for hit in expected]
    )


def test_a_mapping_of_fields_belongs_to_training(retriever: MultiFieldRetriever) -> None:
    with pytest.raises(PalmetteError, match=r"FieldsModel\.fit.*fields=\['brand'\]"):
        MultiFieldRetriever(retriever.index, fields={"brand": "metadata.brand"})
