"""The options of nodes with fields as attributes of their retriever."""

import pytest
from llama_index.core.schema import TextNode

from llama_index.retrievers.palmette import MultiFieldRetriever, PalmetteQuery
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


def test_a_field_that_is_not_there_is_named(retriever: MultiFieldRetriever) -> None:
    with pytest.raises(PalmetteError, match="no field 'colour'"):
        retriever.retrieve(PalmetteQuery("owl", fields=["colour"]))
