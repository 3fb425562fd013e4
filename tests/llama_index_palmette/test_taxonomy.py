"""The taxonomy's options as attributes of its retriever."""

import pytest
from llama_index.core.schema import TextNode

from llama_index.retrievers.palmette import PalmetteQuery, TaxonomyRetriever
from palmette import FakeEncoder, TaxonomyModel
from palmette.errors import PalmetteError
from support.taxonomies import chain, zoo


@pytest.fixture(scope="module")
def retriever() -> TaxonomyRetriever:
    options = {"dimension": 16, "steps": 200, "learning_rate": 0.01, "evaluate_every": 200}
    model = TaxonomyModel.fit(zoo(), encoder=FakeEncoder(48), progress=False, **options)
    hidden = ["parents", "name", "number"]  # a node is known by its text
    nodes = [
        TextNode(id_=d.key, text=d.text, metadata=dict(d.metadata), excluded_embed_metadata_keys=hidden)
        for d in zoo()
    ]
    return TaxonomyRetriever.from_documents(nodes, model, similarity_top_k=3, order="specific")


def test_options_are_attributes_and_may_be_asked_for(retriever: TaxonomyRetriever) -> None:
    assert retriever.order == "specific"
    assert [n.node.node_id for n in retriever.retrieve("owl 3")] == chain("owl 3")
    found = retriever.retrieve(PalmetteQuery("owl 3", top_k=2, within="owl"))
    assert [n.node.node_id for n in found] == ["owl 3", "owl"]


def test_a_node_that_is_not_there_is_named(retriever: TaxonomyRetriever) -> None:
    with pytest.raises(PalmetteError, match="no node 'wolf'"):
        retriever.retrieve(PalmetteQuery("owl", within="wolf"))
